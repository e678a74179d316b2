"""An aiosqlite connection that crosses to its thread once a statement instead of four times: half of an append was crossing.

A transaction begins in the crossing of its first statement. Nobody waits for the end of one that only reads: what comes next
on the connection comes after it on the thread.
"""

import logging
import sqlite3
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import aiosqlite

_CHUNK = 64


log = logging.getLogger(__name__)


class QuickCursor:
    """Makes a cursor, runs a statement, fetches all rows and closes it in one go on the connection's thread."""

    def __init__(self, connection: "QuickConnection") -> None:
        self._connection = connection
        self._rows: list[Any] = []
        self.description: Any = None
        self.rowcount = -1
        self.lastrowid: int | None = None
        self.arraysize = 1

    async def __aenter__(self) -> "QuickCursor":
        return self

    async def execute(self, sql: str, parameters: Iterable[Any] = ()) -> "QuickCursor":
        """Run one statement."""
        await self._connection.run(self._work, sql, parameters, False)
        return self

    async def executemany(self, sql: str, parameters: Iterable[Iterable[Any]]) -> "QuickCursor":
        """Run one statement for each row of parameters."""
        await self._connection.run(self._work, sql, parameters, True)
        return self

    def _work(self, connection: sqlite3.Connection, sql: str, parameters: Any, many: bool) -> None:
        cursor = connection.executemany(sql, parameters) if many else connection.execute(sql, parameters)
        self.description = cursor.description
        self._rows = cursor.fetchall() if cursor.description else []
        self.rowcount, self.lastrowid = cursor.rowcount, cursor.lastrowid
        cursor.close()

    async def fetchall(self) -> Sequence[Any]:
        """The rows."""
        return self._rows

    async def close(self) -> None:
        """It is closed."""


class QuickConnection(aiosqlite.Connection):
    """A connection whose cursors are quick."""

    _begin = ""
    _only_reads = False

    def begin(self, sql: str, *, only_reads: bool) -> None:
        """Note the statement that begins a transaction: it runs with the first one of the transaction, if there is any."""
        self._begin, self._only_reads = sql, only_reads

    def cursor(self) -> Any:
        """A cursor; nothing happens before it runs a statement."""
        return QuickCursor(self)

    async def run(self, work: Callable[..., None], *arguments: Any) -> None:
        """Do work on the thread, inside of the transaction that was noted. It is done also when the caller goes away."""
        begin, self._begin = self._begin, ""
        await self._waited(self._begun, begin, work, *arguments)

    async def _waited(self, work: Callable[..., None], *arguments: Any) -> None:
        await self._execute(work, *arguments)  # type: ignore[no-untyped-call]  # aiosqlite's own has no types

    def _begun(self, begin: str, work: Callable[..., None], *arguments: Any) -> None:
        if begin:
            self._conn.execute(begin)
        work(self._conn, *arguments)

    async def commit(self) -> None:
        """Commit; when the transaction only read, some time before the next use."""
        await self._end(self._conn.commit)

    async def rollback(self) -> None:
        """Roll back; when the transaction only read, some time before the next use."""
        await self._end(self._conn.rollback)

    async def _end(self, end: Callable[[], None]) -> None:
        begun, self._begin = not self._begin, ""
        if begun and self._only_reads:
            self._tx.put_nowait((None, lambda: self._end_reading(end)))
        elif begun:
            await self._waited(end)

    def _end_reading(self, end: Callable[[], None]) -> None:
        try:
            end()
        except sqlite3.Error:  # nobody waits for it; the next BEGIN on this connection is refused
            log.exception("a transaction that only read could not be ended")


_PRAGMAS = ("busy_timeout=10000", "synchronous=NORMAL", "cache_size=-65536", "mmap_size=1073741824")
_PATIENCE_SECONDS = 10.0


def _opened(arguments: Sequence[Any], options: Mapping[str, Any]) -> sqlite3.Connection:
    """On the connection's thread. Transactions are begun by hand, and the log is written ahead."""
    connection: sqlite3.Connection = sqlite3.connect(*arguments, **options)
    connection.isolation_level = None
    for pragma in _PRAGMAS:
        connection.execute(f"PRAGMA {pragma}")
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            return connection
        except sqlite3.OperationalError:
            # While another one makes the same change, SQLite refuses at once and does not wait.
            if time.monotonic() > deadline:
                connection.close()
                raise
            time.sleep(0.01)


async def connect(arguments: Sequence[Any], options: Mapping[str, Any]) -> QuickConnection:
    """Open a database with what `sqlite3.connect` takes."""
    connection = QuickConnection(lambda: _opened(arguments, options), _CHUNK)
    connection._thread.daemon = True
    await connection
    return connection
