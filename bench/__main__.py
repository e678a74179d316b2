"""`make bench`: prints the table of docs/performance.md for this machine.

python -m bench [--quick | --full] [PART …]

PART is flow, parked, sandbox, product, chat or sessions; without one all are measured.
"""

import argparse
import asyncio
import os
import platform
import tempfile
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from bench import noop
from bench.chat import Crowd, Overhead, chat
from bench.computer import first_command
from bench.parked import parked
from bench.product import product
from bench.sessions import sessions, table
from libs.testkit.broker import broker

_MB = 1024 * 1024


def quantile(samples: list[float], share: float) -> float:
    """A quantile in milliseconds."""
    ordered = sorted(samples)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] * 1000


def row(name: str, value: str, against: str = "", goal: str = "") -> None:
    """One line of the table."""
    print(f"| {name} | {value} | {against} | {goal} |", flush=True)


async def flow(sync: str, words: str, runs: int) -> None:
    """Latency and throughput of the five-step run that does nothing."""
    with tempfile.TemporaryDirectory() as home:
        async with broker(Path(home), sync, 15.0) as (_, settings):
            floor_seconds, floor_rate = await noop.floor(settings, runs, 100)
            async with noop.running(settings, noop.services()) as connection:
                seen = await noop.sequential(connection, max(100, runs // 5))
                rate = await noop.throughput(connection, runs, 100, "t")
    p = quantile
    floor_ms = floor_seconds * 1000
    row(f"run start, {words}: p50 / p99", f"{p(seen['start'], 0.5):.2f} / {p(seen['start'], 0.99):.2f} ms", "", "p99 ≤ 5 ms")
    steps = f"{p(seen['step'], 0.5):.2f} / {p(seen['step'], 0.75):.2f} / {p(seen['step'], 0.99):.2f} ms"
    row(f"step to step, {words}: p50 / p75 / p99", steps, f"{p(seen['step'], 0.5) / (floor_ms / 6):.1f} × an append", "p75 ≤ 2 ms")
    run50 = p(seen["run"], 0.5)
    row(
        f"five-step run, {words}: p50 / p99",
        f"{run50:.2f} / {p(seen['run'], 0.99):.2f} ms",
        f"{run50 / floor_ms:.1f} × {floor_ms:.2f} ms",
        "p50 ≤ 9 ms",
    )
    row(f"runs a second, 100 in flight, {words}", f"{rate:.0f}", f"{rate / floor_rate:.2f} × {floor_rate:.0f}", "≥ 250 fsynced")


async def parking(runs: int) -> None:
    """Runs that wait for a person."""
    with tempfile.TemporaryDirectory() as home:
        async with broker(Path(home), "always", 30.0) as (server, settings):
            seen = await parked(server, settings, runs)
    row(
        f"{runs} runs parked: seconds to park / to resume all",
        f"{seen.park_seconds:.0f} / {seen.resume_seconds:.0f} s",
        f"{seen.finished} finished",
    )
    row(f"{runs} runs parked: memory over idle", f"{seen.over_idle_bytes / _MB:.0f} MB", "", "≤ 300 MB at 50,000")


async def sandbox() -> None:
    """A sandbox beside a bare process."""
    seen = await first_command()
    against = f"{seen.sandbox_ms / seen.bare_ms:.1f} × a bare process, {seen.bare_ms:.1f} ms"
    row("sandbox to first command: p50", f"{seen.sandbox_ms:.1f} ms", against)


async def whole() -> None:
    """The product at its start and at rest."""
    seen = await product()
    row("start to ready: p50", f"{seen.ready_seconds:.2f} s", "", "≤ 3 s")
    row(f"idle memory, {seen.processes} processes", f"{seen.idle_bytes / _MB:.0f} MB", "", "≤ 350 MB")


async def chats(rounds: int, streams: int) -> None:
    """What the gateway adds to a model's call beside a proxy, and many streams at once."""
    seen = await chat(rounds, streams)
    names = {"v1": "`/v1`, whole", "v1 streamed": "`/v1`, streamed", "chat": "`/api/chat`, a new conversation each"}
    for way, words in names.items():
        beside = seen.overhead.get("proxy" if way == "v1" else "proxy streamed")
        for moment in ("end",) if way == "v1" else ("first word", "end"):
            against = f"{_ratio(seen.overhead[way], beside, moment):.2f} × the proxy's {_over(beside, moment)}" if beside else seen.proxy
            goal = "p50 ≤ 6 ms and below the proxy's" if moment == "end" else ""
            row(f"over a bare call, {words}, to the {moment}: p50 / p99", _over(seen.overhead[way], moment), against, goal)
        mine, other = seen.processor[way], seen.processor.get("proxy" if way == "v1" else "proxy streamed")
        against = f"{mine / other:.2f} × the proxy's {other * 1000:.1f} ms" if other else seen.proxy
        row(f"processor time of a call, {words}, broker included", f"{mine * 1000:.1f} ms", against)
    if "proxy" in seen.overhead:
        row("the proxy", seen.proxy)
    for way, at_once in seen.crowds.items():
        row(f"{streams} streams at once, {way}: first word p50 / p99", _first(at_once), _versus(at_once, seen.crowds["bare streamed"]))
        if at_once.most_bytes:
            over = at_once.most_bytes - at_once.idle_bytes
            row(f"{streams} streams at once, {way}: memory", f"{at_once.most_bytes / _MB:.0f} MB", f"{over / _MB:.0f} MB over before")


def _over(seen: Overhead, moment: str) -> str:
    samples = seen.end if moment == "end" else seen.first
    return f"{quantile(samples, 0.5):.1f} / {quantile(samples, 0.99):.1f} ms"


def _ratio(seen: Overhead, beside: Overhead, moment: str) -> float:
    """Of the medians."""
    mine, other = (of.end if moment == "end" else of.first for of in (seen, beside))
    return quantile(mine, 0.5) / quantile(other, 0.5)


def _first(seen: Crowd) -> str:
    failed = f", {seen.failed} failed" if seen.failed else ""
    return (f"{quantile(seen.first, 0.5):.0f} / {quantile(seen.first, 0.99):.0f} ms" if seen.first else "none") + failed


def _versus(seen: Crowd, bare: Crowd) -> str:
    if seen is bare or not (seen.first and bare.first):
        return ""
    return f"{quantile(seen.first, 0.5) / quantile(bare.first, 0.5):.1f} × the provider itself"


async def stored(messages: int) -> None:
    """Conversations on both databases."""
    for which in ("sqlite", "postgresql"):
        for line in table(which, await sessions(which, messages), messages):
            row(*line)


@dataclass(frozen=True)
class Size:
    """How much is measured."""

    runs: int = 2000
    parked: int = 50_000
    chats: int = 300
    streams: int = 500
    messages: int = 100_000


_QUICK = Size(runs=400, parked=2000, chats=60, streams=100, messages=10_000)
_FULL = Size(messages=1_000_000)


async def flows(runs: int) -> None:
    """The run that does nothing, with both ways of syncing."""
    await flow("always", "fsync always", runs)
    await flow("2m", "relaxed", runs)


def parts(size: Size) -> dict[str, Callable[[], Awaitable[None]]]:
    """What can be measured, in the order of the table."""
    return {
        "flow": lambda: flows(size.runs),
        "sandbox": sandbox,
        "product": whole,
        "chat": lambda: chats(size.chats, size.streams),
        "sessions": lambda: stored(size.messages),
        "parked": lambda: parking(size.parked),
    }


async def run(size: Size, names: list[str]) -> None:
    """The rows of the parts, or of all."""
    print(f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}\n")
    print("| what | seen | against the floor | to reach |\n|---|---|---|---|")
    for name, part in parts(size).items():
        if not names or name in names:
            await part()


def main() -> None:
    """Parse and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    amount = parser.add_mutually_exclusive_group()
    amount.add_argument("--quick", action="store_true", help="fewer runs, 2,000 parked, 100 streams, 10,000 messages")
    amount.add_argument("--full", action="store_true", help="search over 1,000,000 messages instead of 100,000")
    parser.add_argument("part", nargs="*", help="what to measure: " + ", ".join(parts(Size())))
    asked = parser.parse_args()
    unknown = sorted(set(asked.part) - set(parts(Size())))
    if unknown:
        parser.error(f"there is no part {', '.join(unknown)}; there are: {', '.join(parts(Size()))}")
    asyncio.run(run(_QUICK if asked.quick else _FULL if asked.full else Size(), asked.part))


if __name__ == "__main__":
    main()
