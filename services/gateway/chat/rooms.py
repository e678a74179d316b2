"""What all connections of a conversation share, over all replicas: the clients' state, and the news that something happened.

The bucket `AGENT_STATE` holds one record for each conversation. The assistant's bucket `CONVERSATIONS` is only watched: its record names
the turn that is active.
"""

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ValidationError

from libs.bus import Fenced, Retryable
from libs.bus.subjects import conversation_key
from services.gateway.clients import GatewayBus
from services.gateway.identity.caller import Caller

BUCKET = "AGENT_STATE"
MAX_STATE_BYTES = 256_000
_TRIES = 20


class Shared(BaseModel):
    """The record. `by` is the connection that changed it last, `cleared` counts how often the conversation was emptied."""

    state: Any = {}
    by: str = ""
    cleared: int = 0
    cleared_by: str = ""


@dataclass(frozen=True)
class Room:
    """One conversation of one user."""

    bus: GatewayBus
    who: Caller
    session_id: str

    @property
    def key(self) -> str:
        """The key of the conversation in both buckets."""
        return conversation_key(self.who.tenant, self.who.user, self.session_id)

    async def read(self) -> Shared:
        """The record as it is."""
        return (await self._get())[0]

    async def set_state(self, value: Any, by: str) -> None:
        """Replace the state. Raises ValueError: it is too large."""
        if len(json.dumps(value)) > MAX_STATE_BYTES:
            raise ValueError(f"State update rejected: it is larger than {MAX_STATE_BYTES:,} bytes")
        await self._change({"state": value, "by": by})

    async def cleared(self, by: str) -> None:
        """Tell the others that the conversation was emptied."""
        await self._change({"cleared": (await self.read()).cleared + 1, "cleared_by": by})

    async def forget(self) -> None:
        """Drop the record: the conversation was deleted."""
        _, revision = await self._get()
        if revision:
            await self.bus.kv(BUCKET).delete(self.key, revision)

    async def _get(self) -> tuple[Shared, int]:
        found = await self.bus.kv(BUCKET).get(self.key)
        return (Shared.model_validate_json(found[0]), found[1]) if found else (Shared(), 0)

    async def _change(self, changes: dict[str, Any]) -> None:
        for _ in range(_TRIES):
            shared, revision = await self._get()
            changed = shared.model_copy(update=changes)
            try:
                await self.bus.kv(BUCKET).put(self.key, changed.model_dump_json().encode(), revision)
                return
            except Fenced:
                continue
        raise Retryable("the state changes too often")

    async def changes(self) -> AsyncIterator[Shared]:
        """The record, whenever somebody changes it."""
        async for message in self.bus.tail(f"KV_{BUCKET}", f"$KV.{BUCKET}.{self.key}", None):
            try:
                yield Shared.model_validate_json(message.payload)
            except ValidationError:
                continue

    async def turns(self) -> AsyncIterator[str | None]:
        """The active turn, whenever it is another one; None when there is none any more."""
        last: str | None = None
        async for message in self.bus.tail("KV_CONVERSATIONS", f"$KV.CONVERSATIONS.{self.key}", None):
            try:
                active = json.loads(message.payload).get("active")
            except (ValueError, AttributeError):
                continue
            if active != last:
                last = active
                yield active
