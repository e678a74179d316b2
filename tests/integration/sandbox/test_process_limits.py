"""Commands that do not stop, print, fork, eat memory or fill the disk without end; with control groups and without."""

import asyncio
import os
from pathlib import Path

import psutil
import pytest

from services.sandbox.backends.bubblewrap import find_bubblewrap
from services.sandbox.backends.cgroups import ControlGroups
from services.sandbox.backends.process import ProcessBackend

MEBIBYTE = 1024 * 1024


@pytest.fixture(params=["control-groups", "polling"])
def limited(request: pytest.FixtureRequest, backend: ProcessBackend, monkeypatch: pytest.MonkeyPatch) -> ProcessBackend:
    if request.param == "polling":
        monkeypatch.setattr(backend, "_groups", ControlGroups.none())
    return backend


def processes_with(mark: str) -> list[str]:
    """Command lines of host processes that carry the mark, our own sandbox's outer process included."""
    found = []
    for process in psutil.process_iter(["cmdline", "environ"]):
        if process.pid != os.getpid() and any(mark in part for part in process.info["cmdline"] or ()):
            found.append(" ".join(process.info["cmdline"]))
    return found


async def test_deadline_ends_a_command_that_hangs(backend, command):
    result = await backend.run(command("echo before; sleep 600", timeout_seconds=0.5))
    assert (result.outcome, result.exit_code, result.stdout) == ("timeout", None, b"before\n")
    assert "0.5 seconds" in result.reason


async def test_grandchild_that_ignores_signals_and_holds_the_pipe_is_gone_at_the_deadline(backend, command, tmp_path):
    mark = f"mark-{tmp_path.name}-{os.getpid()}"
    script = (
        "import os, signal, sys, time\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT): signal.signal(number, signal.SIG_IGN)\n"
        "    print('grandchild', flush=True)\n"
        "    while True: time.sleep(1)\n"
        "time.sleep(600)\n"
    )
    result = await backend.run(command(["python", "-c", script, mark], timeout_seconds=1))
    assert (result.outcome, result.stdout) == ("timeout", b"grandchild\n")
    assert processes_with(mark) == []


async def test_command_that_leaves_a_daemon_returns_and_the_daemon_is_gone(backend, command, tmp_path):
    mark = f"mark-{tmp_path.name}-{os.getpid()}"
    result = await backend.run(command(f"setsid sh -c 'while true; do sleep 1; done' {mark} & echo started", timeout_seconds=60))
    assert (result.outcome, result.exit_code, result.stdout) == ("exited", 0, b"started\n")
    assert processes_with(mark) == []


async def test_cancelled_command_is_gone(backend, command, tmp_path):
    mark = f"mark-{tmp_path.name}-{os.getpid()}"
    begun = asyncio.Event()

    async def on_output(_stream, _data):
        begun.set()

    running = asyncio.create_task(backend.run(command(["sh", "-c", "echo; sleep 600; true", mark]), on_output))
    await asyncio.wait_for(begun.wait(), 20)
    assert processes_with(mark)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert processes_with(mark) == []


async def test_deadline_holds_when_the_reader_of_the_output_is_stuck(backend, command):
    async def on_output(_stream, _data):
        await asyncio.Event().wait()

    result = await backend.run(command("yes", timeout_seconds=0.5), on_output)
    assert result.outcome == "timeout"


async def test_output_without_end_is_cut_off_with_head_and_tail_kept(backend, command):
    spec = command("echo first; head -c 100000000 /dev/zero | tr '\\0' x; echo last", output_bytes=4 * MEBIBYTE, kept_output_bytes=10_000)
    result = await backend.run(spec)
    assert (result.outcome, result.exit_code) == ("output_limit", None)
    assert result.stdout.startswith(b"first\nxxx")
    assert b"bytes left out" in result.stdout
    assert len(result.stdout) < 11_000


async def test_long_output_under_the_limit_keeps_its_ends(backend, command):
    result = await backend.run(command("seq 1 200000", kept_output_bytes=10_000))
    assert result.exit_code == 0
    assert result.stdout_truncated
    assert result.stdout.startswith(b"1\n2\n")
    assert result.stdout.endswith(b"199999\n200000\n")


async def test_fork_bomb_ends_and_leaves_nothing(limited, command, tmp_path):
    mark = f"mark-{tmp_path.name}-{os.getpid()}"
    script = "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass\n"
    result = await limited.run(command(["python", "-c", script, mark], timeout_seconds=2, processes=64))
    assert result.outcome in {"timeout", "killed"}
    assert result.exit_code is None
    assert processes_with(mark) == []


async def test_memory_hog_is_stopped(limited, command):
    script = "hog = []\nwhile True: hog.append(bytearray(b'x' * 4_000_000))"
    result = await limited.run(command(["python", "-c", script], memory_bytes=128 * MEBIBYTE))
    assert result.outcome == "memory_limit" or (result.outcome == "exited" and b"MemoryError" in result.stderr)


async def test_memory_is_counted_over_all_processes(limited, command):
    hog = "python -c \"import time; hog = b'x' * 60_000_000; time.sleep(600)\""
    result = await limited.run(command(f"{hog} & {hog} & {hog} & {hog} & wait", memory_bytes=160 * MEBIBYTE, timeout_seconds=60))
    assert result.outcome == "memory_limit"
    assert "bytes of memory" in result.reason


async def test_temporary_folder_has_its_size(backend, command):
    result = await backend.run(command("head -c 50000000 /dev/zero > /tmp/x || stat -c %s /tmp/x", tmp_bytes=8 * MEBIBYTE))
    assert int(result.stdout) <= 8 * MEBIBYTE


async def test_file_over_the_size_limit_is_not_written(backend, command):
    result = await backend.run(command("python -c \"open('big', 'wb').write(bytes(3_000_000))\"; stat -c %s big", file_bytes=MEBIBYTE))
    assert int(result.stdout) <= MEBIBYTE
    assert b"File too large" in result.stderr


async def test_disk_filler_is_stopped(backend, command):
    script = "i=0; while true; do i=$((i+1)); head -c 1000000 /dev/zero > f$i; sleep 0.005; done"
    result = await backend.run(command(script, disk_bytes=20 * MEBIBYTE, timeout_seconds=60))
    assert result.outcome == "disk_limit"
    assert "may hold" in result.reason


async def test_disk_filler_in_its_home_behind_a_closed_folder_is_stopped(backend, command):
    script = "mkdir ~/deep && cd ~/deep && head -c 30000000 /dev/zero > f && chmod 0 ~/deep && sleep 600"
    result = await backend.run(command(script, disk_bytes=20 * MEBIBYTE, timeout_seconds=60))
    assert result.outcome == "disk_limit"


async def test_many_commands_at_once_do_not_mix(backend, command):
    results = await asyncio.gather(*(backend.run(command(f"echo {n}; exit {n}")) for n in range(20)))
    assert [(result.exit_code, result.stdout) for result in results] == [(n, f"{n}\n".encode()) for n in range(20)]


async def test_no_group_and_no_descriptor_is_left(backend, command):
    await backend.run(command("true"))
    before = len(os.listdir("/proc/self/fd"))
    for text in ("true", "sleep 600", "exit 1"):
        await backend.run(command(text, timeout_seconds=0.3))
    assert len(os.listdir("/proc/self/fd")) == before
    assert list(Path("/sys/fs/cgroup").rglob(f"agent-coder-{os.getpid()}-*")) == []
    assert not any(find_bubblewrap().name in line for line in processes_with(str(find_bubblewrap())) if f"{os.getpid()}" in line)
