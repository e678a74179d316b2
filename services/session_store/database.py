"""The database: its engine, its transactions, its schema.

On SQLite every writing transaction takes the write lock with its first statement: no reader is upgraded half-way.
On PostgreSQL a reader has no transaction: each of its statements would see the newest rows in one as well.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from typing import Any

from sqlalchemy import event, text
from sqlalchemy.engine import Connection as SyncConnection
from sqlalchemy.exc import InvalidatePoolError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from services.session_store.migrations import migrate
from services.session_store.sqlite_connection import QuickConnection, connect

_POSTGRESQL: dict[str, Any] = {"server_settings": {"jit": "off", "random_page_cost": "1.1", "work_mem": "16MB"}}
"""A path is read by its index and not sorted on disk."""
_READING: dict[str, dict[str, Any]] = {"postgresql": {"isolation_level": "AUTOCOMMIT"}, "sqlite": {"only_reads": True}}


def create_engine(url: str) -> AsyncEngine:
    """An engine for `url`; on SQLite with write-ahead logging and explicit transactions."""
    if url.startswith("postgresql+asyncpg"):
        engine = create_async_engine(url, pool_recycle=600, pool_size=10, max_overflow=10, connect_args=_POSTGRESQL)
        event.listen(engine.sync_engine.pool, "checkout", _refuse_closed)
        return engine
    if not url.startswith("sqlite"):
        return create_async_engine(url, pool_pre_ping=True)

    async def creator() -> QuickConnection:
        arguments, options = engine.dialect.create_connect_args(engine.url)
        return await connect(arguments, options)

    # A connection goes back with its transaction ended, so the pool need not roll back.
    engine = create_async_engine(url, async_creator=creator, pool_reset_on_return=None)
    event.listen(engine.sync_engine, "begin", _begin_sqlite)
    return engine


def _refuse_closed(connection: Any, *_: Any) -> None:
    # The driver knows when the server has gone; a ping would be three round trips.
    if connection.driver_connection.is_closed():
        raise InvalidatePoolError


def _begin_sqlite(connection: SyncConnection) -> None:
    options = connection.get_execution_options()
    driver: Any = connection.connection.driver_connection
    driver.begin("BEGIN IMMEDIATE" if options.get("writes") else "BEGIN", only_reads=options.get("only_reads", False))


class Database:
    """Transactions on one engine, for many tasks at once."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine
        self._writing = engine.execution_options(writes=True)
        self._reading = engine.execution_options(**_READING[engine.dialect.name])
        self._writer: Any = asyncio.Lock() if engine.dialect.name == "sqlite" else nullcontext()

    @property
    def dialect(self) -> str:
        """`sqlite` or `postgresql`."""
        return self._engine.dialect.name

    async def open(self) -> None:
        """Bring the schema up to date.

        Raises:
            SchemaTooNewError: the database was written by a newer version.
        """
        async with self.writing() as connection:
            await migrate(connection)

    async def close(self) -> None:
        """Give the connections back."""
        await self._engine.dispose()

    @asynccontextmanager
    async def writing(self) -> AsyncIterator[AsyncConnection]:
        """A transaction that may write; rolled back when its body raises. SQLite's writers queue here: its own lock is polled."""
        async with self._writer, self._writing.begin() as connection:
            yield connection

    async def lock(self, connection: AsyncConnection, name: str) -> None:
        """Nobody else passes here with the same name before the transaction ends. SQLite has one writer anyway."""
        if self.dialect == "postgresql":
            await connection.execute(text("SELECT pg_advisory_xact_lock(hashtextextended(:name, 0))"), {"name": name})

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[AsyncConnection]:
        """A connection to read with; on SQLite a transaction that sees one state. On PostgreSQL each statement is a transaction."""
        async with self._reading.begin() as connection:
            yield connection
