"""Replies to equal prompts, for askers that want them: by model, prompt, tools, parameters, schema and tenant.

A cached reply is never older than its asker allows. A cache that cannot be reached is a cache without a reply.
"""

import hashlib
import json
import logging
from collections.abc import Callable
from datetime import UTC, datetime

from libs.bus.errors import Retryable, describe
from libs.contracts.envelope import Message, Time, Usage
from libs.contracts.inference import Complete, Completion
from services.inference.domain import ModelSpec
from services.inference.store import Records

log = logging.getLogger(__name__)
LOCAL = "local"
_MATTERS = {"messages", "tools", "json_schema", "max_output_tokens", "temperature"}


class Entry(Message):
    """A reply and when it was given."""

    at: Time
    completion: Completion


def cache_key(question: Complete, spec: ModelSpec) -> str:
    """One key for everything that a reply depends on."""
    parts = [question.tenant or LOCAL, spec.name, spec.wire, spec.base_url, question.model_dump(mode="json", include=_MATTERS)]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


class Cache:
    """The cached replies of all models in one bucket."""

    def __init__(self, records: Records, clock: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._records = records
        self._clock = clock

    async def find(self, question: Complete, spec: ModelSpec) -> Completion | None:
        """A reply that is young enough; its usage is nothing."""
        if question.cache_ttl_seconds is None or question.bypass_cache:
            return None
        try:
            found = await self._records.get(cache_key(question, spec))
        except Retryable as error:
            log.warning("the cache cannot be read: %s", describe(error))
            return None
        if found is None:
            return None
        entry = Entry.model_validate_json(found[0])
        if (self._clock() - entry.at).total_seconds() > question.cache_ttl_seconds:
            return None
        return entry.completion.model_copy(update={"cached": True, "usage": Usage()})

    async def keep(self, question: Complete, spec: ModelSpec, completion: Completion) -> None:
        """Keep a reply that came to its own end."""
        if question.cache_ttl_seconds is None or completion.finish_reason not in ("stop", "tool_calls"):
            return
        entry = Entry(at=self._clock(), completion=completion)
        try:
            await self._records.put(cache_key(question, spec), entry.model_dump_json(exclude_none=True).encode())
        except Retryable as error:
            log.warning("a reply is not cached: %s", describe(error))
