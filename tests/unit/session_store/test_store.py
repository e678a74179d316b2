"""The store against real SQLite files: folding batches, pages, search, traces, retention, the schema's history."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import inspect, text
from sqlmodel import SQLModel

from libs.bus import Refusal
from libs.contracts.envelope import Usage
from libs.contracts.fold import Recorded, RunState, fold
from libs.contracts.run import Issue, ModelReplied, RunCancelled, RunEvent, RunOpened, StepStarted
from libs.contracts.session import ListRuns, ReadRun, ReadTrace, Span, SpanBatch
from services.session_store.database import Database, create_engine
from services.session_store.domain import Link
from services.session_store.errors import SchemaTooNewError
from services.session_store.handlers import runs as handlers
from services.session_store.migrations import STEPS
from services.session_store.store import Store
from services.session_store.tables import OWNED

T0 = datetime(2026, 1, 1, tzinfo=UTC)


class Message:
    """A delivered message, as a view hands it over."""

    def __init__(self, subject: str, payload: bytes, sequence: int, follows: int | None) -> None:
        self.subject = subject
        self.payload = payload
        self.sequence = sequence
        self.headers = {} if follows is None else {"Nats-Expected-Last-Subject-Sequence": str(follows)}
        self.at = T0 + timedelta(seconds=sequence)


class Stream:
    """The stream RUN: every append names what it follows."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.events: list[Recorded] = []
        self._last: dict[str, int] = {}
        self.reads = 0

    def add(self, event: RunEvent) -> Message:
        message = self.raw(event.run_id, event.subject_of(), event.model_dump_json().encode())
        self.events.append(Recorded(sequence=message.sequence, at=message.at, event=event))
        return message

    def raw(self, run_id: str, subject: str, payload: bytes) -> Message:
        message = Message(subject, payload, len(self.messages) + 1, self._last.get(run_id, 0))
        self._last[run_id] = message.sequence
        self.messages.append(message)
        return message

    async def state(self, run_id: str) -> RunState:
        self.reads += 1
        return fold([r for r in self.events if r.event.run_id == run_id], run_id)


def opened(run_id: str, **fields: Any) -> RunOpened:
    values: dict[str, Any] = {"issue": Issue(id="42", title="Fix the typo"), "repo": "/srv/repo", "opened_at": T0} | fields
    return RunOpened(run_id=run_id, **values)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    store = Store(Database(create_engine(f"sqlite+aiosqlite:///{tmp_path / 'store.db'}")))
    await store.open()
    yield store
    await store.close()


async def known(store: Store, run_id: str) -> RunState:
    state = await store.state(run_id)
    assert state is not None
    return state


def a_run(stream: Stream, run_id: str = "r1") -> list[Message]:
    return [
        stream.add(opened(run_id)),
        stream.add(StepStarted(run_id=run_id, step="plan", of=1, delivery=1, worker="w")),
        stream.add(ModelReplied(run_id=run_id, step="plan", of=1, call=1, model="m", usage=Usage(input_tokens=7, calls=1))),
        stream.add(RunCancelled(run_id=run_id, by="local")),
    ]


async def test_a_row_is_the_fold_of_its_events(store: Store) -> None:
    stream = Stream()
    await handlers.project(store, stream.state, a_run(stream))
    assert await known(store, "r1") == fold(stream.events, "r1")
    assert stream.reads == 0


@pytest.mark.parametrize("size", [1, 2, 3])
async def test_the_size_of_the_batches_makes_no_difference(store: Store, size: int) -> None:
    stream = Stream()
    messages = a_run(stream)
    for start in range(0, len(messages), size):
        await handlers.project(store, stream.state, messages[start : start + size])
    assert await known(store, "r1") == fold(stream.events, "r1")
    assert stream.reads == 0


async def test_a_batch_that_comes_twice_counts_once(store: Store) -> None:
    stream = Stream()
    messages = a_run(stream)
    await handlers.project(store, stream.state, messages)
    await handlers.project(store, stream.state, messages[1:3])
    await handlers.project(store, stream.state, [*messages, *messages])
    assert (await known(store, "r1")).usage.input_tokens == 7


async def test_events_that_overtake_earlier_ones_lose_nothing(store: Store) -> None:
    stream = Stream()
    messages = a_run(stream)
    await handlers.project(store, stream.state, messages[2:])
    assert await known(store, "r1") == fold(stream.events, "r1")
    await handlers.project(store, stream.state, messages[:2])
    assert await known(store, "r1") == fold(stream.events, "r1")
    assert stream.reads == 1


