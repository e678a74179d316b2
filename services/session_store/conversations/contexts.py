"""Context blocks and the frozen system prompt of a session."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import bindparam
from sqlalchemy.engine import Row

from libs.contracts.conversation import (
    ContextBlock,
    ContextBlocks,
    ContextEntry,
    LoadContext,
    ReadContexts,
    SearchContext,
    SearchHit,
    SearchResult,
    SetContext,
)
from libs.contracts.text import clean_text
from services.session_store.compiled import Compiled
from services.session_store.conversations.prompt import ENTRY_KINDS, counted, render
from services.session_store.conversations.sessions import instant, made, now_us
from services.session_store.conversations.work import Work
from services.session_store.database import Database
from services.session_store.errors import NotFoundError, ReadonlyError, WrongKindError
from services.session_store.owned import SOMEONE, Owner
from services.session_store.search.index import ENTRY_SEARCH, Index
from services.session_store.search.ranking import marked
from services.session_store.search.words import indexed, loosened, parse
from services.session_store.tables import CONTEXTS, ENTRIES, SESSIONS

_FIELDS = ("label", "description", "kind", "content", "max_tokens")
_OF_SESSION = Compiled(
    SOMEONE.select(*(CONTEXTS.c[name] for name in _FIELDS))
    .where(CONTEXTS.c.session == bindparam("the_session"))
    .order_by(CONTEXTS.c.position, CONTEXTS.c.label)
)
_FREEZE = Compiled(
    SOMEONE.update(SESSIONS).where(SESSIONS.c.number == bindparam("the_session")).values(system_prompt=bindparam("new_prompt"))
)


def label_scope(label: str) -> str:
    """A block's label as letters and digits, for the full-text index."""
    return "l" + label.encode().hex()


async def as_it_is(work: Work, session: Row[Any], define: Sequence[ContextBlock]) -> ContextBlocks | None:
    """The blocks and the frozen prompt; None when one of `define` is to be added first, or the prompt to be made."""
    if session.system_prompt is None:
        return None
    blocks = await _blocks(work, session)
    return None if _new(define, blocks) else ContextBlocks(blocks=tuple(blocks), system_prompt=session.system_prompt)


def _new(define: Sequence[ContextBlock], there: Sequence[ContextBlock]) -> list[ContextBlock]:
    labels = {block.label for block in there}
    return [block for block in define if block.label not in labels]


async def _blocks(work: Work, session: Row[Any]) -> list[ContextBlock]:
    rows = await _OF_SESSION.rows(work.connection, work.owner.bound(the_session=session.number))
    return [counted(ContextBlock(**dict(zip(_FIELDS, row, strict=True)))) for row in rows]


async def _add(work: Work, session: Row[Any], position: int, blocks: Sequence[ContextBlock]) -> list[ContextBlock]:
    cleaned = [b.model_copy(update={"content": clean_text(b.content), "description": clean_text(b.description)}) for b in blocks]
    final = [counted(block) for block in cleaned]
    rows = [
        work.owner.row(session=session.number, position=at, **{name: getattr(block, name) for name in _FIELDS})
        for at, block in enumerate(final, start=position)
    ]
    if rows:
        await work.connection.execute(work.owner.insert(CONTEXTS), rows)
    return final


async def _keys(work: Work, session: Row[Any], blocks: Sequence[ContextBlock]) -> dict[str, Sequence[str]]:
    keys: dict[str, Sequence[str]] = {}
    if any(block.kind in ENTRY_KINDS for block in blocks):
        query = work.owner.select(ENTRIES.c.label, ENTRIES.c.entry_key).where(ENTRIES.c.session == session.number)
        for label, key in await work.connection.execute(query.order_by(ENTRIES.c.number)):
            keys[label] = (*keys.get(label, ()), key)
    return keys


