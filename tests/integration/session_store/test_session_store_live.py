"""The read models on a real broker: the fence's header is on every delivery, and a crash between batches loses nothing."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from libs.bus import NoAnswer, Refusal, Service
from libs.bus.connection import Connection
from libs.contracts.fold import RunState
from libs.contracts.run import Issue, RunCancelled, RunOpened
from libs.contracts.session import ListRuns, ReadRun, ReadTrace
from libs.settings import BusSettings
from libs.testkit.broker import broker
from services.session_store.__main__ import build


@pytest.fixture
async def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[BusSettings]:
    monkeypatch.setenv("AGENT_CODER_HOME", str(tmp_path / "home"))
    async with broker(tmp_path / "home") as (_, settings):
        yield settings


def opened(run_id: str) -> RunOpened:
    return RunOpened(run_id=run_id, issue=Issue(id="42", title="修复"), repo="team/app", opened_at=datetime.now(UTC))


async def stored(gateway: Service, run_id: str, status: str) -> RunState:
    """The read model's state of a run, once it has `status`."""
    async with asyncio.timeout(20):
        while True:
            try:
                state = await gateway.bus.ask(ReadRun(run_id=run_id))
            except (Refusal, NoAnswer):
                state = None
            if state is not None and state.status == status:
                return state
            await asyncio.sleep(0.02)


async def test_runs_are_projected_without_reading_their_journals_again(settings: BusSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[str] = []
    store = build()
    async with store.running(settings), Service("gateway").running(settings) as gateway:
        state = store.bus.journal.state

        async def counted(run_id: str) -> RunState:
            reads.append(run_id)
            return await state(run_id)

        monkeypatch.setattr(store.bus.journal, "state", counted)
        for number in range(50):
            place = await gateway.bus.journal.append(opened(f"r{number}"), follows=0)
            await gateway.bus.journal.append(RunCancelled(run_id=f"r{number}", by="x"), follows=place)
        for number in range(50):
            assert await stored(gateway, f"r{number}", "cancelled") == await gateway.bus.journal.state(f"r{number}")
        page = await gateway.bus.ask(ListRuns(limit=100))
        assert [r.run_id for r in page.runs] == [f"r{n}" for n in reversed(range(50))]
    assert reads == []


async def test_deliveries_that_were_lost_in_a_crash_are_made_up_for(settings: BusSettings) -> None:
    """The first events are taken by a process that dies with them; the next one sees the later events first."""
    async with Service("gateway").running(settings) as gateway:
        place = await gateway.bus.journal.append(opened("r1"), follows=0)
        dead = await Connection.open(settings, "session_store")
        taken: asyncio.Queue[Any] = asyncio.Queue()
        inbox = dead.inbox()
        await dead.subscribe(inbox, taken.put)
        await dead.send("$JS.API.CONSUMER.MSG.NEXT.RUN.session_store-runs", b'{"batch": 1, "expires": 9000000000}', reply=inbox)
        await asyncio.wait_for(taken.get(), 10)
        await dead.close()
        await gateway.bus.journal.append(RunCancelled(run_id="r1", by="x"), follows=place)
        async with build().running(settings):
            state = await stored(gateway, "r1", "cancelled")
            assert state == await gateway.bus.journal.state("r1")


async def test_spans_of_every_service_arrive(settings: BusSettings) -> None:
    async with build().running(settings), Service("gateway").running(settings) as gateway:
        with gateway.bus.telemetry.span("POST /x", "server", a__b=1) as span:
            trace_id = f"{span.get_span_context().trace_id:032x}"
        found: Any = None
        async with asyncio.timeout(20):
            while not (found := (await gateway.bus.ask(ReadTrace(trace_id=trace_id))).spans):
                await asyncio.sleep(0.05)
        assert (found[0].name, found[0].service, found[0].attributes) == ("POST /x", "gateway", {"a.b": 1})


async def test_the_store_is_there_again_after_a_restart(settings: BusSettings) -> None:
    async with Service("gateway").running(settings) as gateway:
        await gateway.bus.journal.append(opened("r1"), follows=0)
        async with build().running(settings):
            await stored(gateway, "r1", "queued")
        async with build().running(settings):
            await stored(gateway, "r1", "queued")
            with pytest.raises(Refusal, match="no run nobody"):
                await gateway.bus.ask(ReadRun(run_id="nobody"))
