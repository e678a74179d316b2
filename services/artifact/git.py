"""Runs git in a hardened environment: no system or user configuration, no hooks, no prompts, no credential helpers, no
lazy fetches, and no transport but the ones a call names.

Invariant: a git process and all its children end with the call that started them, also at a deadline and on cancel.
"""

import asyncio
import contextlib
import os
import resource
import signal
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO

from services.artifact.errors import GitFailed, GitTimedOut

HIDDEN_REFS = ("refs/runs", "refs/remotes", "refs/origin")
# Flaws of old commits that harm nobody and that well-known repositories carry.
_HARMLESS_FLAWS = (
    "zeroPaddedFilemode",
    "badTimezone",
    "missingSpaceBeforeDate",
    "missingNameBeforeEmail",
    "missingEmail",
    "badEmail",
    "missingTaggerEntry",
    "badTagName",
)

CONFIG: tuple[tuple[str, str], ...] = (
    ("core.hooksPath", "/dev/null"),
    ("core.fsmonitor", "false"),
    ("core.attributesFile", "/dev/null"),
    ("core.quotePath", "false"),
    ("core.fsync", "committed"),
    ("core.logAllRefUpdates", "false"),
    ("credential.helper", ""),
    ("gc.auto", "0"),
    ("maintenance.auto", "false"),
    ("i18n.logOutputEncoding", "UTF-8"),
    ("submodule.recurse", "false"),
    ("fetch.recurseSubmodules", "false"),
    ("http.followRedirects", "initial"),
    ("http.lowSpeedLimit", "1000"),
    ("http.lowSpeedTime", "60"),
    ("fetch.fsckObjects", "true"),
    ("receive.fsckObjects", "true"),
    *((f"{side}.fsck.{flaw}", "ignore") for side in ("fetch", "receive") for flaw in _HARMLESS_FLAWS),
    *(("transfer.hideRefs", prefix) for prefix in HIDDEN_REFS),
)
# Our own repositories may lie on a volume that another user owns; a source's ownership is git's to judge.
OWN_CONFIG = (*CONFIG, ("safe.directory", "*"))
_NETWORK_VARIABLES = (
    "http_proxy",
    "https_proxy",
    "HTTPS_PROXY",
    "ALL_PROXY",
    "no_proxy",
    "NO_PROXY",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "GIT_SSL_CAINFO",
    "SSH_AUTH_SOCK",
)
_STDERR_KEPT_BYTES = 32_768
_CHUNK_BYTES = 65_536
_GRACE_SECONDS = 2.0


@dataclass(frozen=True)
class Result:
    """What a finished git command left: exit code, standard output (bytes), standard error (text)."""

    code: int
    stdout: bytes
    stderr: str
    truncated: bool = False

    @property
    def text(self) -> str:
        return self.stdout.decode("utf-8", "surrogateescape").strip()


