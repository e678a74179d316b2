"""The fencing token of a workspace: an integer that only grows. Who comes with a smaller one has lost the workspace."""

import fcntl
import json
import os
from pathlib import Path

from services.sandbox.errors import StaleLease


class Lease:
    """Keeps the largest token that was seen, on disk before it counts."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "lease.json"
        self._lock = folder / "lease.lock"

    def accept(self, token: int) -> bool:
        """Take note of a caller's token; True when it is larger than any before. Raises StaleLease for a smaller one."""
        with self._lock.open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            current = self.current()
            if token < current:
                raise StaleLease(f"token {token} is older than {current}: another worker has taken the workspace over; drop this step")
            if token > current:
                write_durably(self._path, json.dumps({"token": token}))
            return token > current

    def current(self) -> int:
        """The largest token so far, -1 before the first."""
        return int(json.loads(self._path.read_text())["token"]) if self._path.exists() else -1


def write_durably(path: Path, text: str) -> None:
    """Replace a small file so that a crash leaves either the old or the new content."""
    temporary = path.with_suffix(".new")
    with temporary.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
