"""Conversations: append through the bus, the history of a long leaf, search over many messages, on SQLite and PostgreSQL.

The numbers are of the store itself where nothing else is said: what the bus adds is in the rows of the bus. The floor is the bare driver
on the same database, asked in turn with the store, so that both meet the same neighbours.
"""

import argparse
import os
import random
import sqlite3
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import asyncpg
import uvloop
from sqlalchemy import text
from sqlalchemy.engine import make_url

from libs.bus import Asker, Service
from libs.contracts.conversation import AppendMessages, CreateSession, ReadHistory, SearchMessages, StoredMessage
from libs.contracts.inference import DescribeModels, Models
from libs.settings import BusSettings
from libs.testkit.broker import broker
from libs.testkit.postgres import postgres
from services.session_store.__main__ import Opened, build
from services.session_store.conversations.find import Finder
from services.session_store.conversations.history import Histories
from services.session_store.conversations.messages import Messages
from services.session_store.conversations.sessions import Sessions
from services.session_store.conversations.work import Work
from services.session_store.database import create_engine
from services.session_store.owned import Owner
from services.session_store.search.index import MESSAGE_SEARCH, Index
from services.session_store.search.words import indexed
from services.session_store.tables import MESSAGES

_ENGLISH = [
    f"{a}{b}" for a in ("con", "pre", "un", "re", "dis", "over") for b in ("nect", "pare", "fold", "build", "play", "flow", "write")
]
_CHINESE = list("登录错误修复部署服务数据库连接超时重试缓存用户请求返回结果测试通过失败")


@dataclass(frozen=True)
class SessionFigures:
    """Seconds, one sample a question. `insert`, `rows` and `question` are floors: a bare INSERT, the bare rows of the path, and a question
    over the bus whose answer is there.

    `append_cpu` is the processor's share of an append in asker and service, which neighbours on the machine change least.
    """

    append: list[float]
    append_cpu: list[float]
    append_bus: list[float]
    question: list[float]
    insert: list[float]
    history: list[float]
    rows: list[float]
    page_bus: list[float]
    history_bus: list[float]
    search: list[float]


@dataclass(frozen=True)
class Floor:
    """The bare driver: one INSERT that is committed as the store commits, and the messages of the session `long`."""

    insert: Callable[[str], Awaitable[object]]
    read: Callable[[], Awaitable[object]]


_BARE_TABLE = "CREATE TABLE floor (body TEXT NOT NULL)"
_BARE_PATH = "SELECT body FROM messages WHERE session = 1 AND branch = 1 ORDER BY depth"


@asynccontextmanager
async def floors(url: str) -> AsyncIterator[Floor]:
    """The floor on a database that has its tables."""
    where = make_url(url)
    if where.get_backend_name() == "sqlite":
        # A file of its own for writing: it would wait for the store on the loop that the store needs.
        own = sqlite3.connect(f"{where.database}-floor", isolation_level=None)
        with closing(own), closing(sqlite3.connect(str(where.database))) as stored:
            for statement in ("PRAGMA journal_mode=WAL", "PRAGMA synchronous=NORMAL", _BARE_TABLE):
                own.execute(statement)

            async def insert(body: str) -> None:
                own.execute("INSERT INTO floor (body) VALUES (?)", (body,))

            async def read() -> None:
                stored.execute(_BARE_PATH).fetchall()

            yield Floor(insert, read)
        return
    connection = await asyncpg.connect(host=str(where.query["host"]), user=where.username, database=where.database)
    await connection.execute(_BARE_TABLE)
    yield Floor(lambda body: connection.execute("INSERT INTO floor (body) VALUES ($1)", body), lambda: connection.fetch(_BARE_PATH))
    await connection.close()


@contextmanager
def databases(folder: Path, which: str) -> Iterator[str]:
    """The URL of an empty database: `sqlite`, or `postgresql` on a server that writes to disk as in production."""
    if which == "sqlite":
        yield f"sqlite+aiosqlite:///{folder / 'bench.db'}"
        return
    durable = {"fsync": "on", "synchronous_commit": "on", "full_page_writes": "on", "shared_buffers": "1GB", "max_wal_size": "4GB"}
    with postgres(**durable) as url:
        yield url


def message(number: int, chance: random.Random) -> StoredMessage:
    """About 40 words, English and Chinese; the commoner words as common as in a language (Zipf)."""
    words = [_ENGLISH[min(int(chance.paretovariate(0.9)) - 1, len(_ENGLISH) - 1)] for _ in range(24)]
    wide = "".join(chance.choice(_CHINESE) for _ in range(12))
    own = f"id{number} topic{number % 5000}"
    return StoredMessage(id=f"m{number}", role="user", parts=({"type": "text", "text": f"{' '.join(words)} {wide} {own}"},))