class Contexts:
    """Every query on context blocks."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def read(self, question: ReadContexts) -> ContextBlocks:
        """The blocks, after those of `define` that are new were added, and the frozen prompt. Raises OverLimitError, NotFoundError."""
        known = None if question.refresh else await self._as_it_is(question)
        return known or await self.written(question)

    async def written(self, question: ReadContexts) -> ContextBlocks:
        """The same when something is to be written for it. Raises OverLimitError, NotFoundError."""
        async with self._database.writing() as connection:
            work = Work(connection, Owner.of(question))
            if question.define:
                session = await made(work, question.session_id, agent="assistant", name="")
            else:
                session = await work.session(question.session_id, lock=True)
            blocks = await _blocks(work, session)
            blocks += await _add(work, session, len(blocks), _new(question.define, blocks))
            prompt = session.system_prompt
            if prompt is None or question.refresh:
                prompt = render(blocks, await _keys(work, session, blocks))
                await _FREEZE.rows(connection, work.owner.bound(the_session=session.number, new_prompt=prompt))
        return ContextBlocks(blocks=tuple(blocks), system_prompt=prompt)

    async def _as_it_is(self, question: ReadContexts) -> ContextBlocks | None:
        """The answer when nothing is to be written for it."""
        async with self._database.reading() as connection:
            work = Work(connection, Owner.of(question))
            try:
                session = await work.session(question.session_id)
            except NotFoundError:
                return None
            return await as_it_is(work, session, question.define)

    async def set(self, question: SetContext) -> ContextBlock:
        """Write a block or an entry of one. Raises NotFoundError, ReadonlyError, OverLimitError, WrongKindError."""
        async with self._database.writing() as connection:
            work = Work(connection, Owner.of(question))
            session = await work.session(question.session_id, lock=True)
            block = await self._block(work, session, question.label)
            if block.kind == "readonly":
                raise ReadonlyError(f"block {block.label} is readonly: write to another one")
            if question.key is not None:
                await self._set_entry(work, session, block, clean_text(question.key), clean_text(question.content), question.action)
                return block
            content = clean_text(question.content)
            if question.action == "append" and block.content:
                content = f"{block.content}\n{content}"
            changed = counted(block.model_copy(update={"content": content}))
            mine = (CONTEXTS.c.session == session.number, CONTEXTS.c.label == block.label)
            await connection.execute(work.owner.update(CONTEXTS).where(*mine).values(content=content))
            return changed

    async def search(self, question: SearchContext) -> SearchResult:
        """The entries of a searchable block that hold words of the query. Raises NotFoundError, WrongKindError, QueryError."""
        clauses = parse(question.query)
        async with self._database.reading() as connection:
            work = Work(connection, Owner.of(question))
            session = await work.session(question.session_id)
            block = await self._block(work, session, question.label)
            if block.kind != "searchable":
                raise WrongKindError(f"block {block.label} is {block.kind}: only a searchable block is searched")
            scope = f"s{session.number}{label_scope(block.label)}"
            index = Index(connection, ENTRY_SEARCH)
            found = dict(await index.search(clauses, work.owner.scope, scope, limit=question.limit, any_of=True))
            columns = (ENTRIES.c.number, ENTRIES.c.entry_key, ENTRIES.c.content, ENTRIES.c.created_us)
            rows = (await connection.execute(work.owner.select(*columns).where(ENTRIES.c.number.in_(list(found))))).all()
        hits = [
            SearchHit(
                session_id=session.session_id,
                session_name=session.name,
                message_id=row.entry_key,
                role="system",
                excerpt=marked(row.content, loosened(clauses)),
                score=round(found[row.number], 4),
                created_at=instant(row.created_us),
            )
            for row in sorted(rows, key=lambda r: (-found[r.number], -r.number))
        ]
        return SearchResult(hits=tuple(hits))

    async def load(self, question: LoadContext) -> ContextEntry:
        """The whole text of an entry. Raises NotFoundError."""
        async with self._database.reading() as connection:
            work = Work(connection, Owner.of(question))
            session = await work.session(question.session_id)
            row = await self._entry(work, session, question.label, clean_text(question.key))
        if row is None:
            raise NotFoundError(f"block {question.label} has no entry {question.key}")
        return ContextEntry(label=question.label, key=row.entry_key, content=row.content)

    async def _block(self, work: Work, session: Row[Any], label: str) -> ContextBlock:
        blocks = await _blocks(work, session)
        found = next((b for b in blocks if b.label == label), None)
        if found is None:
            names = ", ".join(b.label for b in blocks) or "none"
            raise NotFoundError(f"there is no context block {label}; there are: {names}")
        return found

    async def _entry(self, work: Work, session: Row[Any], label: str, key: str) -> Row[Any] | None:
        mine = (ENTRIES.c.session == session.number, ENTRIES.c.label == label, ENTRIES.c.entry_key == key)
        query = work.owner.select(ENTRIES.c.number, ENTRIES.c.entry_key, ENTRIES.c.content).where(*mine)
        row: Row[Any] | None = (await work.connection.execute(query)).first()
        return row

    async def _set_entry(self, work: Work, session: Row[Any], block: ContextBlock, key: str, content: str, action: str) -> None:
        if block.kind not in ENTRY_KINDS:
            raise WrongKindError(f"block {block.label} is {block.kind}: it has no entries, write it without a key")
        there = await self._entry(work, session, block.label, key)
        if there is not None and action == "append":
            content = f"{there.content}\n{content}"
        index = Index(work.connection, ENTRY_SEARCH)
        if there is None:
            row = work.owner.row(session=session.number, label=block.label, entry_key=key, content=content, created_us=now_us())
            query = work.owner.insert(ENTRIES).returning(ENTRIES.c.number)
            number = (await work.connection.execute(query.values(row))).scalar_one()
        else:
            number = there.number
            await index.remove([number])
            await work.connection.execute(work.owner.update(ENTRIES).where(ENTRIES.c.number == number).values(content=content))
        await index.add([(number, indexed(f"{key}\n{content}"))], work.owner.scope, f"s{session.number}{label_scope(block.label)}")