@dataclass(frozen=True)
class Git:
    """Git in one directory. `protocols` are the transports a command may use, none by default; `inherited` descriptors stay open in it."""

    directory: Path
    protocols: tuple[str, ...] = ()
    config: Sequence[tuple[str, str]] = OWN_CONFIG
    variables: Mapping[str, str] = field(default_factory=dict)
    timeout_seconds: float = 120.0
    max_file_bytes: int | None = None
    inherited: tuple[int, ...] = ()

    def having(self, **variables: str) -> "Git":
        """The same, with more environment variables."""
        return replace(self, variables={**self.variables, **variables})

    def environment(self) -> dict[str, str]:
        """The whole environment of a git process: nothing is inherited but the search path and, for transports, the proxies."""
        env = {
            "PATH": os.environ.get("PATH", os.defpath),
            "HOME": "/nonexistent",
            "LC_ALL": "C",
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_GLOBAL": "/dev/null",
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_ALLOW_PROTOCOL": ":".join(self.protocols) or "none",
            "GIT_NO_LAZY_FETCH": "1",
            "GIT_NO_REPLACE_OBJECTS": "1",
            "GIT_LITERAL_PATHSPECS": "1",
            "GIT_SSH_COMMAND": "ssh -o BatchMode=yes -o ConnectTimeout=20",
            "GIT_CONFIG_COUNT": str(len(self.config)),
        }
        for number, (key, value) in enumerate(self.config):
            env[f"GIT_CONFIG_KEY_{number}"], env[f"GIT_CONFIG_VALUE_{number}"] = key, value
        if self.protocols:
            env |= {name: os.environ[name] for name in _NETWORK_VARIABLES if name in os.environ}
        return env | dict(self.variables)

    async def run(
        self, *arguments: str, stdin: bytes | IO[bytes] = b"", ok: Collection[int] = (0,), max_output_bytes: int | None = None
    ) -> Result:
        """Runs `git <arguments>` to its end. Output over `max_output_bytes` is cut and the command ended.

        Raises GitFailed on an exit code outside `ok` (with git's last words), GitTimedOut at the deadline.
        """
        try:
            async with asyncio.timeout(self.timeout_seconds), self.spawn(*arguments, stdin=stdin) as process:
                result = await _communicate(process, stdin if isinstance(stdin, bytes) else b"", max_output_bytes)
        except TimeoutError as error:
            raise GitTimedOut(f"git {arguments[0]} did not end within {self.timeout_seconds:g} seconds. Try again later.") from error
        if result.code not in ok and not result.truncated:
            raise GitFailed(f"git {arguments[0]} failed with exit code {result.code}: {result.stderr.strip()[-2000:]}")
        return result

    async def text(self, *arguments: str, stdin: bytes = b"") -> str:
        """Standard output of a command that must succeed, without the white space around it."""
        return (await self.run(*arguments, stdin=stdin)).text

    async def stream(self, *arguments: str, stdin: bytes = b"") -> AsyncGenerator[bytes, None]:
        """Standard output of a command, piece by piece. Raises GitFailed after the last piece when the command failed."""
        async with self.spawn(*arguments) as process:
            feeding = asyncio.create_task(feed(process, stdin))
            complaints = asyncio.create_task(read_tail(process.stderr))
            try:
                while piece := await process.stdout.read(_CHUNK_BYTES):  # type: ignore[union-attr]  # a pipe, by construction
                    yield piece
                await feeding
                if code := await process.wait():
                    raise GitFailed(f"git {arguments[0]} failed with exit code {code}: {(await complaints).strip()}")
            finally:
                feeding.cancel()
                complaints.cancel()

    @contextlib.asynccontextmanager
    async def spawn(self, *arguments: str, stdin: bytes | IO[bytes] = b"") -> AsyncIterator[asyncio.subprocess.Process]:
        """A running `git <arguments>` with piped output; its whole process group ends when the block is left."""
        process = await self.start(*arguments, stdin=stdin)
        try:
            yield process
        finally:
            await end(process)

    async def start(self, *arguments: str, stdin: bytes | IO[bytes] = b"") -> asyncio.subprocess.Process:
        """A running `git <arguments>` that the caller must hand to `end`."""
        try:
            process = await asyncio.create_subprocess_exec(
                "git",
                *arguments,
                cwd=self.directory,
                env=self.environment(),
                stdin=asyncio.subprocess.PIPE if isinstance(stdin, bytes) else stdin,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                start_new_session=True,
                pass_fds=self.inherited,
            )
        except FileNotFoundError as error:
            raise GitFailed(f"git cannot be started in {self.directory}: {error}. Install git, version 2.38 or newer.") from error
        if self.max_file_bytes is not None:
            with contextlib.suppress(ProcessLookupError):
                resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (self.max_file_bytes, self.max_file_bytes))
        return process


async def end(process: asyncio.subprocess.Process) -> None:
    """Ends the process group if it still runs, and waits for its leader.

    First politely: git removes its lock files on SIGTERM, and a lock that stays blocks a reference for good.
    """
    if process.returncode is None:
        _signal(process, signal.SIGTERM)
        waiting = asyncio.ensure_future(process.wait())
        try:
            await asyncio.wait({waiting}, timeout=_GRACE_SECONDS)
        finally:
            _signal(process, signal.SIGKILL)
    await asyncio.shield(process.wait())


def _signal(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    """Signals the group; its leader's id is ours as long as the leader was not waited for."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)


async def read_tail(reader: asyncio.StreamReader | None) -> str:
    """Drains a stream and keeps its end."""
    kept = b""
    while reader is not None and (piece := await reader.read(_CHUNK_BYTES)):
        kept = (kept + piece)[-_STDERR_KEPT_BYTES:]
    return kept.decode("utf-8", "replace")


async def feed(process: asyncio.subprocess.Process, data: bytes) -> None:
    """Writes all of a process's input and closes it."""
    if process.stdin is None:
        return
    # A command that has read enough closes its input early; its exit code tells whether that was an error. uvloop says RuntimeError.
    with contextlib.suppress(BrokenPipeError, ConnectionResetError, RuntimeError):
        process.stdin.write(data)
        await process.stdin.drain()
    process.stdin.close()


async def _read_up_to(process: asyncio.subprocess.Process, limit: int | None) -> tuple[bytes, bool]:
    pieces: list[bytes] = []
    size = 0
    while process.stdout is not None and (piece := await process.stdout.read(_CHUNK_BYTES)):
        pieces.append(piece)
        size += len(piece)
        if limit is not None and size > limit:
            await end(process)
            return b"".join(pieces)[:limit], True
    return b"".join(pieces), False


async def _communicate(process: asyncio.subprocess.Process, data: bytes, max_output_bytes: int | None) -> Result:
    async with asyncio.TaskGroup() as group:
        feeding = group.create_task(feed(process, data))
        output = group.create_task(_read_up_to(process, max_output_bytes))
        complaints = group.create_task(read_tail(process.stderr))
    await feeding
    stdout, truncated = output.result()
    return Result(await process.wait(), stdout, complaints.result(), truncated)


def nul_fields(data: bytes) -> Iterable[str]:
    """The NUL-terminated fields of git's `-z` output. Bytes that are not UTF-8 survive as surrogates."""
    return data.decode("utf-8", "surrogateescape").split("\0")[:-1] if data else []
