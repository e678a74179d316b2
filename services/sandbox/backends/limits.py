"""Watches what a running command uses, and says when it is too much.

Control groups hold memory and processes exactly; without them the process tree is polled. The disk is always polled: the free space
of the file system first (cheap), the folders only when that could matter.
"""

import asyncio
import os
import resource
from dataclasses import dataclass

import psutil

from services.sandbox.backends import CommandSpec, Limits, Outcome
from services.sandbox.backends.cgroups import Group
from services.sandbox.usage import disk_usage

POLL_SECONDS = 0.1
FIRST_WALK_SECONDS = 1.0
WALK_SHARE = 20
MAX_NEW_FILES = 1_000_000


@dataclass(frozen=True)
class Stop:
    """Why a command was ended."""

    outcome: Outcome
    reason: str


def apply_resource_limits(pid: int, limits: Limits, group: Group) -> None:
    """Set the limits that the kernel holds per process, before the command starts (getrlimit(2))."""
    _lower(pid, resource.RLIMIT_FSIZE, limits.file_bytes)
    _lower(pid, resource.RLIMIT_CORE, 0)
    if "memory" not in group.controllers:
        _lower(pid, resource.RLIMIT_DATA, limits.memory_bytes)
    if "pids" not in group.controllers:
        _lower(pid, resource.RLIMIT_NPROC, limits.processes)


def _lower(pid: int, what: int, value: int) -> None:
    _, hard = resource.prlimit(pid, what)
    ceiling = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.prlimit(pid, what, (ceiling, ceiling))


class Watch:
    """Looks at one command until it uses too much."""

    def __init__(self, spec: CommandSpec, group: Group, pid: int) -> None:
        self._limits = spec.limits
        self._group = group
        self._pid = pid
        self._folders = [folder for folder in (spec.workspace, spec.home) if folder is not None]

    async def until_exceeded(self) -> Stop:
        """Return once a limit is passed; runs until cancelled otherwise."""
        disk = asyncio.create_task(self._disk())
        processes = asyncio.create_task(self._processes())
        try:
            done, _ = await asyncio.wait({disk, processes}, return_when=asyncio.FIRST_COMPLETED)
            return done.pop().result()
        finally:
            disk.cancel()
            processes.cancel()

    async def _processes(self) -> Stop:
        polled = not {"memory", "pids"} <= self._group.controllers
        while True:
            if self._group.out_of_memory_kills():
                return self.out_of_memory()
            if polled and (stop := await asyncio.to_thread(self._look_at_tree)):
                return stop
            await asyncio.sleep(POLL_SECONDS)

    def out_of_memory(self) -> Stop:
        """The verdict on a command that used up its memory."""
        return Stop("memory_limit", f"used more than {self._limits.memory_bytes} bytes of memory")

    def _look_at_tree(self) -> Stop | None:
        try:
            tree = psutil.Process(self._pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return None
        if len(tree) > self._limits.processes:
            return Stop("killed", f"started more than {self._limits.processes} processes")
        if sum(map(_resident_bytes, tree)) > self._limits.memory_bytes:
            return self.out_of_memory()
        return None

    async def _disk(self) -> Stop:
        """A walk is due when the file system lost as much space as the command may still take, and now and then anyway."""
        loop = asyncio.get_running_loop()
        room = self._limits.disk_bytes
        free, due = self._free(), loop.time() + FIRST_WALK_SECONDS
        files = free.files
        while True:
            now = self._free()
            if files - now.files > MAX_NEW_FILES:
                return Stop("disk_limit", f"made more than {MAX_NEW_FILES} files")
            if free.bytes - now.bytes > room or loop.time() >= due:
                before = loop.time()
                try:
                    used = (await disk_usage(self._folders)).bytes
                except TimeoutError:
                    return Stop("disk_limit", "made more files than can be counted")
                if used > self._limits.disk_bytes:
                    return Stop("disk_limit", f"the workspace holds {used} bytes; it may hold {self._limits.disk_bytes}")
                free, room = now, self._limits.disk_bytes - used
                due = loop.time() + max(2.0, WALK_SHARE * (loop.time() - before))
            await asyncio.sleep(POLL_SECONDS)

    def _free(self) -> "_Free":
        states = [os.statvfs(folder) for folder in self._folders]
        return _Free(bytes=sum(state.f_bavail * state.f_frsize for state in states), files=sum(state.f_favail for state in states))


@dataclass(frozen=True)
class _Free:
    """What the file systems of the watched folders have left; one that holds several folders counts several times."""

    bytes: int
    files: int


def _resident_bytes(process: psutil.Process) -> int:
    try:
        return int(process.memory_info().rss)
    except psutil.Error:
        return 0