async def fill(opened: Opened, count: int, per_session: int) -> None:
    """Store `count` messages of the local user, `per_session` to each session, in the store's tables but without its checks."""
    chance, owner, dialect = random.Random(7), Owner("local", "local"), opened.database.dialect
    if dialect == "postgresql":
        await _run(opened, "DROP INDEX message_search_vector")
    for start in range(0, count, per_session):
        name = f"s{start // per_session}"
        await opened.parts[Sessions].create(CreateSession(session_id=name))
        async with opened.database.writing() as connection:
            session = (await Work(connection, owner).session(name)).number
            rows, words = _rows(owner, session, start, min(per_session, count - start), chance)
            inserted = await connection.execute(owner.insert(MESSAGES).returning(MESSAGES.c.number, MESSAGES.c.depth), rows)
            await Index(connection, MESSAGE_SEARCH).add([(r.number, words[r.depth - 1]) for r in inserted], owner.scope, f"s{session}")
    if dialect == "postgresql":
        await _run(opened, "CREATE INDEX message_search_vector ON message_search USING gin (vector)", "ANALYZE")


def _rows(owner: Owner, session: int, start: int, count: int, chance: random.Random) -> tuple[list[dict[str, object]], list[str]]:
    rows, words = [], []
    for depth in range(1, count + 1):
        made = message(start + depth - 1, chance)
        body = made.model_dump_json()
        sums = {"tokens": 60, "size": len(body), "path_tokens": 60 * depth, "path_bytes": 500 * depth, "created_us": start + depth}
        place = {"session": session, "message_id": made.id, "parent_id": None, "branch": 1, "depth": depth}
        rows.append(owner.row(role="user", body=body, excerpt="", **place, **sums))
        words.append(indexed(made.parts[0]["text"]))
    return rows, words


async def _run(opened: Opened, *statements: str) -> None:
    async with opened.database.writing() as connection:
        for statement in statements:
            await connection.execute(text(statement))


def queries(count: int, rounds: int) -> list[str]:
    """Rare and common words, two Chinese characters, phrases, two words."""
    chance = random.Random(11)
    made: list[str] = []
    for _ in range(rounds):
        made += [
            f"id{chance.randrange(count)}",
            f"topic{chance.randrange(5000)}",
            chance.choice(_ENGLISH),
            "".join(chance.sample(_CHINESE, 2)),
            "".join(chance.sample(_CHINESE, 3)),
            f"{chance.choice(_ENGLISH)} {chance.choice(_ENGLISH)}",
            f"{chance.choice(_ENGLISH)} topic{chance.randrange(5000)}",
        ]
    return made


async def searched(opened: Opened, count: int, rounds: int) -> list[float]:
    """Seconds of each query over what is stored."""
    finder: Finder = opened.parts[Finder]
    samples: list[float] = []
    for query in queries(count, rounds):
        begin = time.perf_counter()
        await finder.messages(SearchMessages(query=query))
        samples.append(time.perf_counter() - begin)
    return samples


async def long_history(opened: Opened, floor: Floor, rounds: int) -> tuple[list[float], list[float]]:
    """Seconds to read the path of a leaf with 10,000 messages, as it goes to the bus, and to read the bare rows."""
    await fill_one(opened.parts[Messages], 10_000)
    histories: Histories = opened.parts[Histories]
    samples: list[float] = []
    bare: list[float] = []
    for _ in range(rounds):
        samples.append(await took(as_json(histories, ReadHistory(session_id="long"))))
        bare.append(await took(floor.read()))
    return samples, bare


async def as_json(histories: Histories, question: ReadHistory) -> None:
    """What the service does to answer."""
    assert len((await histories.read(question)).to_json()) > 1_000_000


async def took(work: Awaitable[object]) -> float:
    """Seconds."""
    begin = time.perf_counter()
    await work
    return time.perf_counter() - begin


async def fill_one(messages: Messages, count: int) -> None:
    """One session of `count` messages."""
    chance = random.Random(3)
    for start in range(0, count, 100):
        batch = tuple(message(n, chance) for n in range(start, start + 100))
        await messages.append(AppendMessages(session_id="long", messages=batch))


@asynccontextmanager
async def store(url: str) -> AsyncIterator[Opened]:
    """The store on a database."""
    opened = Opened.on(create_engine(url))
    await opened.database.open()
    try:
        yield opened
    finally:
        await opened.database.close()


def gateway(settings: BusSettings) -> AbstractAsyncContextManager[Service]:
    """Asks as the gateway does."""
    return Service("gateway").running(settings)


