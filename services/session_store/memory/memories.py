"""What is remembered: keep, recall, list, forget. A profile is a user's, or a user's in one project."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import and_
from sqlalchemy.engine import Row
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.sql.elements import ColumnElement

from libs.contracts.memory import Forget, Ingested, ListMemory, MarkIngested, MemoryCall, MemoryItem, MemoryPage, Recall, Recalled, Remember
from libs.contracts.text import clean_text
from services.session_store.conversations.sessions import instant, now_us
from services.session_store.conversations.work import before
from services.session_store.database import Database
from services.session_store.domain import decode_cursor, encode_cursor
from services.session_store.errors import CursorError, NotFoundError, QueryError
from services.session_store.memory.recall import fuse, item_id, names, topic_key, wrapped
from services.session_store.owned import Owner
from services.session_store.search.index import MEMORY_SEARCH, Index
from services.session_store.search.words import indexed, parse
from services.session_store.tables import INGESTED, MEMORIES

_TOPICS_READ = 5_000


def _item(row: Row[Any]) -> MemoryItem:
    return MemoryItem(
        id=row.item_id,
        kind=row.kind,
        topic=row.topic,
        content=row.content,
        created_at=instant(row.created_us),
        superseded_by=row.superseded_by,
        session_id=row.session_id,
    )


class Profile:
    """One profile's rows inside a transaction."""

    def __init__(self, connection: AsyncConnection, call: MemoryCall) -> None:
        self.connection = connection
        self.owner = Owner.of(call)
        self.project = clean_text(call.project)
        self.index = Index(connection, MEMORY_SEARCH)
        self.scope = f"p{item_id((call.tenant, call.user, self.project), '', None, '')}"

    def mine(self) -> ColumnElement[bool]:
        """The profile's memories."""
        return and_(self.owner.rows(MEMORIES), MEMORIES.c.project == self.project)

    async def rows(self, *where: ColumnElement[bool]) -> Sequence[Row[Any]]:
        """Memories, newest first."""
        query = self.owner.select(*MEMORIES.c).where(self.mine(), *where)
        rows: Sequence[Row[Any]] = (
            await self.connection.execute(query.order_by(MEMORIES.c.created_us.desc(), MEMORIES.c.number.desc()))
        ).all()
        return rows

    async def named(self, query: str) -> list[int]:
        """The numbers of memories that count and whose topic a query names; of the newest 5,000."""
        columns = (MEMORIES.c.number, MEMORIES.c.topic_key)
        rows = self.owner.select(*columns).where(self.mine(), MEMORIES.c.superseded_by.is_(None), MEMORIES.c.topic_key.is_not(None))
        newest = rows.order_by(MEMORIES.c.created_us.desc(), MEMORIES.c.number.desc()).limit(_TOPICS_READ)
        return [number for number, key in await self.connection.execute(newest) if names(query, key)]

    async def change(self, where: ColumnElement[bool], **values: Any) -> None:
        """Update memories."""
        await self.connection.execute(self.owner.update(MEMORIES).where(self.mine(), where).values(**values))


