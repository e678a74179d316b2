"""Appending to a tree: idempotent by message id, under a lock on the session."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from sqlalchemy import bindparam, exists
from sqlalchemy.engine import Row

from libs.contracts.conversation import ROOT, Appended, AppendMessages, StoredMessage
from libs.contracts.envelope import Usage
from libs.contracts.text import clean
from services.session_store.compiled import Compiled, Listed
from services.session_store.conversations import content
from services.session_store.conversations.content import parsed
from services.session_store.conversations.overlays import saved_tokens
from services.session_store.conversations.sessions import instant, later
from services.session_store.conversations.tree import Fresh, Place, Placed, place
from services.session_store.conversations.work import Work
from services.session_store.domain import microseconds
from services.session_store.errors import ConflictError, MessageTooLargeError, ParentError
from services.session_store.owned import SOMEONE
from services.session_store.search.index import MESSAGE_SEARCH, Index
from services.session_store.search.words import indexed
from services.session_store.tables import BRANCHES, MESSAGES, SESSIONS

_IN_THREAD_CHARS = 50_000
_NEXT = MESSAGES.alias("next_one")
_CONTINUED = exists().where(
    SOMEONE.rows(_NEXT), _NEXT.c.session == MESSAGES.c.session, _NEXT.c.branch == MESSAGES.c.branch, _NEXT.c.depth == MESSAGES.c.depth + 1
)
_COLUMNS = ("number", "message_id", "parent_id", "branch", "depth", "tokens", "size", "path_tokens", "path_bytes", "body")
_IN_SESSION = (
    SOMEONE.select(*(MESSAGES.c[name] for name in _COLUMNS))
    .add_columns(_CONTINUED.label("continued"))
    .where(MESSAGES.c.session == bindparam("the_session"))
)
_KNOWN = Listed(_IN_SESSION, MESSAGES.c.message_id, 3, 202)
STORED = tuple(column.name for column in MESSAGES.c if column.name != "number")
"""The columns of a new message."""
_INSERT = Compiled(SOMEONE.insert(MESSAGES).returning(MESSAGES.c.number, MESSAGES.c.message_id), STORED)
_FORK = Compiled(SOMEONE.insert(BRANCHES), [column.name for column in BRANCHES.c])
_COUNTED = ("messages", "branches", "leaf_id", "updated_us", "input_tokens", "output_tokens", "cached_tokens", "cost_usd", "calls", "model")
COUNT = (
    SOMEONE.update(SESSIONS)
    .where(SESSIONS.c.number == bindparam("the_session"))
    .values({name: bindparam(f"new_{name}") for name in _COUNTED})
)
"""Writes what `Append.counters` gives."""
_COUNT = Compiled(COUNT)


@dataclass(frozen=True)
class Ready:
    """A message that is cleaned, bounded, counted and cut into words; its parent is not known before the transaction."""

    message: StoredMessage
    tokens: int
    excerpt: str
    words: str

    def same_as(self, stored: StoredMessage) -> bool:
        """Whether it has the content of a stored one."""
        mine = self.message
        return (mine.role, mine.parts, mine.metadata) == (stored.role, stored.parts, stored.metadata)


def _ready(message: StoredMessage) -> Ready:
    try:
        parts, metadata = tuple(clean(message.parts)), clean(message.metadata)
    except ValueError as error:
        raise MessageTooLargeError(f"message {message.id} is {error}") from error
    cleaned = message.model_copy(update={"parts": parts, "metadata": metadata, "created_at": None})
    small, _ = content.bounded(cleaned)
    text = content.plain_text(small.parts)
    tokens = message.tokens if message.tokens is not None else content.message_tokens(small.parts)
    final = small.model_copy(update={"tokens": tokens, "created_at": message.created_at})
    return Ready(final, tokens, content.excerpt(text), indexed(text))


async def ready(messages: Sequence[StoredMessage]) -> list[Ready]:
    """Prepare messages outside of any transaction; long ones beside the event loop. Raises MessageTooLargeError."""

    def work() -> list[Ready]:
        return [_ready(m) for m in messages]

    return await asyncio.to_thread(work) if sum(len(str(m.parts)) for m in messages) > _IN_THREAD_CHARS else work()


@dataclass(frozen=True)
class Change:
    """What an append does: new messages with their parents, places and JSON, what it replaces, and the leaf then."""

    stored: Mapping[str, Ready]
    parents: Mapping[str, str | None]
    bodies: Mapping[str, str]
    placed: Placed
    replaced: Sequence[Ready]
    leaf: str | None


class Append:
    """One append inside its transaction, on a locked session."""

    def __init__(self, work: Work, session: Row[Any], question: AppendMessages) -> None:
        self._work = work
        self._session = session
        self._question = question
        self._now = later(session)

    async def run(self, batch: Sequence[Ready]) -> Appended:
        """Store what is new, replace what may be replaced, move the leaf, count."""
        known = await self._known(batch)
        change = self._change(batch, known, await self._end(batch[0].message.id, known))
        bodies = await self._write(change, known) if change.stored or change.replaced else {}
        answer = parsed(bodies.get(i.message.id) or known[i.message.id].body for i in batch)
        placed = change.placed.places.get(str(change.leaf)) if not change.replaced else None
        end = placed or await self._work.message(self._session, str(change.leaf))
        context = end.path_tokens - await saved_tokens(self._work, self._session, end)
        return Appended(messages=answer, leaf_id=str(change.leaf), context_tokens=context)

    def _change(self, batch: Sequence[Ready], known: Mapping[str, Row[Any]], end: str | None) -> Change:
        stored: dict[str, Ready] = {}
        replaced: list[Ready] = []
        parents: dict[str, str | None] = {}
        before = end
        for item in batch:
            message = item.message
            if message.id in stored:
                if not item.same_as(stored[message.id].message):
                    raise ConflictError(f"message {message.id} is twice in the list, with different content")
            elif message.id in known:
                if self._replaces(item, parsed([known[message.id].body])[0]):
                    replaced.append(item)
            else:
                parents[message.id] = self._parent(message, before, known, stored)
                stored[message.id] = item
            before = message.id
        bodies = {i: self._body(item, parents[i]) for i, item in stored.items()}
        fresh = [Fresh(i, parents[i], item.tokens, len(bodies[i].encode())) for i, item in stored.items()]
        places = {r.message_id: Place(r.branch, r.depth, r.path_tokens, r.path_bytes, bool(r.continued)) for r in known.values()}
        leaf = next((i.message.id for i in reversed(batch) if i.message.id in stored), self._session.leaf_id)
        return Change(stored, parents, bodies, place(fresh, places, self._session.branches), replaced, leaf)

    async def _known(self, batch: Sequence[Ready]) -> dict[str, Row[Any]]:
        ids = {i.message.id for i in batch} | {i.message.parent_id for i in batch if i.message.parent_id}
        ids |= {self._session.leaf_id, self._question.on_branch_of} - {None}
        bound = self._work.owner.bound(the_session=self._session.number)
        return {row.message_id: row for row in await _KNOWN.rows(self._work.connection, sorted(ids), bound)}

    async def _end(self, first: str, known: Mapping[str, Row[Any]]) -> str | None:
        """What the first message follows when it is new and names no parent."""
        leaf_id, wanted = self._session.leaf_id, self._question.on_branch_of
        if wanted is None or wanted == leaf_id or first in known:
            return cast("str | None", leaf_id)
        leaf, there = known.get(str(leaf_id)), known.get(wanted)
        if leaf is None or there is None:
            return wanted
        ranges = await self._work.ranges(self._session, leaf)
        held = any(branch == there.branch and there.depth <= upto for branch, upto in ranges)
        return str(leaf_id) if held else wanted

    async def _write(self, change: Change, known: Mapping[str, Row[Any]]) -> dict[str, str]:
        """Returns the JSON of what was stored and replaced, by id."""
        bodies = dict(change.bodies)
        if change.stored:
            await self._insert(change)
        for item in change.replaced:
            bodies[item.message.id] = await self._replace(item, parsed([known[item.message.id].body])[0])
        await _COUNT.rows(self._work.connection, self.counters(change))
        return bodies

    def _parent(self, message: StoredMessage, before: str | None, known: Mapping[str, Row[Any]], stored: Mapping[str, Ready]) -> str | None:
        if message.parent_id == ROOT:
            return None
        parent = message.parent_id if message.parent_id is not None else before
        if parent is not None and parent not in known and parent not in stored:
            raise ParentError(f"message {message.id} names the parent {parent}, which is not in conversation {self._question.session_id}")
        return parent

    def _replaces(self, item: Ready, there: StoredMessage) -> bool:
        message = item.message
        if message.parent_id is not None and (message.parent_id or None) != there.parent_id:
            raise ConflictError(f"message {message.id} is there under another parent: use a new id")
        if item.same_as(there):
            return False
        if not self._question.replace:
            raise ConflictError(f"message {message.id} is there with other content: use a new id, or say that it replaces the old one")
        if message.role != there.role:
            raise ConflictError(f"message {message.id} is there with the role {there.role}: a replacement keeps the role")
        return True

    def _body(self, item: Ready, parent: str | None) -> str:
        created = item.message.created_at or instant(self._now)
        return item.message.model_copy(update={"parent_id": parent, "created_at": created}).model_dump_json(exclude_none=True)

    async def _insert(self, change: Change) -> None:
        owner, connection, session = self._work.owner, self._work.connection, self._session.number
        rows = [self.row(change, message_id) for message_id in change.stored]
        inserted = await _INSERT.rows(connection, rows[0]) if len(rows) == 1 else (await connection.execute(_INSERT.statement, rows)).all()
        numbers = {r.message_id: r.number for r in inserted}
        words = [(numbers[i], item.words) for i, item in change.stored.items() if item.words]
        await Index(connection, MESSAGE_SEARCH).add(words, owner.scope, f"s{session}")
        for fork in change.placed.forks:
            await _FORK.rows(connection, owner.row(session=session, **vars(fork)))

    def row(self, change: Change, message_id: str) -> dict[str, Any]:
        """The row of a new message: the columns `STORED`."""
        item, at, body = change.stored[message_id], change.placed.places[message_id], change.bodies[message_id]
        created = item.message.created_at
        return self._work.owner.row(
            session=self._session.number,
            message_id=message_id,
            parent_id=change.parents[message_id],
            branch=at.branch,
            depth=at.depth,
            role=item.message.role,
            body=body,
            excerpt=item.excerpt,
            tokens=item.tokens,
            size=len(body.encode()),
            path_tokens=at.path_tokens,
            path_bytes=at.path_bytes,
            created_us=microseconds(created) if created else self._now,
        )

    async def _replace(self, item: Ready, there: StoredMessage) -> str:
        owner, connection = self._work.owner, self._work.connection
        row = await self._work.message(self._session, item.message.id)
        body = self._body(item, there.parent_id) if item.message.created_at else self._body_of(item, there)
        size = len(body.encode())
        mine = MESSAGES.c.number == row.number
        await connection.execute(owner.update(MESSAGES).where(mine).values(body=body, excerpt=item.excerpt, tokens=item.tokens, size=size))
        ranges = self._work.subtree(self._session, row)
        below = exists().where(self._work.on(ranges, MESSAGES.c.branch, MESSAGES.c.depth))
        sums = owner.update(MESSAGES).where(MESSAGES.c.session == self._session.number, below)
        await connection.execute(
            sums.values(
                path_tokens=MESSAGES.c.path_tokens + (item.tokens - row.tokens), path_bytes=MESSAGES.c.path_bytes + (size - row.size)
            )
        )
        index = Index(connection, MESSAGE_SEARCH)
        await index.remove([row.number])
        await index.add([(row.number, item.words)] if item.words else [], owner.scope, f"s{self._session.number}")
        return body

    def _body_of(self, item: Ready, there: StoredMessage) -> str:
        kept = item.message.model_copy(update={"parent_id": there.parent_id, "created_at": there.created_at})
        return kept.model_dump_json(exclude_none=True)

    def counters(self, change: Change) -> dict[str, Any]:
        """The parameters of `COUNT`."""
        was, usage = self._session, self._question.usage or Usage()
        values: dict[str, Any] = {
            "messages": was.messages + len(change.stored),
            "branches": change.placed.branches,
            "leaf_id": change.leaf,
            "updated_us": self._now,
            "input_tokens": was.input_tokens + usage.input_tokens,
            "output_tokens": was.output_tokens + usage.output_tokens,
            "cached_tokens": was.cached_tokens + usage.cached_tokens,
            "cost_usd": round(was.cost_usd + usage.cost_usd, 9),
            "calls": was.calls + usage.calls,
            "model": self._question.model if self._question.model is not None else was.model,
        }
        return self._work.owner.bound(the_session=was.number, **{f"new_{name}": value for name, value in values.items()})