async def test_a_broken_and_an_unknown_event_keep_their_place_and_stop_nothing(store: Store) -> None:
    stream = Stream()
    messages = [
        stream.add(opened("r1")),
        stream.raw("r1", "run.r1.planned", b"{not json"),
        stream.raw("r1", "run.r1.from_the_future", b"{}"),
        stream.add(RunCancelled(run_id="r1", by="local")),
    ]
    await handlers.project(store, stream.state, messages[:2])
    await handlers.project(store, stream.state, messages[2:])
    assert (await known(store, "r1")).status == "cancelled"
    assert stream.reads == 0


async def test_an_event_without_its_predecessor_is_checked_against_the_journal(store: Store) -> None:
    stream = Stream()
    stream.add(opened("r1"))
    forged = Message("run.r1.cancelled", RunCancelled(run_id="r1", by="x").model_dump_json().encode(), 2, None)
    await handlers.project(store, stream.state, [stream.messages[0], forged])
    assert (await known(store, "r1")).status == "queued"


async def test_writers_at_once_do_not_lose_each_others_rows(store: Store) -> None:
    stream = Stream()
    runs = [a_run(stream, f"r{n}") for n in range(20)]
    await asyncio.gather(*(handlers.project(store, stream.state, messages) for messages in runs))
    page = await store.runs(ListRuns(limit=100))
    assert len(page.runs) == 20
    assert {r.status for r in page.runs} == {"cancelled"}


async def test_pages_are_newest_first_and_stable_while_runs_are_opened(store: Store) -> None:
    stream = Stream()
    await handlers.project(store, stream.state, [stream.add(opened(f"r{n:02}")) for n in range(7)])
    first = await store.runs(ListRuns(limit=3))
    await handlers.project(store, stream.state, [stream.add(opened("later"))])
    second = await store.runs(ListRuns(limit=3, cursor=first.next_cursor))
    third = await store.runs(ListRuns(limit=3, cursor=second.next_cursor))
    assert [r.run_id for p in (first, second, third) for r in p.runs] == [f"r{n:02}" for n in reversed(range(7))]
    assert third.next_cursor is None


async def test_runs_opened_in_the_same_instant_are_each_on_one_page(store: Store) -> None:
    links = [Link(f"r{n}", n + 1, 0, Recorded(sequence=n + 1, at=T0, event=opened(f"r{n}"))) for n in range(5)]
    await store.project(links)
    seen: list[str] = []
    cursor: str | None = None
    while True:
        page = await store.runs(ListRuns(limit=2, cursor=cursor))
        seen += [r.run_id for r in page.runs]
        cursor = page.next_cursor
        if cursor is None:
            break
    assert sorted(seen) == [f"r{n}" for n in range(5)]


@pytest.mark.parametrize(
    ("question", "found"),
    [
        ({"status": "cancelled"}, ["a"]),
        ({"issue_id": "7"}, ["b"]),
        ({"repo": "https://example.org/x.git"}, ["c"]),
        ({"text": "错误"}, ["b"]),
        ({"text": "WROKR"}, ["c"]),
        ({"text": "100%"}, ["a"]),
        ({"text": "straSSe"}, ["a"]),
        ({"text": "_"}, []),
    ],
)
async def test_runs_are_found_by_what_is_known_of_them(store: Store, question: dict[str, Any], found: list[str]) -> None:
    stream = Stream()
    stream.add(opened("a", issue=Issue(id="42", title="100% of straße")))
    stream.add(RunCancelled(run_id="a", by="x"))
    stream.add(opened("b", issue=Issue(id="7", title="修复登录错误")))
    stream.add(opened("c", issue=Issue(id="8", title="Wrokr is misspelt"), repo="https://example.org/x.git"))
    await handlers.project(store, stream.state, stream.messages)
    assert [r.run_id for r in (await store.runs(ListRuns(**question))).runs] == found


@pytest.mark.parametrize("cursor", ["nonsense", "====", "", "MTIz", "LTEuMTE", "ü"])
async def test_a_cursor_from_elsewhere_is_refused_in_words(store: Store, cursor: str) -> None:
    if cursor == "LTEuMTE":  # "-1.11": well-formed, before everything
        assert (await handlers.list_runs(store, ListRuns(cursor=cursor))).runs == ()
        return
    with pytest.raises(Refusal, match="without one") as no:
        await handlers.list_runs(store, ListRuns(cursor=cursor))
    assert no.value.code == "bad_cursor"


