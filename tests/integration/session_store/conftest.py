"""Both databases, each test in an empty one of its own."""

import itertools
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from sqlalchemy import text

from libs.testkit.postgres import postgres
from services.session_store.__main__ import Opened
from services.session_store.database import Database, create_engine

_NUMBERS = itertools.count()


@pytest.fixture(scope="session")
def server() -> Iterator[str]:
    with postgres() as url:
        yield url


@pytest.fixture(params=["sqlite", "postgresql"])
async def empty_database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty database."""
    if request.param == "sqlite":
        return f"sqlite+aiosqlite:///{tmp_path / 'store.db'}"
    return await _new_database(request.getfixturevalue("server"))


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[Database]:
    """Transactions alone, on SQLite."""
    found = Database(create_engine(f"sqlite+aiosqlite:///{tmp_path / 'store.db'}"))
    await found.open()
    yield found
    await found.close()


@pytest.fixture
async def on_postgresql(server: str) -> AsyncIterator[Opened]:
    """The same on PostgreSQL, for what only it does."""
    opened = Opened.on(create_engine(await _new_database(server)))
    await opened.database.open()
    yield opened
    await opened.database.close()


async def _new_database(url: str) -> str:
    name = f"t{next(_NUMBERS)}"
    engine = create_engine(url)
    async with engine.connect() as connection:
        await (await connection.execution_options(isolation_level="AUTOCOMMIT")).execute(text(f"CREATE DATABASE {name}"))
    await engine.dispose()
    return url.replace("@/postgres?", f"@/{name}?")


@pytest.fixture
async def opened(empty_database: str) -> AsyncIterator[Opened]:
    """Everything that queries, on an up-to-date schema."""
    opened = Opened.on(create_engine(empty_database))
    await opened.database.open()
    yield opened
    await opened.database.close()