def idle(settings: BusSettings) -> AbstractAsyncContextManager[Service]:
    """Answers a question at once."""
    service = Service("inference")

    @service.answer(DescribeModels)
    async def describe(_: DescribeModels, __: Asker) -> Models:
        return Models(models=())

    return service.running(settings)


async def appended(opened: Opened, asker: Service, floor: Floor, count: int) -> dict[str, list[float]]:
    """Seconds to append one message: to the store, and as the gateway sees it by the clock and by the processor. And the floors."""
    chance = random.Random(5)
    seen: dict[str, list[float]] = {name: [] for name in ("append", "append_bus", "append_cpu", "insert", "question")}
    messages: Messages = opened.parts[Messages]
    for n in range(count):
        one = message(n, chance)
        begin = time.process_time()
        seen["append_bus"].append(await took(asker.bus.ask(AppendMessages(session_id="quick", messages=(one,)))))
        seen["append_cpu"].append(time.process_time() - begin)
        seen["append"].append(await took(messages.append(AppendMessages(session_id="own", messages=(one,)))))
        seen["insert"].append(await took(floor.insert(one.model_dump_json())))
        seen["question"].append(await took(asker.bus.ask(DescribeModels())))
    return seen


async def asked(asker: Service, question: ReadHistory, rounds: int) -> list[float]:
    """Seconds to ask."""
    return [await took(asker.bus.ask(question)) for _ in range(rounds)]


async def sessions(which: str, messages: int, appends: int = 500, rounds: int = 20) -> SessionFigures:
    """All figures on `sqlite` or `postgresql`, the search over `messages` of one user in sessions of 1,000.

    The service's settings come from the environment.
    """
    with tempfile.TemporaryDirectory() as home, databases(Path(home), which) as url, variable("AGENT_CODER_DATABASE_URL", url):
        async with store(url) as opened, floors(url) as floor:
            history, rows = await long_history(opened, floor, rounds)
            async with AsyncExitStack() as stack:
                _, settings = await stack.enter_async_context(broker(Path(home), "always", 15.0))
                await stack.enter_async_context(build().running(settings))
                await stack.enter_async_context(idle(settings))
                asker = await stack.enter_async_context(gateway(settings))
                appends_seen = await appended(opened, asker, floor, appends)
                page = await asked(asker, ReadHistory(session_id="long", limit=100), rounds)
                whole = await asked(asker, ReadHistory(session_id="long"), rounds)
            await fill(opened, messages, 1_000)
            await searched(opened, messages, 2)
            found = await searched(opened, messages, rounds)
    return SessionFigures(history=history, rows=rows, page_bus=page, history_bus=whole, search=found, **appends_seen)


def table(which: str, seen: SessionFigures, messages: int) -> list[tuple[str, str, str, str]]:
    """The rows: what, seen, against the floor, to reach."""
    p = {name: quantile(samples, 0.5) for name, samples in vars(seen).items()}
    over_bus = f"over the bus the newest 100 in {p['page_bus']:.1f} ms, all in {p['history_bus']:.0f} ms"
    found = f"{p['search']:.1f} / {quantile(seen.search, 0.95):.1f} ms"
    return [
        (
            f"session append, {which}: p50 in the store / over the bus",
            f"{p['append']:.1f} / {p['append_bus']:.1f} ms",
            f"a bare INSERT {p['insert']:.2f} ms / a question over the bus that does nothing {p['question']:.1f} ms; "
            f"over the bus {p['append_cpu']:.1f} ms of processor time",
            "≤ 2 ms",
        ),
        (
            f"history of a 10,000-message leaf, {which}: p50",
            f"{p['history']:.1f} ms",
            f"{p['history'] / p['rows']:.1f} × the bare rows; {over_bus}",
            "≤ 20 ms",
        ),
        (f"search over {messages:,} messages, {which}: p50 / p95", found, "", "p95 ≤ 50 ms at 1,000,000"),
    ]


def quantile(samples: list[float], share: float) -> float:
    """A quantile in milliseconds."""
    return sorted(samples)[min(len(samples) - 1, int(len(samples) * share))] * 1000


@contextmanager
def variable(name: str, value: str) -> Iterator[None]:
    """An environment variable for a while."""
    was = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if was is None:
            del os.environ[name]
        else:
            os.environ[name] = was


def main() -> None:
    """python -m bench.sessions [--messages N]: both databases."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--only", choices=("sqlite", "postgresql"))
    arguments = parser.parse_args()
    for which in (arguments.only,) if arguments.only else ("sqlite", "postgresql"):
        for row in table(which, uvloop.run(sessions(which, arguments.messages)), arguments.messages):
            print(f"| {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    main()