async def test_an_unknown_run_is_refused(store: Store) -> None:
    with pytest.raises(Refusal) as no:
        await handlers.read_run(store, ReadRun(run_id="nobody"))
    assert no.value.code == "not_found"


async def test_tenants_do_not_see_each_other(tmp_path: Path) -> None:
    engine = create_engine(f"sqlite+aiosqlite:///{tmp_path / 'store.db'}")
    ours, theirs = Store(Database(engine), "ours"), Store(Database(engine), "theirs")
    await ours.open()
    stream = Stream()
    await handlers.project(ours, stream.state, a_run(stream))
    assert await theirs.state("r1") is None
    assert (await theirs.runs(ListRuns())).runs == ()
    await ours.close()


def span(number: int, *, trace: str = "a" * 32, end_ns: int | None = None) -> Span:
    return Span(trace_id=trace, span_id=f"{number:016x}", name="chat", service="editor", start_ns=number, end_ns=end_ns or number + 1)


async def test_spans_come_back_in_order_and_once(store: Store) -> None:
    batch = SpanBatch(spans=(span(2), span(1), span(3, trace="b" * 32)))
    message = Message("spans.editor", batch.model_dump_json().encode(), 1, None)
    broken = Message("spans.editor", b"\xff", 2, None)
    await handlers.store_spans(store, [message, broken])
    await handlers.store_spans(store, [message])
    trace = await handlers.read_trace(store, ReadTrace(trace_id="a" * 32))
    assert [s.start_ns for s in trace.spans] == [1, 2]
    assert (await handlers.read_trace(store, ReadTrace(trace_id="c" * 32))).spans == ()


async def test_spans_go_by_age_and_by_number(store: Store) -> None:
    await store.add_spans([span(n, end_ns=n * 100) for n in range(1, 11)])
    assert await store.sweep_spans(ended_before_ns=300, keep=100) == 2
    assert await store.sweep_spans(ended_before_ns=0, keep=5) == 3
    assert await store.count_spans() == 5
    assert [s.start_ns for s in await store.trace("a" * 32, 100)] == [6, 7, 8, 9, 10]


async def test_more_spans_than_one_statement_holds(store: Store) -> None:
    await store.add_spans([span(n) for n in range(1, 1301)])
    await store.add_spans([span(n) for n in range(1, 1302)])
    assert await store.count_spans() == 1301


async def test_the_steps_lead_to_the_tables_that_the_queries_use(store: Store, tmp_path: Path) -> None:
    engine = create_engine(f"sqlite+aiosqlite:///{tmp_path / 'store.db'}")

    def described(connection: Any) -> dict[str, Any]:
        found = inspect(connection)
        return {
            name: (
                {c["name"] for c in found.get_columns(name)},
                found.get_pk_constraint(name)["constrained_columns"],
                {i["name"]: i["column_names"] for i in found.get_indexes(name)},
            )
            for name in found.get_table_names()
            if name != "schema_version" and "_search" not in name
        }

    async with engine.connect() as connection:
        migrated = await connection.run_sync(described)
    await engine.dispose()
    declared = {
        name: (
            {c.name for c in table.columns},
            [c.name for c in table.primary_key.columns],
            {str(i.name): [c.name for c in i.columns] for i in table.indexes},
        )
        for name, table in SQLModel.metadata.tables.items()
        if name in ("runs", "spans", *(table.name for table in OWNED))
    }
    assert migrated == declared


async def test_opening_again_keeps_what_is_there_and_a_newer_schema_is_refused(tmp_path: Path) -> None:
    engine = create_engine(f"sqlite+aiosqlite:///{tmp_path / 'store.db'}")
    store = Store(Database(engine))
    await store.open()
    stream = Stream()
    await handlers.project(store, stream.state, a_run(stream))
    await store.open()
    assert await store.state("r1") is not None
    async with engine.begin() as connection:
        await connection.execute(text("INSERT INTO schema_version VALUES (:v, '')"), {"v": len(STEPS) + 1})
    with pytest.raises(SchemaTooNewError, match="newer version"):
        await store.open()
    await store.close()


async def test_stores_opened_at_once_make_one_schema(tmp_path: Path) -> None:
    stores = [Store(Database(create_engine(f"sqlite+aiosqlite:///{tmp_path / 'store.db'}"))) for _ in range(4)]
    await asyncio.gather(*(s.open() for s in stores))
    for store in stores:
        await store.close()
