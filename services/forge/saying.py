"""One comment of ours for each purpose under an issue or a pull request: found or made, then changed in place, never repeated.

The bucket remembers the comment; what it forgot is found by the hidden marker. Whoever makes the comment takes the row first.
"""

import asyncio
import hashlib
import logging
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from weakref import WeakValueDictionary

from pydantic import ValidationError

from libs.bus import Bus, Delivery, Fenced, Kv, Retryable, token
from libs.bus.faults import reach
from libs.contracts.envelope import Message, Time
from libs.scanner import describe, scan
from services.forge.errors import GitHubError, NotConfigured, NotFound
from services.forge.pull_text import LIMIT, cut
from services.forge.repository import RepositoryClient
from services.forge.rows import marker

log = logging.getLogger(__name__)
_CLAIM = timedelta(seconds=60)
_WAIT_SECONDS = 2.0
_UNSET_SECONDS = 60.0


class Said(Message):
    """The comment of one purpose. Without `comment_id` somebody, named by `by`, is about to make it."""

    comment_id: int | None = None
    by: str = ""
    at: Time
    digest: str = ""
    sequence: int = 0


class Comments:
    """Our comments."""

    def __init__(self, bucket: Kv) -> None:
        self._bucket = bucket
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def told(self, repository_id: int, number: int, purpose: str) -> int:
        """Up to which sequence the comment tells; 0 when it is not there."""
        found = await self._bucket.get(_key(repository_id, number, purpose))
        said = Said.model_validate_json(found[0]) if found else None
        return said.sequence if said and said.comment_id is not None else 0

    async def put(self, there: RepositoryClient, number: int, purpose: str, text: str, by: str, sequence: int = 0) -> None:
        """Let the comment say `text`; an older `sequence` than the one that it tells changes nothing.

        Raises:
            Retryable: somebody else makes it right now, GitHub is away, or a rate limit.
            GitHubError: GitHub will not have it.
        """
        assert there.repository_id is not None
        key = _key(there.repository_id, number, purpose)
        body = f"{await asyncio.to_thread(withheld, cut(text, LIMIT - 200))}\n\n{marker(purpose)}"
        digest = hashlib.sha256(body.encode("utf-8", "replace")).hexdigest()
        async with self._locks.setdefault(key, asyncio.Lock()):
            found = await self._bucket.get(key)
            said, revision = (Said.model_validate_json(found[0]), found[1]) if found else (None, 0)
            if said and said.comment_id is not None and (said.digest == digest or said.sequence > sequence):
                return
            comment_id = await self._edited(there, said, body) or await self._made(there, number, purpose, key, (said, revision), body, by)
            done = Said(comment_id=comment_id, by=by, at=datetime.now(UTC), digest=digest, sequence=sequence)
            await self._bucket.put(key, done.model_dump_json().encode())

    async def _edited(self, there: RepositoryClient, said: Said | None, body: str) -> int | None:
        """The comment that the row names, changed; None when there is none, or somebody deleted it."""
        if said is None or said.comment_id is None:
            return None
        try:
            await there.edit_comment(said.comment_id, body)
        except NotFound:
            return None
        return said.comment_id

    async def _made(
        self, there: RepositoryClient, number: int, purpose: str, key: str, row: tuple[Said | None, int], body: str, by: str
    ) -> int:
        said, revision = row
        now = datetime.now(UTC)
        if said and said.comment_id is None and said.by != by and now - said.at < _CLAIM:
            raise Retryable(f"the comment {purpose} is being made", after=_WAIT_SECONDS)
        try:
            await self._bucket.put(key, Said(by=by, at=now).model_dump_json().encode(), revision)
        except Fenced:
            raise Retryable(f"the comment {purpose} is being made", after=_WAIT_SECONDS) from None
        comment_id = await there.find_comment(number, marker(purpose))
        if comment_id is not None:
            await there.edit_comment(comment_id, body)
            return comment_id
        comment_id = await there.create_comment(number, body)
        reach("forge", "after_effect", "comment_made")
        return comment_id


def _key(repository_id: int, number: int, purpose: str) -> str:
    return f"comment.{repository_id}.{number}.{token(purpose)}"


def withheld(text: str) -> str:
    """The text, or where and what kind of secret is in it."""
    hits = scan(text)
    return f"This text is withheld, since it seems to hold a secret: {describe(hits)}." if hits else text


async def settle(bus: Bus, delivery: Delivery, work: Callable[[], Awaitable[None]]) -> None:
    """Handle a message whose effect is a comment: put back while GitHub is away or limits us, a dead letter when it will never work."""
    try:
        await work()
    except Retryable as error:
        await delivery.nak(error.after if error.after is not None else min(300.0, 2.0**delivery.number))
    except NotConfigured as error:
        log.warning("%s waits: %s", delivery.subject, error)
        await delivery.nak(_UNSET_SECONDS)
    except (GitHubError, ValidationError) as error:
        log.warning("%s cannot be told on GitHub: %s", delivery.subject, error)
        await bus.dead_letters.bury(delivery, str(error), "permanent", delivery.subject.split(".")[1])
        await delivery.ack()
    else:
        await delivery.ack()
