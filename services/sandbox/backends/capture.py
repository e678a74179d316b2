"""Keeps the head and the tail of a stream and counts the rest, in bounded memory."""

from collections import deque

from services.sandbox.backends import Limits, Stream


class OutputLimitReached(Exception):
    """The command printed more than it may."""


class Tail:
    """The first and the last `kept_bytes // 2` bytes of what was fed."""

    def __init__(self, kept_bytes: int) -> None:
        self._half = max(1, kept_bytes // 2)
        self._head = bytearray()
        self._tail: deque[bytes] = deque()
        self._tail_bytes = 0
        self.total_bytes = 0

    @property
    def truncated(self) -> bool:
        """Whether bytes between head and tail were dropped."""
        return self.total_bytes > 2 * self._half

    def feed(self, data: bytes) -> None:
        """Take the next bytes of the stream."""
        self.total_bytes += len(data)
        room = self._half - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        if data:
            self._tail.append(data)
            self._tail_bytes += len(data)
            while self._tail_bytes - len(self._tail[0]) >= self._half:
                self._tail_bytes -= len(self._tail.popleft())

    def content(self) -> bytes:
        """Head and tail, with a note between them when something was dropped."""
        tail = b"".join(self._tail)[-self._half :]
        if not self.truncated:
            return bytes(self._head) + tail
        dropped = self.total_bytes - len(self._head) - len(tail)
        return bytes(self._head) + f"\n[… {dropped} bytes left out …]\n".encode() + tail


class Capture:
    """Both streams of a command under one budget of bytes."""

    def __init__(self, limits: Limits) -> None:
        self._budget = limits.output_bytes
        self.tails: dict[Stream, Tail] = {"stdout": Tail(limits.kept_output_bytes), "stderr": Tail(limits.kept_output_bytes)}

    def feed(self, stream: Stream, data: bytes) -> None:
        """Take the next bytes; raises OutputLimitReached once the budget is spent."""
        self.tails[stream].feed(data)
        self._budget -= len(data)
        if self._budget < 0:
            raise OutputLimitReached


def cut_text(data: bytes, characters: int) -> str:
    """Decode output and cut it to `characters`, the last three quarters of them from its end, with a note of what was left out."""
    text = data.decode("utf-8", errors="replace")
    if len(text) <= characters:
        return text
    note = f"\n[… {len(text) - characters} characters left out …]\n"
    room = max(0, characters - len(note))
    tail = room - room // 4
    return (text[: room // 4] + note + text[len(text) - tail :])[:characters] if room else text[len(text) - characters :]
