"""Memory, process and processor limits by control groups, version 1 or 2, where this process may make them.

Limits that no group can hold are held by resource limits and by watching (see `limits`). A group never outlives its command.
"""

import asyncio
import contextlib
import os
import secrets
from pathlib import Path

from services.sandbox.backends import Limits

CPU_PERIOD_MICROSECONDS = 100_000
PREFIX = "agent-coder"
V1_CONTROLLERS = ("memory", "pids", "cpu")


class Group:
    """The control group of one command; `controllers` says which limits it holds."""

    def __init__(self, folders: dict[str, Path]) -> None:
        self._folders = folders
        self.controllers = frozenset(folders)

    @property
    def _distinct(self) -> set[Path]:
        return set(self._folders.values())

    def add(self, pid: int) -> None:
        """Move a process, and what it will start, into the group."""
        for folder in self._distinct:
            (folder / "cgroup.procs").write_text(str(pid))

    def out_of_memory_kills(self) -> int:
        """How often the kernel killed in the group because its memory was used up."""
        folder = self._folders.get("memory")
        if folder is None:
            return 0
        for name in ("memory.events", "memory.oom_control"):
            with contextlib.suppress(OSError):
                fields = dict(line.split(maxsplit=1) for line in (folder / name).read_text().splitlines())
                return int(fields.get("oom_kill", 0))
        return 0

    async def remove(self) -> None:
        """Remove the empty group; a process that is still being reaped is waited for."""
        for folder in self._distinct:
            for _ in range(100):
                try:
                    folder.rmdir()
                except FileNotFoundError:
                    break
                except OSError:
                    await asyncio.sleep(0.01)
                else:
                    break


class ControlGroups:
    """Where groups can be made on this machine; none at all is a valid answer."""

    def __init__(self, parents: dict[str, Path], version: int) -> None:
        self._parents = parents
        self._version = version
        self.controllers = frozenset(parents)

    @classmethod
    def none(cls) -> "ControlGroups":
        """No control groups."""
        return cls({}, 0)

    @classmethod
    def discover(cls, root: Path = Path("/sys/fs/cgroup"), own: str | None = None) -> "ControlGroups":
        """Find the controllers that this process may make groups under. `own` is the text of /proc/self/cgroup."""
        memberships = _memberships(own if own is not None else Path("/proc/self/cgroup").read_text())
        if (root / "cgroup.controllers").exists():
            return cls(_unified(root / memberships.get("", "/").lstrip("/")), 2)
        parents = {}
        for controller in V1_CONTROLLERS:
            parent = root / controller / memberships.get(controller, "/").lstrip("/")
            if parent.is_dir() and os.access(parent, os.W_OK):
                parents[controller] = parent
        return cls(parents, 1)

    def clear(self) -> None:
        """Remove what a service that was killed left behind."""
        for parent in set(self._parents.values()):
            for folder in parent.glob(f"{PREFIX}-*"):
                if not Path("/proc", folder.name.split("-")[2]).exists():
                    with contextlib.suppress(OSError):
                        folder.rmdir()

    def group(self, limits: Limits) -> Group:
        """A new group with these limits; controllers that refuse are left out of it."""
        name = f"{PREFIX}-{os.getpid()}-{secrets.token_hex(6)}"
        folders = {}
        for controller, parent in self._parents.items():
            if controller == "cpu" and limits.cpu_cores is None:
                continue
            folder = parent / name
            try:
                folder.mkdir(exist_ok=self._version == 2)
                self._configure(controller, folder, limits)
            except OSError:
                if self._version == 1:
                    with contextlib.suppress(OSError):
                        folder.rmdir()
            else:
                folders[controller] = folder
        return Group(folders)

    def _configure(self, controller: str, folder: Path, limits: Limits) -> None:
        quota = int(limits.cpu_cores * CPU_PERIOD_MICROSECONDS) if limits.cpu_cores else None
        match (controller, self._version):
            case ("pids", _):
                (folder / "pids.max").write_text(str(limits.processes))
            case ("memory", 1):
                (folder / "memory.limit_in_bytes").write_text(str(limits.memory_bytes))
                with contextlib.suppress(OSError):
                    (folder / "memory.memsw.limit_in_bytes").write_text(str(limits.memory_bytes))
            case ("memory", _):
                (folder / "memory.max").write_text(str(limits.memory_bytes))
                with contextlib.suppress(OSError):
                    (folder / "memory.swap.max").write_text("0")
            case ("cpu", 1) if quota:
                (folder / "cpu.cfs_quota_us").write_text(str(quota))
            case ("cpu", 2) if quota:
                (folder / "cpu.max").write_text(f"{quota} {CPU_PERIOD_MICROSECONDS}")


def _memberships(text: str) -> dict[str, str]:
    """Controller → path from /proc/self/cgroup (cgroups(7)); the unified hierarchy has the empty name."""
    found = {}
    for line in text.splitlines():
        _, controllers, path = line.split(":", 2)
        for controller in controllers.split(","):
            found[controller] = path
    return found


def _unified(own: Path) -> dict[str, Path]:
    """Controllers that children of `own` can have. A group that holds processes cannot share them out, unless it is the root."""
    wanted = ("memory", "pids", "cpu")
    control = own / "cgroup.subtree_control"
    if not os.access(control, os.W_OK):
        return {}
    for controller in wanted:
        with contextlib.suppress(OSError):
            control.write_text(f"+{controller}")
    try:
        enabled = control.read_text().split()
    except OSError:
        return {}
    return {controller: own for controller in wanted if controller in enabled}
