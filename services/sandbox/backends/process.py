"""The process backend: bubblewrap, namespaces and limits, no daemon and no image.

A command sees no network; for set-up it sees a relay to the egress proxy. Where the kernel refuses namespaces the backend says so
and runs nothing.
"""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from services.sandbox.backends import CommandResult, CommandSpec, OnOutput, Stream
from services.sandbox.backends.bubblewrap import EGRESS_SOCKET, RELAY, WORKSPACE, Runtime, arguments, find_bubblewrap
from services.sandbox.backends.capture import Capture, OutputLimitReached
from services.sandbox.backends.cgroups import ControlGroups, Group
from services.sandbox.backends.child import Child, Ending
from services.sandbox.backends.limits import Stop, Watch, apply_resource_limits
from services.sandbox.backends.namespaces import explain, kernel_switches
from services.sandbox.backends.toolchains import Toolchains, discover
from services.sandbox.egress import RELAY_PORT, Egress
from services.sandbox.errors import BackendUnavailable, LaunchFailed

CHUNK_BYTES = 65536
CHECK_SECONDS = 20.0
DRAIN_SECONDS = 2.0
LAUNCHER = ("/bin/sh", "-c", 'cd -- "$1" || exit 126; shift; exec "$@"', "sandbox")

EgressFactory = Callable[[], Awaitable[Egress]]


class ProcessBackend:
    """Runs commands under bubblewrap. One object serves any number of commands at once."""

    name = "process"

    def __init__(
        self, bubblewrap: Path, toolchains: Toolchains, runtime: Runtime, groups: ControlGroups, egress: EgressFactory | None = None
    ) -> None:
        self._bubblewrap = bubblewrap
        self._toolchains = toolchains
        self._runtime = runtime
        self._groups = groups
        self._egress = egress

    @classmethod
    def on_this_machine(cls, folder: Path, toolchains: Sequence[Path] = (), egress: EgressFactory | None = None) -> "ProcessBackend":
        """Find bubblewrap, toolchains and control groups; `folder` gets our small files (blocking). Raises BackendUnavailable."""
        found = discover(toolchains)
        groups = ControlGroups.discover()
        groups.clear()
        return cls(find_bubblewrap(), found, Runtime.lay_out(folder, found), groups, egress)

    async def run(self, spec: CommandSpec, on_output: OnOutput | None = None) -> CommandResult:
        """Run a command to its end, its deadline or a limit (see `Backend.run`)."""
        _require_plain_git_place(spec)
        async with contextlib.AsyncExitStack() as stack:
            spec, socket, binds = await self._open_network(spec, stack)
            group = self._groups.group(spec.limits)
            stack.push_async_callback(group.remove)
            options = arguments(spec, self._toolchains, self._runtime, socket, binds)
            started = time.monotonic()
            child = await Child.start(self._bubblewrap, options, self._command_line(spec))
            stack.push_async_callback(child.destroy)
            await asyncio.to_thread(_limit, child, spec, group)
            return await _Supervision(child, spec, group, on_output, started).result()

    async def check(self) -> None:
        """Run `true` in a sandbox. Raises BackendUnavailable with the kernel's switch that is in the way and how to set it."""
        empty = self._runtime.folder / "check"
        empty.mkdir(exist_ok=True)
        try:
            result = await self.run(CommandSpec(command=["true"], workspace=empty, timeout_seconds=CHECK_SECONDS))
        except LaunchFailed as error:
            raise BackendUnavailable(explain(str(error), kernel_switches())) from error
        if result.exit_code != 0:
            words = result.stderr.decode(errors="replace")
            raise BackendUnavailable(f"a sandbox starts here, but `true` in it ended as {result.outcome} {result.exit_code}: {words}")

    async def _open_network(self, spec: CommandSpec, stack: contextlib.AsyncExitStack) -> tuple[CommandSpec, Path | None, tuple[Path, ...]]:
        if spec.network == "none":
            return spec, None, ()
        if self._egress is None:
            raise BackendUnavailable("the package registries cannot be reached: this sandbox has no egress proxy")
        egress = await self._egress()
        socket = await stack.enter_async_context(egress.listen(spec.label))
        environment = {**egress.environment, **spec.environment}
        return spec.model_copy(update={"environment": environment}), socket, egress.certificates

    def _command_line(self, spec: CommandSpec) -> list[str]:
        """Everything goes through a shell, so that a missing program is exit code 127 and not a broken sandbox."""
        shell = "/bin/bash" if Path("/bin/bash").exists() else "/bin/sh"
        command = [shell, "-c", spec.command] if isinstance(spec.command, str) else list(spec.command)
        whole = [*LAUNCHER, f"{WORKSPACE}/{spec.cwd}", *command]
        if spec.network == "none":
            return whole
        return [str(self._toolchains.python), "-IS", RELAY, EGRESS_SOCKET, str(RELAY_PORT), *whole]


