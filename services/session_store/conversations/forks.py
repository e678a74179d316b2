"""A path copied into a session of its own: messages, summaries, context blocks. The original stays as it is."""

from typing import Any

from sqlalchemy import Table
from sqlalchemy.engine import Row

from libs.contracts.conversation import ForkSession, SessionDescription
from libs.contracts.text import clean_text
from services.session_store.conversations.contexts import label_scope
from services.session_store.conversations.history import between
from services.session_store.conversations.overlays import on_path
from services.session_store.conversations.sessions import described, later, made, now_us
from services.session_store.conversations.work import Work
from services.session_store.database import Database
from services.session_store.errors import ConflictError
from services.session_store.owned import Owner
from services.session_store.search.index import ENTRY_SEARCH, MESSAGE_SEARCH, Index
from services.session_store.tables import BRANCHES, COMPACTIONS, CONTEXTS, ENTRIES, MESSAGES

_BATCH = 500
_KEPT = ("message_id", "parent_id", "depth", "role", "body", "excerpt", "tokens", "size", "path_tokens", "path_bytes", "created_us")


class Forks:
    """Forks sessions."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def fork(self, question: ForkSession) -> SessionDescription:
        """The new session; asked twice, it is made once. Raises NotFoundError, ConflictError."""
        async with self._database.writing() as connection:
            work = Work(connection, Owner.of(question))
            source = await work.session(question.session_id)
            end = await work.message(source, question.at_message_id)
            name = clean_text(question.name) or source.name
            new = await made(work, question.new_session_id, agent=source.agent, name=name, parent_session_id=source.session_id)
            if new.messages:
                if new.parent_session_id == source.session_id and new.leaf_id == end.message_id:
                    return described(new)
                raise ConflictError(f"there is a conversation {question.new_session_id} already: fork into a new id")
            if new.number == source.number or new.parent_session_id != source.session_id:
                raise ConflictError(f"there is a conversation {question.new_session_id} already: fork into a new id")
            await self._messages(work, source, new, end)
            await self._summaries(work, source, new, end)
            await self._contexts(work, source, new)
            values = {"messages": end.depth, "branches": 1, "leaf_id": end.message_id, "model": source.model, "updated_us": later(new)}
            await work.update_session(new, **values, system_prompt=source.system_prompt)
            return described(await work.session(question.new_session_id))

    async def _messages(self, work: Work, source: Row[Any], new: Row[Any], end: Row[Any]) -> None:
        owner, connection = work.owner, work.connection
        branch = owner.row(session=new.number, branch=1, parent_branch=None, parent_depth=None)
        await connection.execute(owner.insert(BRANCHES), [branch])
        index = Index(connection, MESSAGE_SEARCH)
        for above in range(0, end.depth, _BATCH):
            rows = (await connection.execute(between(work, source, end, above, min(above + _BATCH, end.depth), "number", *_KEPT))).all()
            copies = [owner.row(session=new.number, branch=1, **{name: getattr(r, name) for name in _KEPT}) for r in rows]
            query = owner.insert(MESSAGES).returning(MESSAGES.c.number, MESSAGES.c.message_id)
            numbers = {r.message_id: r.number for r in await connection.execute(query, copies)}
            await index.copy({r.number: numbers[r.message_id] for r in rows}, owner.scope, f"s{new.number}")

    async def _summaries(self, work: Work, source: Row[Any], new: Row[Any], end: Row[Any]) -> None:
        overlays = await on_path(work, source, end)
        names = ("from_id", "to_id", "from_depth", "to_depth", "summary", "tokens", "covered_tokens")
        rows = [
            work.owner.row(session=new.number, from_branch=1, to_branch=1, created_us=now_us(), **{n: getattr(o, n) for n in names})
            for o in overlays
        ]
        if rows:
            await work.connection.execute(work.owner.insert(COMPACTIONS), rows)
            await work.update_session(new, summaries=len(rows))

    async def _contexts(self, work: Work, source: Row[Any], new: Row[Any]) -> None:
        await self._copied(work, CONTEXTS, ("label", "position", "description", "kind", "content", "max_tokens"), source, new)
        await self._copied(work, ENTRIES, ("label", "entry_key", "content", "created_us"), source, new)
        columns = (ENTRIES.c.number, ENTRIES.c.session, ENTRIES.c.label, ENTRIES.c.entry_key)
        query = work.owner.select(*columns).where(ENTRIES.c.session.in_([source.number, new.number]))
        rows = (await work.connection.execute(query)).all()
        numbers = {(r.label, r.entry_key): r.number for r in rows if r.session == new.number}
        for label in sorted({r.label for r in rows}):
            pairs = {r.number: numbers[r.label, r.entry_key] for r in rows if r.session == source.number and r.label == label}
            await Index(work.connection, ENTRY_SEARCH).copy(pairs, work.owner.scope, f"s{new.number}{label_scope(label)}")

    async def _copied(self, work: Work, table: Table, names: tuple[str, ...], source: Row[Any], new: Row[Any]) -> None:
        query = work.owner.select(*(table.c[name] for name in names)).where(table.c.session == source.number)
        rows = [work.owner.row(session=new.number, **row._mapping) for row in await work.connection.execute(query)]
        if rows:
            await work.connection.execute(work.owner.insert(table), rows)
