"""Real processes under supervision."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import psutil
import pytest

from libs.testkit.broker import until
from services.cli.home import HomeFolder, Runtime
from services.cli.leftovers import end_leftovers
from services.cli.supervisor import Child


class Watched:
    """A supervised child with what it said and its starts."""

    def __init__(self, code: str) -> None:
        self.said: list[str] = []
        self.pids: list[int] = []
        self.child = Child("x", [sys.executable, "-u", "-c", code], dict(os.environ), self._say, self._started)

    def _say(self, name: str, line: str) -> None:
        self.said.append(line)

    def _started(self, name: str, pid: int, at: float) -> None:
        self.pids.append(pid)


@asynccontextmanager
async def kept(code: str) -> AsyncIterator[Watched]:
    watched = Watched(code)
    task = asyncio.create_task(watched.child.keep())
    try:
        yield watched
    finally:
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


def gone(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


async def test_a_process_that_dies_is_started_again():
    async with kept("import time; print('up'); time.sleep(60)") as watched:
        await until(lambda: "up" in watched.said)
        os.kill(watched.pids[0], signal.SIGKILL)
        await until(lambda: len(watched.pids) == 2)
        assert any("SIGKILL" in line for line in watched.said)
    assert all(gone(pid) for pid in watched.pids)


async def test_one_that_ignores_the_polite_signal_is_killed_with_its_children(monkeypatch):
    monkeypatch.setattr("services.cli.supervisor.STOP_SECONDS", 0.3)
    code = (
        "import signal, subprocess, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(60)'])\n"
        "print('child', child.pid); time.sleep(60)"
    )
    async with kept(code) as watched:
        await until(lambda: any(line.startswith("child ") for line in watched.said))
        grandchild = int(watched.said[0].split()[1])
    assert gone(watched.pids[0])
    await until(lambda: gone(grandchild))


async def test_a_line_without_end_does_not_stop_the_reading():
    async with kept("print('x' * 3_000_000); print('after', flush=True); import time; time.sleep(60)") as watched:
        await until(lambda: "after" in watched.said)


async def test_a_child_dies_with_a_supervisor_that_is_killed():
    code = (
        "import asyncio, os, sys\n"
        "from services.cli.supervisor import Child\n"
        "def started(name, pid, at): print(pid, flush=True)\n"
        "child = Child('x', [sys.executable, '-c', 'import time; time.sleep(60)'], dict(os.environ), print, started)\n"
        "asyncio.run(child.keep())"
    )
    supervisor = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE)
    assert supervisor.stdout is not None
    pid = int(await supervisor.stdout.readline())
    supervisor.kill()
    await supervisor.wait()
    await until(lambda: gone(pid))


async def test_what_a_killed_server_left_is_ended_and_nothing_else(tmp_path):
    home = HomeFolder(tmp_path)
    sleeping = [sys.executable, "-c", "import time; time.sleep(60)"]
    ours = await asyncio.create_subprocess_exec(*sleeping)
    broker = await asyncio.create_subprocess_exec(*sleeping, str(tmp_path / "nats.conf"))
    other = await asyncio.create_subprocess_exec(*sleeping, str(tmp_path / "other" / "nats.conf"))
    try:
        runtime = Runtime(1, "http://127.0.0.1:1", "nats://127.0.0.1:1", "http://127.0.0.1:1")
        runtime.processes = {"editor": (ours.pid, psutil.Process(ours.pid).create_time()), "planner": (other.pid, 1.0)}
        home.write_runtime(runtime)
        ended = await asyncio.to_thread(end_leftovers, home)
        assert ended == sorted([ours.pid, broker.pid])
        assert other.returncode is None
        assert home.runtime() is None
    finally:
        for process in (ours, broker, other):
            if process.returncode is None:
                process.kill()
            await process.wait()
