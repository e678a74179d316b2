"""A full disk. A journal on which one write failed takes no more, however much room there is later, until the broker starts anew.

So the broker is started again as soon as there is room (seen with nats-server 2.15.1: `no space left on device` stays with the stream).
"""

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path

FULL_BYTES = 4 * 1024 * 1024
ROOM_BYTES = 64 * 1024 * 1024
_COMPLAINT = b"no space left on device"


class DiskWatch:
    """Looks at the home folder's disk and at the broker's log, which tells of a disk that was full for a moment only."""

    def __init__(self, home: Path, free: Callable[[Path], int] = lambda path: shutil.disk_usage(path).free) -> None:
        self._home = home
        self._free = free
        self._log = home / "nats.log"
        self._position = self._size()
        self._full = False

    def look(self) -> str:
        """What is new: `full`, `room` (there is some again: start the broker anew), or nothing."""
        free = self._free(self._home)
        told = self._told()
        if not self._full and (told or free < FULL_BYTES):
            self._full = True
            return "full"
        if self._full and free >= ROOM_BYTES:
            self._full = False
            return "room"
        return ""

    def restarted(self) -> None:
        """Forget what the log says of the broker before."""
        self._position = self._size()

    def _size(self) -> int:
        return self._log.stat().st_size if self._log.exists() else 0

    def _told(self) -> bool:
        start, self._position = self._position, self._size()
        if start >= self._position:
            return False
        with self._log.open("rb") as file:
            file.seek(start)
            return _COMPLAINT in file.read(self._position - start)


async def watch_disk(watch: DiskWatch, say: Callable[[str, str], None], end_broker: Callable[[], None], every_seconds: float = 1.0) -> None:
    """Say when the disk is full, and end the broker, which is kept alive by somebody else, once there is room again."""
    while True:
        await asyncio.sleep(every_seconds)
        match watch.look():
            case "full":
                say("up", f"the disk is full: make {ROOM_BYTES // 1024 // 1024} MB of room; work goes on by itself then, nothing is lost")
            case "room":
                say("up", "there is room on the disk again: the broker is started anew")
                end_broker()
                watch.restarted()
