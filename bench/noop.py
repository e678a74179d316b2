"""The main job with steps that do nothing: what the bus itself costs, beside the same appends made with bare nats-py."""

import asyncio
import itertools
import json
import statistics
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import nats

from libs.bus import NeedsHuman, Service, Step
from libs.bus.connection import Connection
from libs.bus.journal import Journal
from libs.contracts import run as events
from libs.settings import BusSettings

SHA = "a" * 40
PADDING = "x" * 1000
PASSED = events.Verdict(ok=True, outcome="passed", feedback=PADDING)
PLAN = events.Plan(summary=PADDING, steps=(events.PlanStep(title="nothing"),))
EVENTS = ("opened", "planned", "edited", "verified", "committed", "finished")


def opened(run_id: str, body: str = PADDING) -> events.RunOpened:
    """A run of 1 KB."""
    return events.RunOpened(run_id=run_id, issue=events.Issue(id="1", title="t", body=body), repo="demo", opened_at=datetime.now(UTC))


async def plan(event: events.RunOpened, _: Step) -> events.RunPlanned:
    """Plan nothing."""
    return events.RunPlanned(run_id=event.run_id, attempt=1, plan=PLAN, repository="demo", base_branch="main", base_commit=SHA)


async def edit(event: events.RunPlanned, _: Step) -> events.RunEdited:
    """Change nothing."""
    return events.RunEdited(run_id=event.run_id, attempt=1, commit=SHA, tree=SHA, changed_files=(), summary=PADDING)


async def verify(event: events.RunEdited, _: Step) -> events.RunVerified:
    """Test nothing."""
    return events.RunVerified(run_id=event.run_id, attempt=1, commit=SHA, verdict=PASSED)


async def commit(event: events.RunVerified, _: Step) -> events.RunCommitted:
    """Commit nothing."""
    return events.RunCommitted(run_id=event.run_id, attempt=1, repository="demo", branch="b", sha=SHA, message=PADDING)


async def finish(event: events.RunCommitted, _: Step) -> events.RunFinished:
    """End it."""
    return events.RunFinished(run_id=event.run_id, attempts=1, branch="b", sha=SHA, test_summary=PADDING)


async def park(event: events.RunPlanned, step: Step) -> events.RunEdited:
    """Ask a person first."""
    if step.causation == step.sequence:
        raise NeedsHuman("go on?")
    return await edit(event, step)


def services(*, parked: bool = False, concurrency: int = 128) -> list[Service]:
    """The five steps of the main job in their five services, and who reads the spans."""
    planner, editor, verifier, artifact, forge = (Service(name) for name in ("planner", "editor", "verifier", "artifact", "forge"))
    options: dict[str, Any] = {"concurrency": concurrency, "claim": False}
    planner.step("plan", on=(events.RunOpened, events.RunRejected), **options)(plan)
    editor.step("edit", on=(events.RunPlanned,), **options)(park if parked else edit)
    verifier.step("verify", on=(events.RunEdited,), **options)(verify)
    artifact.step("commit", on=(events.RunVerified,), **options)(commit)
    forge.step("publish", on=(events.RunCommitted,), **options)(finish)
    return [planner, editor, verifier, artifact, forge, _span_reader()]


def _span_reader() -> Service:
    """Takes the exported spans off the bus, as the session store does; what storing them costs is not measured here."""
    store = Service("session_store")

    @store.view("spans", "TRACE", events=False)
    async def spans(_: list[Any]) -> None: ...

    return store


class Watcher:
    """Knows when a run has reached an event."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._waiting: dict[str, asyncio.Future[float]] = {}
        self.count = 0
        self.target = asyncio.Event()
        self.target_count = -1

    async def start(self, event: str) -> None:
        """Listen for `run.*.<event>`."""
        await self._connection.subscribe(f"run.*.{event}", self._on_event)

    async def _on_event(self, message: Any) -> None:
        self.count += 1
        future = self._waiting.pop(message.subject.split(".")[1], None)
        if future is not None and not future.done():
            future.set_result(time.perf_counter())
        if self.count == self.target_count:
            self.target.set()

    def expect(self, run_id: str) -> asyncio.Future[float]:
        """The time at which the run gets there."""
        return self._waiting.setdefault(run_id, asyncio.get_running_loop().create_future())

    async def reach(self, count: int, seconds: float) -> None:
        """Wait until `count` events in all were seen."""
        self.target_count = count
        self.target.clear()
        if self.count < count:
            await asyncio.wait_for(self.target.wait(), seconds)


@asynccontextmanager
async def running(settings: BusSettings, listed: list[Service]) -> AsyncIterator[Connection]:
    """The services at work, and a connection of the administrator beside them."""
    async with AsyncExitStack() as stack:
        for service in listed:
            await stack.enter_async_context(service.running(settings))
        admin = await Connection.open(settings, "admin")
        stack.push_async_callback(admin.close)
        yield admin


async def floor(settings: BusSettings, runs: int, in_flight: int) -> tuple[float, float]:
    """Bare nats-py: six fenced appends of 1 KB a run, one after the other. Returns (p50 seconds a run, runs a second)."""
    client = await nats.connect(settings.nats_url, user="admin", password=settings.password("admin"))
    payload = PADDING.encode()

    async def one(run_id: str) -> float:
        start, last = time.perf_counter(), 0
        for event in EVENTS:
            headers = {
                "Nats-Expected-Last-Subject-Sequence": str(last),
                "Nats-Expected-Last-Subject-Sequence-Subject": f"run.{run_id}.>",
            }
            reply = await client.request(f"run.{run_id}.{event}x", payload, timeout=30, headers=headers)
            last = json.loads(reply.data)["seq"]
        return time.perf_counter() - start

    single = [await one(f"floor{in_flight}s{i}") for i in range(min(runs, 100))]
    start = time.perf_counter()
    gate = asyncio.Semaphore(in_flight)

    async def gated(i: int) -> None:
        async with gate:
            await one(f"floor{in_flight}p{i}")

    await asyncio.gather(*(gated(i) for i in range(runs)))
    rate = runs / (time.perf_counter() - start)
    await client.close()
    return statistics.median(single), rate


async def sequential(connection: Connection, runs: int) -> dict[str, list[float]]:
    """One run at a time: seconds to open it, from step to step (the server's clock), and from open to finished."""
    journal, watcher = Journal(connection), Watcher(connection)
    await watcher.start("finished")
    samples: dict[str, list[float]] = {"start": [], "step": [], "run": []}
    for i in range(runs):
        run_id = f"seq{i}"
        done = watcher.expect(run_id)
        begin = time.perf_counter()
        await journal.append(opened(run_id), follows=0)
        samples["start"].append(time.perf_counter() - begin)
        samples["run"].append(await asyncio.wait_for(done, 30) - begin)
        times = [r.at for r in await journal.read(run_id)]
        samples["step"] += [(b - a).total_seconds() for a, b in itertools.pairwise(times)]
    return samples


async def throughput(connection: Connection, runs: int, in_flight: int, prefix: str) -> float:
    """Runs a second with `in_flight` under way."""
    journal, watcher = Journal(connection), Watcher(connection)
    await watcher.start("finished")
    gate = asyncio.Semaphore(in_flight)

    async def one(i: int) -> None:
        async with gate:
            done = watcher.expect(f"{prefix}{i}")
            await journal.append(opened(f"{prefix}{i}"), follows=0)
            await asyncio.wait_for(done, 120)

    begin = time.perf_counter()
    await asyncio.gather(*(one(i) for i in range(runs)))
    return runs / (time.perf_counter() - begin)