class Memories:
    """Every query on memory."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def remember(self, question: Remember) -> MemoryItem:
        """Keep one item; what its topic had before is superseded by it. The same content again is the same item."""
        content, topic = clean_text(question.content), clean_text(question.topic) if question.topic else None
        async with self._database.writing() as connection:
            profile = Profile(connection, question)
            new_id = item_id((question.tenant, question.user, profile.project), question.kind, topic, content)
            await self._database.lock(connection, profile.scope)
            there = await profile.rows(MEMORIES.c.item_id == new_id)
            if not there:
                await self._add(profile, question, new_id, topic, content)
            elif there[0].superseded_by is not None:
                # Said again after it was superseded: it is what counts now.
                await profile.change(MEMORIES.c.item_id == new_id, superseded_by=None, created_us=now_us())
            key = topic_key(topic)
            if key is not None:
                others = and_(MEMORIES.c.topic_key == key, MEMORIES.c.item_id != new_id, MEMORIES.c.superseded_by.is_(None))
                await profile.change(others, superseded_by=new_id)
            return _item((await profile.rows(MEMORIES.c.item_id == new_id))[0])

    async def _add(self, profile: Profile, question: Remember, new_id: str, topic: str | None, content: str) -> None:
        row = profile.owner.row(
            project=profile.project,
            item_id=new_id,
            kind=question.kind,
            topic=topic,
            topic_key=topic_key(topic),
            content=content,
            created_us=now_us(),
            session_id=question.session_id,
        )
        query = profile.owner.insert(MEMORIES).returning(MEMORIES.c.number)
        number = (await profile.connection.execute(query.values(row))).scalar_one()
        await profile.index.add([(number, indexed(f"{topic or ''}\n{content}"))], profile.owner.scope, profile.scope)

    async def recall(self, question: Recall) -> Recalled:
        """The items that fit; none for a query without a word."""
        try:
            clauses = parse(question.query)
        except QueryError:
            return Recalled(items=())
        async with self._database.reading() as connection:
            profile = Profile(connection, question)
            found = await profile.index.search(clauses, profile.owner.scope, profile.scope, limit=question.limit * 8, any_of=True)
            by_text = [number for number, _ in found]
            current = MEMORIES.c.superseded_by.is_(None)
            by_topic = await profile.named(question.query)
            rows = {row.number: row for row in await profile.rows(current, MEMORIES.c.number.in_(by_text + by_topic))}
        order = fuse(by_topic, by_text, {number: row.created_us for number, row in rows.items()})[: question.limit]
        items = tuple(_item(rows[number]) for number in order)
        return Recalled(items=items, text=wrapped(items))

    async def page(self, question: ListMemory) -> MemoryPage:
        """Everything remembered, newest first. Raises CursorError."""
        where: list[ColumnElement[bool]] = [] if question.superseded else [MEMORIES.c.superseded_by.is_(None)]
        if question.cursor is not None:
            created, number = decode_cursor(question.cursor)
            if not number.isdecimal():
                raise CursorError
            where.append(before(MEMORIES.c.created_us, MEMORIES.c.number, (created, int(number))))
        async with self._database.reading() as connection:
            profile = Profile(connection, question)
            query = profile.owner.select(*MEMORIES.c).where(profile.mine(), *where)
            query = query.order_by(MEMORIES.c.created_us.desc(), MEMORIES.c.number.desc()).limit(question.limit + 1)
            rows = (await connection.execute(query)).all()
        shown = rows[: question.limit]
        more = encode_cursor((shown[-1].created_us, str(shown[-1].number))) if len(rows) > question.limit else None
        return MemoryPage(items=tuple(map(_item, shown)), next_cursor=more)

    async def forget(self, question: Forget) -> None:
        """Remove an item and all that it superseded. Raises NotFoundError."""
        async with self._database.writing() as connection:
            profile = Profile(connection, question)
            gone = list(await profile.rows(MEMORIES.c.item_id == question.id))
            if not gone:
                raise NotFoundError(f"nothing of the id {question.id} is remembered")
            seen = {question.id}
            while older := [r for r in await profile.rows(MEMORIES.c.superseded_by.in_(sorted(seen))) if r.item_id not in seen]:
                gone += older
                seen |= {r.item_id for r in older}
            await profile.index.remove([r.number for r in gone])
            where = and_(profile.mine(), MEMORIES.c.item_id.in_(sorted(seen)))
            await connection.execute(profile.owner.delete(MEMORIES).where(where))

    async def mark_ingested(self, question: MarkIngested) -> Ingested:
        """Claim digests; those that nobody claimed before are the answer."""
        wanted = list(dict.fromkeys(map(clean_text, question.digests)))
        async with self._database.writing() as connection:
            profile = Profile(connection, question)
            rows = [profile.owner.row(project=profile.project, digest=digest, created_us=now_us()) for digest in sorted(wanted)]
            query = profile.owner.insert_new(INGESTED, self._database.dialect).values(rows).returning(INGESTED.c.digest)
            fresh = set((await connection.execute(query)).scalars())
        return Ingested(fresh=tuple(d for d in wanted if d in fresh))
