"""The path to a leaf. It is read as ranges of one index, and goes out as the JSON that it was stored as."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import PrivateAttr
from sqlalchemy import Select, bindparam
from sqlalchemy.engine import Row

from libs.contracts.conversation import ContextBlocks, History, ReadContexts, ReadHistory, StoredMessage
from services.session_store.compiled import Compiled
from services.session_store.conversations.compaction import Overlay, mask_until, masked
from services.session_store.conversations.content import parsed
from services.session_store.conversations.contexts import Contexts, as_it_is
from services.session_store.conversations.overlays import on_path
from services.session_store.conversations.work import Work
from services.session_store.database import Database
from services.session_store.errors import NotFoundError
from services.session_store.owned import SOMEONE, Owner
from services.session_store.tables import MESSAGES

PATH_BYTES = 6_000_000
"""At most so much of a path is read at once: an answer carries eight megabytes."""


class WrittenHistory(History):
    """A history whose messages are JSON in UTF-8 already: parsing ten thousand of them costs more than reading them."""

    _written: bytes = PrivateAttr(default=b"")

    @classmethod
    def of(cls, written: bytes, leaf_id: str | None, tokens: int, *, more: bool) -> "WrittenHistory":
        """From the stored JSON of the messages, with commas between them."""
        history = cls(messages=(), leaf_id=leaf_id, tokens=tokens, more=more)
        history._written = written
        return history

    def with_prompt(self, contexts: ContextBlocks | None) -> "WrittenHistory":
        """The same, with the frozen prompt of the context blocks if they were asked for."""
        return self.model_copy(update={"system_prompt": contexts.system_prompt}) if contexts else self

    def to_json(self) -> bytes:
        """The answer as it goes over the bus."""
        head, _, tail = super().model_dump_json(exclude_none=True).encode().partition(b'"messages":[]')
        return b"".join((head, b'"messages":[', self._written, b"]", tail))

    def model_dump_json(self, **options: Any) -> str:
        """The same as text, whatever the options."""
        return self.to_json().decode()


def summary_message(overlay: Overlay, parent_id: str | None) -> StoredMessage:
    """The system message that stands for a summarised range."""
    text = f"Summary of the earlier part of this conversation, which is not shown:\n\n{overlay.summary}"
    return StoredMessage(
        id=f"summary:{overlay.to_id}"[:128],
        parent_id=parent_id,
        role="system",
        parts=({"type": "text", "text": text},),
        metadata={"summary": {"from_id": overlay.from_id, "to_id": overlay.to_id}},
        tokens=overlay.tokens,
    )


def between(work: Work, session: Row[Any], end: Any, above: int, upto: int, *columns: str) -> Select[Any]:
    """The messages of the path to `end` whose depth is over `above` and at most `upto`."""
    ranges = work.path(session, end)
    query = work.owner.select(*(MESSAGES.c[name] for name in columns)).where(MESSAGES.c.session == session.number)
    return query.where(work.on(ranges, MESSAGES.c.branch, MESSAGES.c.depth), MESSAGES.c.depth > above, MESSAGES.c.depth <= upto)


@dataclass(frozen=True)
class Span:
    """What is read of a path: depths over `above` and at most `upto`, where the path has `bytes_upto` bytes."""

    above: int
    upto: int
    bytes_upto: int


_FEW_RANGES = 8
_LINE = (
    SOMEONE.select(MESSAGES.c.body)
    .where(MESSAGES.c.session == bindparam("the_session"), MESSAGES.c.branch == bindparam("line"))
    .where(
        MESSAGES.c.depth > bindparam("above"),
        MESSAGES.c.depth <= bindparam("upto"),
        MESSAGES.c.path_bytes - MESSAGES.c.size >= bindparam("over"),
    )
    .order_by(MESSAGES.c.depth)
    .subquery()
)
_RANGE = Compiled(SOMEONE.joined(_LINE.c.body))
_TOGETHER = 1_000
"""Messages that are joined in one go: longer texts are copied too often, in the database and in its driver."""


class Histories:
    """Reads paths."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._contexts = Contexts(database)

    async def read(self, question: ReadHistory) -> WrittenHistory:
        """The path, the newest 6 MB of it at most, and the context prompt if blocks are defined. Raises NotFoundError, OverLimitError."""
        async with self._database.reading() as connection:
            work = Work(connection, Owner.of(question))
            session = await work.session(question.session_id)
            known = await as_it_is(work, session, question.define) if question.define is not None else None
            if known is not None or question.define is None:
                return (await self._path(work, session, question)).with_prompt(known)
        owner = {"tenant": question.tenant, "user": question.user}
        known = await self._contexts.written(ReadContexts(**owner, session_id=question.session_id, define=question.define))
        async with self._database.reading() as connection:
            work = Work(connection, Owner.of(question))
            session = await work.session(question.session_id)
            return (await self._path(work, session, question)).with_prompt(known)

    async def _path(self, work: Work, session: Row[Any], question: ReadHistory) -> WrittenHistory:
        leaf_id = question.leaf_id or session.leaf_id
        if leaf_id is None:
            return WrittenHistory.of(b"", None, 0, more=False)
        leaf = await work.message(session, leaf_id)
        upto, bytes_upto = leaf.depth, leaf.path_bytes
        if question.before_id is not None:
            before = await self._before(work, session, leaf, question.before_id)
            upto, bytes_upto = before.depth - 1, before.path_bytes - before.size
        above = max(0, upto - question.limit) if question.limit is not None else 0
        span = Span(above, upto, bytes_upto)
        overlays = [o for o in await on_path(work, session, leaf) if above < o.to_depth <= upto] if question.compacted else []
        tokens = leaf.path_tokens - sum(o.covered_tokens - o.tokens for o in overlays)
        masks = question.compacted and tokens > question.mask_over_tokens
        if not overlays and not masks:
            written, first = await self._written(work, session, leaf, span)
            return WrittenHistory.of(written, leaf_id, tokens, more=first > 1)
        bodies = _with_summaries(await self._rows(work, session, leaf, span, overlays), overlays)
        if masks:
            bodies = _masked(bodies, mask_until(leaf.depth))
        more = bool(bodies) and bodies[0][0] > 1
        return WrittenHistory.of(_joined(body for _, body in bodies), leaf_id, tokens, more=more)

    async def _written(self, work: Work, session: Row[Any], leaf: Row[Any], span: "Span") -> tuple[bytes, int]:
        """The messages as one JSON, joined by the database in the order of its index, and the depth of the first of them."""
        ranges = await work.ranges(session, leaf)
        if len(ranges) > _FEW_RANGES:
            rows = await self._rows(work, session, leaf, span, ())
            return _joined(row.body for row in rows), rows[0].depth if rows else 1
        parts: list[Any] = []
        over, above = span.bytes_upto - PATH_BYTES, span.above
        for branch, upto in ranges:
            while above < min(upto, span.upto):
                upto_here = min(above + _TOGETHER, upto, span.upto)
                bound = work.owner.bound(the_session=session.number, line=branch, above=above, upto=upto_here, over=over)
                parts += await _RANGE.rows(work.connection, bound)
                above = upto_here
        return b",".join(part.joined for part in parts if part.count), span.upto - sum(part.count for part in parts) + 1

    async def _before(self, work: Work, session: Row[Any], leaf: Row[Any], before_id: str) -> Row[Any]:
        before = await work.message(session, before_id)
        query = between(work, session, leaf, before.depth - 1, before.depth, "message_id")
        if (await work.connection.execute(query)).scalar_one_or_none() != before_id:
            raise NotFoundError(f"message {before_id} is not on the path to {leaf.message_id}")
        return before

    async def _rows(self, work: Work, session: Row[Any], leaf: Row[Any], span: "Span", overlays: Sequence[Overlay]) -> list[Row[Any]]:
        query = between(work, session, leaf, span.above, span.upto, "depth", "body")
        query = query.where(MESSAGES.c.path_bytes - MESSAGES.c.size >= span.bytes_upto - PATH_BYTES)
        for overlay in overlays:
            query = query.where(~MESSAGES.c.depth.between(overlay.from_depth, overlay.to_depth))
        return sorted((await work.connection.execute(query)).all(), key=lambda row: int(row.depth))


def _joined(bodies: Iterable[str]) -> bytes:
    return ",".join(bodies).encode()


def _with_summaries(rows: Sequence[Row[Any]], overlays: Sequence[Overlay]) -> list[tuple[int, str]]:
    bodies = [(int(row.depth), str(row.body)) for row in rows]
    at = dict(bodies) if overlays else {}
    for overlay in overlays:
        above = at.get(overlay.from_depth - 1)
        summary = summary_message(overlay, parsed([above])[0].id if above else None)
        bodies.append((overlay.from_depth, summary.model_dump_json(exclude_none=True)))
    return sorted(bodies, key=lambda item: item[0]) if overlays else bodies


def _masked(bodies: Sequence[tuple[int, str]], until: int) -> list[tuple[int, str]]:
    messages = parsed(body for depth, body in bodies if depth <= until)
    shortened = iter([masked(m) for m in messages])
    return [(d, next(shortened).model_dump_json(exclude_none=True)) if d <= until else (d, body) for d, body in bodies]
