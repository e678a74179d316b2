"""The home folder as the command line sees it: the lock of the one server, where it listens, and its token.

The lock is the kernel's (flock): it is gone with the process that held it, however that ended.
"""

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from services.cli.errors import CliError

DEFAULT_URL = "http://127.0.0.1:8787"


@dataclass
class Runtime:
    """Where a running server is; its models in words; of each process the id and the start time in seconds since the epoch."""

    pid: int
    url: str
    nats_url: str
    monitor_url: str
    apart: list[str] = field(default_factory=list)
    model: str = ""
    processes: dict[str, tuple[int, float]] = field(default_factory=dict)


class HomeFolder:
    """The folder that AGENT_CODER_HOME names."""

    def __init__(self, path: Path) -> None:
        self.path = path.expanduser().absolute()

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the folder for one server.

        Raises:
            CliError: another server holds it, or the folder cannot be written.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
            descriptor = os.open(self.path / "up.lock", os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise CliError(
                f"The home folder {self.path} cannot be used: {error.strerror}", "Choose another with --home or AGENT_CODER_HOME."
            ) from error
        with os.fdopen(descriptor, "r+") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise CliError(
                    self._taken(lock.read().strip()), "Stop that one first, or choose another home folder with --home."
                ) from error
            lock.truncate(0)
            lock.write(f"{os.getpid()}\n")
            lock.flush()
            yield
            lock.seek(0)
            lock.truncate(0)

    def _taken(self, pid: str) -> str:
        found = self.runtime()
        where = f" at {found.url}" if found else ""
        return f"agent-coder runs already on {self.path}{where} (process {pid or 'unknown'})."

    def runtime(self) -> Runtime | None:
        """What the running server wrote; None without one."""
        try:
            found = json.loads((self.path / "runtime.json").read_text())
            return Runtime(**{part.name: found[part.name] for part in fields(Runtime) if part.name in found})
        except (OSError, ValueError, TypeError):
            return None

    def write_runtime(self, runtime: Runtime) -> None:
        """Tell clients and split services where to connect; for the owner's eyes."""
        self.write_secret("runtime.json", json.dumps(asdict(runtime), indent=1))

    def clear_runtime(self) -> None:
        """The server is gone."""
        (self.path / "runtime.json").unlink(missing_ok=True)

    def token(self) -> str | None:
        """The bearer token that the server generated; None before its first start."""
        try:
            return (self.path / "token").read_text().strip() or None
        except OSError:
            return None

    def write_secret(self, name: str, text: str) -> None:
        """Write a file that only its owner can read, whole or not at all."""
        temporary = self.path / f"{name}.new"
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            file.write(text)
        temporary.replace(self.path / name)


def as_json(value: Any, only_ascii: bool = False) -> str:
    """JSON for programs; every language stays readable where the output's encoding has its letters."""
    return json.dumps(value, ensure_ascii=only_ascii, indent=2)