def _limit(child: Child, spec: CommandSpec, group: Group) -> None:
    group.add(child.pid)
    apply_resource_limits(child.pid, spec.limits, group)


def _require_plain_git_place(spec: CommandSpec) -> None:
    """bubblewrap makes the mount point inside the writable tree: a link there would make it elsewhere."""
    place = spec.workspace / ".git"
    if place.is_symlink() or (place.exists() and not place.is_dir()):
        place.unlink()


class _Supervision:
    """One running command: pumps its output, waits for its end, a limit or the deadline, and says what happened."""

    def __init__(self, child: Child, spec: CommandSpec, group: Group, on_output: OnOutput | None, started: float) -> None:
        self._child = child
        self._spec = spec
        self._group = group
        self._on_output = on_output
        self._started = started
        self._capture = Capture(spec.limits)
        self._watch = Watch(spec, group, child.process.pid)

    async def result(self) -> CommandResult:
        running = asyncio.create_task(self._run())
        watching = asyncio.create_task(self._watch.until_exceeded())
        try:
            self._child.release()
            remaining = self._started + self._spec.timeout_seconds - time.monotonic()
            done, _ = await asyncio.wait({running, watching}, timeout=max(0, remaining), return_when=asyncio.FIRST_COMPLETED)
            if running in done:
                return self._conclude(running)
            late = Stop("timeout", f"did not end within {self._spec.timeout_seconds:g} seconds")
            stop = watching.result() if watching in done else late
            await self._child.kill()
            await asyncio.wait({running}, timeout=DRAIN_SECONDS)
            return self._answer(None, stop)
        finally:
            running.cancel()
            watching.cancel()
            await asyncio.gather(running, watching, return_exceptions=True)

    async def _run(self) -> Ending:
        async with asyncio.TaskGroup() as pumps:
            pumps.create_task(self._pump("stdout", self._child.stdout))
            pumps.create_task(self._pump("stderr", self._child.stderr))
            ending = pumps.create_task(self._child.ended())
        return ending.result()

    async def _pump(self, stream: Stream, reader: asyncio.StreamReader) -> None:
        while data := await reader.read(CHUNK_BYTES):
            self._capture.feed(stream, data)
            if self._on_output is not None:
                await self._on_output(stream, data)

    def _conclude(self, running: "asyncio.Task[Ending]") -> CommandResult:
        try:
            ending = running.result()
        except BaseExceptionGroup as group:
            if group.subgroup(OutputLimitReached) is None:
                raise group.exceptions[0] from None
            return self._answer(None, Stop("output_limit", f"printed more than {self._spec.limits.output_bytes} bytes"))
        if not ending.started:
            raise LaunchFailed(
                self._capture.tails["stderr"].content().decode(errors="replace").strip() or "bubblewrap did not start the command"
            )
        if ending.exit_code is None:
            return self._answer(None, Stop("unknown", "the sandbox was killed from outside before the command's end was seen"))
        if ending.exit_code != 0 and self._group.out_of_memory_kills():
            return self._answer(None, self._watch.out_of_memory())
        return self._answer(ending.exit_code, Stop("exited", ""))

    def _answer(self, exit_code: int | None, stop: Stop) -> CommandResult:
        out, err = self._capture.tails["stdout"], self._capture.tails["stderr"]
        return CommandResult(
            exit_code=exit_code,
            outcome=stop.outcome,
            reason=stop.reason,
            stdout=out.content(),
            stderr=err.content(),
            stdout_truncated=out.truncated,
            stderr_truncated=err.truncated,
            duration_seconds=time.monotonic() - self._started,
        )
