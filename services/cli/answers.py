"""An answer of the assistant over connections that break: a stream that is told again passes on only what is new. Pure."""

from collections import Counter
from typing import Any

Json = dict[str, Any]
_PREFIX = "answer-"
_ENDS = ("finish", "error", "abort")


class Telling:
    """Feed the chunks of each stream to `take`, and call `again` before a further one. `turn_id` is known from the first chunk on."""

    def __init__(self) -> None:
        self.turn_id: str | None = None
        self.ended = False
        self._shown, self._told = 0, 0
        self._seen, self._now = Counter[str](), Counter[str]()

    def again(self) -> None:
        """The stream begins anew."""
        self._told = 0
        self._now.clear()

    def take(self, chunk: Json) -> Json | None:
        """The chunk, or what of its text is new; None when all of it came before."""
        kind = str(chunk.get("type", ""))
        self.ended = self.ended or kind in _ENDS
        if kind == "start":
            self.turn_id = str(chunk.get("messageId", "")).removeprefix(_PREFIX) or self.turn_id
        if kind == "text-delta":
            text = str(chunk.get("delta", ""))
            new = text[max(self._shown - self._told, 0) :]
            self._told += len(text)
            self._shown = max(self._shown, self._told)
            return chunk | {"delta": new} if new else None
        key = f"{kind} {chunk.get('toolCallId', '')}"
        self._now[key] += 1
        if self._now[key] <= self._seen[key]:
            return None
        self._seen[key] = self._now[key]
        return chunk
