"""When a transaction on SQLite begins and ends, as the database itself is told."""

import asyncio
import sqlite3
import threading
from contextlib import AsyncExitStack

import pytest
from sqlalchemy import text
from sqlalchemy.exc import OperationalError

from services.session_store.conversations.work import Work
from services.session_store.errors import NotFoundError
from services.session_store.owned import Owner

QUERY = "SELECT count(*) FROM sessions"
CHANGE = "INSERT INTO schema_version VALUES (1000, '')"


async def driver_of(connection):
    return (await connection.get_raw_connection()).driver_connection


async def told(database):
    """What the one connection of the pool is told from here on."""
    said = []
    async with database.reading() as connection:
        await (await driver_of(connection)).set_trace_callback(said.append)
    return said


async def nothing_is_open(database, connections):
    """No connection of the pool is in a transaction when it is given out."""
    async with AsyncExitStack() as stack:
        for _ in range(connections):
            driver = await driver_of(await stack.enter_async_context(database.reading()))
            await driver.set_trace_callback(None)  # what was handed to its thread before is done then
            assert not driver.in_transaction


async def broken_off(transaction):
    async with transaction() as connection:
        await connection.execute(text(QUERY))
        raise ZeroDivisionError


@pytest.mark.parametrize(("kind", "begin"), [("reading", "BEGIN"), ("writing", "BEGIN IMMEDIATE")])
async def test_a_transaction_begins_before_its_first_statement_and_ends_once(database, kind, begin):
    said = await told(database)
    async with getattr(database, kind)() as connection:
        assert said == []
        await connection.execute(text(QUERY))
        await connection.execute(text(QUERY))
    with pytest.raises(ZeroDivisionError):
        await broken_off(getattr(database, kind))
    await nothing_is_open(database, 1)
    assert said == [begin, QUERY, QUERY, "COMMIT", begin, QUERY, "ROLLBACK"]


@pytest.mark.parametrize("kind", ["reading", "writing"])
async def test_a_transaction_without_a_statement_begins_nothing(database, kind):
    said = await told(database)
    async with getattr(database, kind)():
        pass
    with pytest.raises(ZeroDivisionError):
        async with getattr(database, kind)():
            raise ZeroDivisionError
    async with database.reading() as connection:
        await connection.execute(text(QUERY))
    await nothing_is_open(database, 1)
    assert said == ["BEGIN", QUERY, "COMMIT"]


async def test_nobody_waits_for_the_end_of_a_reader(database):
    gate = threading.Event()
    try:
        async with asyncio.timeout(20):
            async with database.reading() as connection:
                await connection.execute(text(QUERY))
                (await driver_of(connection))._tx.put_nowait((None, gate.wait))
    finally:
        gate.set()
    await nothing_is_open(database, 1)


async def test_a_reader_sees_one_state(database):
    async with database.reading() as reader:
        before = (await reader.execute(text("SELECT count(*) FROM schema_version"))).scalar_one()
        async with database.writing() as writer:
            await writer.execute(text(CHANGE))
        assert (await reader.execute(text("SELECT count(*) FROM schema_version"))).scalar_one() == before
    async with database.reading() as reader:
        assert (await reader.execute(text("SELECT count(*) FROM schema_version"))).scalar_one() == before + 1


async def test_a_change_is_there_for_everybody_when_its_transaction_is_left(database, tmp_path):
    async with database.writing() as connection:
        await connection.execute(text(CHANGE))
    other = sqlite3.connect(tmp_path / "store.db")
    assert other.execute("SELECT count(*) FROM schema_version WHERE version = 1000").fetchone() == (1,)
    other.close()


@pytest.mark.parametrize("kind", ["reading", "writing"])
async def test_a_statement_that_fails_says_so_and_leaves_nothing_open(database, kind):
    for _ in range(2):
        with pytest.raises(OperationalError, match="no such table"):
            async with getattr(database, kind)() as connection:
                await connection.execute(text("SELECT * FROM nowhere"))
        await nothing_is_open(database, 1)


async def test_a_writer_that_cannot_begin_says_so(database, tmp_path):
    async with database.reading() as connection:
        await connection.execute(text("PRAGMA busy_timeout=0"))
    other = sqlite3.connect(tmp_path / "store.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(OperationalError, match="locked"):
        async with database.writing() as connection:
            await connection.execute(text(QUERY))
    other.execute("ROLLBACK")
    other.close()
    async with database.writing() as connection:
        await connection.execute(text(CHANGE))


async def looked_up(database, kind):
    async with getattr(database, kind)() as connection:
        with pytest.raises(NotFoundError):
            await Work(connection, Owner("local", "local")).session("nowhere", lock=True)


@pytest.mark.parametrize("kind", ["reading", "writing"])
async def test_a_compiled_question_that_is_cancelled_anywhere_leaves_nothing_open(database, kind):
    for steps in range(40):
        asking = [asyncio.create_task(looked_up(database, kind)) for _ in range(3)]
        for _ in range(steps):
            await asyncio.sleep(0)
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
        async with asyncio.timeout(30):
            await nothing_is_open(database, 3)
            await asyncio.gather(looked_up(database, "reading"), looked_up(database, "writing"))
