"""Many runs parked for approval: what they hold in memory, and whether each of them goes on."""

import asyncio
import sys
import time
from dataclasses import dataclass

import psutil

from bench.noop import Watcher, opened, running, services
from libs.bus.broker import Broker
from libs.bus.journal import Journal
from libs.contracts import run as events
from libs.settings import BusSettings

_IN_FLIGHT = 200


@dataclass(frozen=True)
class Parked:
    """What was seen: seconds to park and to resume all, and the resident memory (broker and services) over idle, in bytes."""

    runs: int
    park_seconds: float
    resume_seconds: float
    over_idle_bytes: int
    finished: int


def resident(server: Broker) -> int:
    """Resident bytes of the broker and of this process, which runs the services."""
    assert server.process is not None
    return psutil.Process(server.process.pid).memory_info().rss + psutil.Process().memory_info().rss


async def parked(server: Broker, settings: BusSettings, runs: int) -> Parked:
    """Open `runs` runs that each ask a person, measure, approve all, and wait until all have finished."""
    async with running(settings, services(parked=True)) as connection:
        journal = Journal(connection)
        asked, finished = Watcher(connection), Watcher(connection)
        sequences: dict[str, tuple[int, int]] = {}

        async def on_asked(message: object) -> None:
            request = events.ApprovalRequested.model_validate_json(message.data)  # type: ignore[attr-defined]  # nats-py has no types
            sequences[request.run_id] = (request.of, 0)

        await connection.subscribe("run.*.approval_requested", on_asked)
        await asked.start("approval_requested")
        await finished.start("finished")
        idle = resident(server)
        begin = time.perf_counter()
        await _each(runs, lambda i: journal.append(opened(f"p{i}"), follows=0), asked)
        park_seconds = time.perf_counter() - begin
        await asyncio.sleep(2)  # let the last acknowledgements and exports settle before memory is read
        over = resident(server) - idle
        begin = time.perf_counter()
        await _each(runs, lambda i: _approve(journal, f"p{i}", sequences[f"p{i}"][0]), finished)
        return Parked(runs, park_seconds, time.perf_counter() - begin, over, finished.count)


async def _approve(journal: Journal, run_id: str, of: int) -> None:
    last = (await journal.read(run_id, of))[-1].sequence
    await journal.append(events.RunApproved(run_id=run_id, step="edit", of=of, by="bench"), follows=last)


async def _each(count: int, action: object, settled: Watcher) -> None:
    """In batches of 5,000, each settled before the next one begins."""
    gate = asyncio.Semaphore(_IN_FLIGHT)

    async def one(i: int) -> None:
        async with gate:
            await action(i)  # type: ignore[operator]  # any coroutine function

    for start in range(0, count, 5000):
        print(f"  … {start} of {count}", file=sys.stderr, flush=True)
        stop = min(start + 5000, count)
        await asyncio.gather(*(one(i) for i in range(start, stop)))
        await settled.reach(stop, 1800)
