"""One bubblewrap process and the process namespace that it opened.

The namespace dies with this object: `destroy` returns only when every process in it is gone, whatever they did to stay.
"""

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from services.sandbox.errors import LaunchFailed

GONE_SECONDS = 30.0
STDERR_LIMIT = 8192


@dataclass(frozen=True)
class Ending:
    """`exit_code` is None when bubblewrap was lost before it could tell, or could not start the command (`started` False)."""

    exit_code: int | None
    started: bool


@dataclass(frozen=True)
class ReadPipe:
    """The reading end of a pipe, with flow control."""

    reader: asyncio.StreamReader
    transport: asyncio.ReadTransport

    @classmethod
    async def open(cls, pipe: IO[bytes]) -> "ReadPipe":
        """Read from `pipe`, which is closed with this object."""
        reader = asyncio.StreamReader()
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
        return cls(reader, transport)


@dataclass(frozen=True)
class _Pipes:
    """Pipes of our own: asyncio's would make waiting for the process wait for their readers too."""

    stdout: ReadPipe
    stderr: ReadPipe
    status: ReadPipe
    gate: IO[bytes]

    def close(self) -> None:
        for pipe in (self.stdout, self.stderr, self.status):
            pipe.transport.close()
        self.gate.close()


class Child:
    """A command that is laid out and held back until `release`."""

    def __init__(self, process: asyncio.subprocess.Process, pipes: _Pipes, pid: int, pidfd: int) -> None:
        self.process = process
        self.pid = pid
        self.stdout = pipes.stdout.reader
        self.stderr = pipes.stderr.reader
        self._pipes = pipes
        self._pidfd = pidfd
        self._gone = asyncio.Event()
        asyncio.get_running_loop().add_reader(pidfd, self._gone.set)

    @classmethod
    async def start(cls, bubblewrap: Path, arguments: Sequence[str], command: Sequence[str]) -> "Child":
        """Lay out the sandbox. Raises LaunchFailed with bubblewrap's own words when that does not work."""
        process, pipes = await _spawn(bubblewrap, arguments, command)
        try:
            line = await pipes.status.reader.readline()
            pid = int(json.loads(line)["child-pid"]) if line else 0
            return cls(process, pipes, pid, os.pidfd_open(pid))
        except (OSError, OverflowError):
            await _kill_and_reap(process)
            raise LaunchFailed(await _first_words(pipes.stderr.reader, process)) from None
        except asyncio.CancelledError:
            await _kill_and_reap(process)
            raise
        finally:
            if sys.exc_info()[0] is not None:
                pipes.close()

    def release(self) -> None:
        """Let the command run."""
        with contextlib.suppress(BrokenPipeError):
            self._pipes.gate.write(b"1")
        self._pipes.gate.close()

    async def ended(self) -> Ending:
        """Wait for the end of the command and of all that it left behind."""
        returned = await self.process.wait()
        await self._gone.wait()
        code = _exit_code(await self._pipes.status.reader.read())
        return Ending(exit_code=code, started=code is not None or returned < 0)

    async def kill(self) -> None:
        """Kill the namespace and wait until its last process is dead."""
        if self._pidfd >= 0 and not self._gone.is_set():
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
        await _kill_and_reap(self.process)
        await asyncio.wait_for(self._gone.wait(), GONE_SECONDS)

    async def destroy(self) -> None:
        """Kill what is left and release everything."""
        try:
            await self.kill()
        finally:
            asyncio.get_running_loop().remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pipes.close()


def _pipe() -> tuple[IO[bytes], IO[bytes]]:
    read, write = os.pipe()
    return os.fdopen(read, "rb", buffering=0), os.fdopen(write, "wb", buffering=0)


def _memory_file(arguments: Sequence[str]) -> IO[bytes]:
    """Options travel in memory, so that the namespace's first process does not show the host's paths as its command line."""
    file = os.fdopen(os.memfd_create("options"), "w+b", buffering=0)
    file.write(b"".join(os.fsencode(argument) + b"\0" for argument in arguments))
    file.seek(0)
    return file


async def _spawn(bubblewrap: Path, arguments: Sequence[str], command: Sequence[str]) -> tuple[asyncio.subprocess.Process, _Pipes]:
    """The environment is empty, as /proc/1/environ of the sandbox would show it."""
    ends = [_pipe() for _ in range(4)]
    (out_read, out), (err_read, err), (status_read, status), (gate_read, gate) = ends
    pipes = _Pipes(await ReadPipe.open(out_read), await ReadPipe.open(err_read), await ReadPipe.open(status_read), gate)
    extra = ["--json-status-fd", str(status.fileno()), "--block-fd", str(gate_read.fileno())]
    with out, err, status, gate_read, _memory_file([*arguments, *extra]) as options:
        try:
            process = await asyncio.create_subprocess_exec(
                *(str(bubblewrap), "--args", str(options.fileno()), "--", *command),
                env={},
                cwd="/",
                stdin=asyncio.subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                pass_fds=(options.fileno(), status.fileno(), gate_read.fileno()),
            )
        except BaseException as error:
            pipes.close()
            if isinstance(error, OSError | ValueError):
                raise LaunchFailed(f"the command could not be started: {error}") from error
            raise
    return process, pipes


async def _first_words(stderr: asyncio.StreamReader, process: asyncio.subprocess.Process) -> str:
    words = await stderr.read(STDERR_LIMIT)
    return words.decode(errors="replace").strip() or f"bubblewrap ended with {process.returncode} and said nothing"


def _exit_code(status: bytes) -> int | None:
    for line in status.splitlines():
        document = json.loads(line)
        if "exit-code" in document:
            return int(document["exit-code"])
    return None


async def _kill_and_reap(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
    await process.wait()
