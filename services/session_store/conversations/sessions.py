"""Conversations as a whole: make, read, list, rename, switch, delete."""

from datetime import UTC, datetime
from typing import Any

from sqlalchemy.engine import Row

from libs.contracts.conversation import (
    CreateSession,
    DeleteSession,
    ListSessions,
    ReadSession,
    SessionDescription,
    SessionPage,
    UpdateSession,
)
from libs.contracts.envelope import Usage
from libs.contracts.text import clean_text
from services.session_store.compiled import Compiled
from services.session_store.conversations.work import Work, before
from services.session_store.database import Database
from services.session_store.domain import decode_cursor, encode_cursor, microseconds
from services.session_store.errors import CursorError, NotFoundError
from services.session_store.owned import SOMEONE, Owner
from services.session_store.search.index import ENTRY_SEARCH, MESSAGE_SEARCH, Index
from services.session_store.tables import BRANCHES, COMPACTIONS, CONTEXTS, ENTRIES, MESSAGES, SESSIONS

_COUNTERS = dict.fromkeys(("messages", "branches", "summaries", "input_tokens", "output_tokens", "cached_tokens", "calls"), 0)
_NEW = ("tenant", "owner", "session_id", "agent", "name", "parent_session_id", "created_us", "updated_us", "cost_usd", *_COUNTERS)
_MAKE = {dialect: Compiled(SOMEONE.insert_new(SESSIONS, dialect), _NEW) for dialect in ("sqlite", "postgresql")}


def now_us() -> int:
    """Microseconds since the epoch."""
    return microseconds(datetime.now(UTC))


def later(session: Row[Any]) -> int:
    """Microseconds since the epoch, after the session's last change: no two states of a session have the same `updated_us`."""
    return max(now_us(), int(session.updated_us) + 1)


def instant(us: int) -> datetime:
    """The UTC time of `now_us`."""
    return datetime.fromtimestamp(us // 1_000_000, UTC).replace(microsecond=us % 1_000_000)


def described(row: Row[Any]) -> SessionDescription:
    """A row as it is answered."""
    usage = Usage(
        input_tokens=row.input_tokens,
        output_tokens=row.output_tokens,
        cached_tokens=row.cached_tokens,
        cost_usd=row.cost_usd,
        calls=row.calls,
    )
    return SessionDescription(
        session_id=row.session_id,
        agent=row.agent,
        name=row.name,
        parent_session_id=row.parent_session_id,
        leaf_id=row.leaf_id,
        created_at=instant(row.created_us),
        updated_at=instant(row.updated_us),
        messages=row.messages,
        usage=usage,
        model=row.model,
    )


async def made(work: Work, session_id: str, *, agent: str, name: str, parent_session_id: str | None = None) -> Row[Any]:
    """The session, made when it is new, and locked."""
    try:
        return await work.session(session_id, lock=True)
    except NotFoundError:
        now = now_us()
    said = {"session_id": session_id, "agent": agent, "name": name, "parent_session_id": parent_session_id}
    row = work.owner.row(created_us=now, updated_us=now, cost_usd=0.0, **_COUNTERS, **said)
    await _MAKE[work.connection.dialect.name].rows(work.connection, row)
    return await work.session(session_id, lock=True)


class Sessions:
    """Every query on conversations as a whole."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def create(self, question: CreateSession) -> SessionDescription:
        """Make a session; one that exists is the answer."""
        async with self._database.writing() as connection:
            work = Work(connection, Owner.of(question))
            return described(await made(work, question.session_id, agent=question.agent, name=clean_text(question.name)))

    async def read(self, question: ReadSession) -> SessionDescription:
        """One session. Raises NotFoundError."""
        async with self._database.reading() as connection:
            return described(await Work(connection, Owner.of(question)).session(question.session_id))

    async def page(self, question: ListSessions) -> SessionPage:
        """A user's sessions, newest change first. Raises CursorError."""
        query = Owner.of(question).select(*SESSIONS.c)
        if question.cursor is not None:
            updated, number = decode_cursor(question.cursor)
            if not number.isdecimal():
                raise CursorError
            query = query.where(before(SESSIONS.c.updated_us, SESSIONS.c.number, (updated, int(number))))
        query = query.order_by(SESSIONS.c.updated_us.desc(), SESSIONS.c.number.desc()).limit(question.limit + 1)
        async with self._database.reading() as connection:
            rows = (await connection.execute(query)).all()
        shown = rows[: question.limit]
        more = encode_cursor((shown[-1].updated_us, str(shown[-1].number))) if len(rows) > question.limit else None
        return SessionPage(sessions=tuple(map(described, shown)), next_cursor=more)

    async def update(self, question: UpdateSession) -> SessionDescription:
        """Rename, or switch the active branch. Raises NotFoundError."""
        async with self._database.writing() as connection:
            work = Work(connection, Owner.of(question))
            session = await work.session(question.session_id, lock=True)
            values: dict[str, Any] = {"updated_us": later(session)}
            if question.name is not None:
                values["name"] = clean_text(question.name)
            if question.leaf_id is not None:
                values["leaf_id"] = await work.newest_below(session, await work.message(session, question.leaf_id))
            await work.update_session(session, **values)
            return described(await work.session(question.session_id))

    async def delete(self, question: DeleteSession) -> None:
        """Remove a session with all that belongs to it, or with `messages_only` empty it. Raises NotFoundError."""
        async with self._database.writing() as connection:
            work = Work(connection, Owner.of(question))
            session = await work.session(question.session_id, lock=True)
            await _unindex(work, session, MESSAGES, MESSAGE_SEARCH)
            for table in (MESSAGES, BRANCHES, COMPACTIONS):
                await connection.execute(work.owner.delete(table).where(table.c.session == session.number))
            if question.messages_only:
                await work.update_session(session, leaf_id=None, messages=0, branches=0, summaries=0, updated_us=later(session))
                return
            await _unindex(work, session, ENTRIES, ENTRY_SEARCH)
            for table in (CONTEXTS, ENTRIES):
                await connection.execute(work.owner.delete(table).where(table.c.session == session.number))
            await connection.execute(work.owner.delete(SESSIONS).where(SESSIONS.c.number == session.number))


async def _unindex(work: Work, session: Row[Any], table: Any, search: str) -> None:
    numbers = (await work.connection.execute(work.owner.select(table.c.number).where(table.c.session == session.number))).scalars().all()
    await Index(work.connection, search).remove(numbers)
