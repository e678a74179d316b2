"""The pieces of a stream, put together and passed on: tool calls in whatever state they come, reasoning that is tagged inside of the text.

What is passed on is a preview; the whole reply is made from everything at the end.
"""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from services.inference.domain import Delta, RawToolCall
from services.inference.normalise import argument_text, call_id

_OPENING = re.compile(r"\s*<think(?:ing)?>")
_CLOSING = re.compile(r"</think(?:ing)?>\s*")
_TAG_LENGTH = len("</thinking>")


@dataclass(frozen=True)
class CallDelta:
    """One piece of a streamed tool call, in whatever state the provider sends it."""

    index: int | None = None
    id: str | None = None
    name: str | None = None
    arguments: Any = None


@dataclass
class _Open:
    number: int
    index: int | None
    id: str | None = None
    shown_id: str | None = None
    name: str = ""
    pieces: list[str] = field(default_factory=list)
    told: int = 0

    @property
    def arguments(self) -> str:
        return "".join(self.pieces)


class Calls:
    """The calls of one stream. With a `request_id` a call gets an id when it is told of and none has come.

    A piece belongs to the call with its id, else to the one with its index, else (no index, or -1) to the last one. A new id that comes
    with a name opens the next call; so does another name once arguments have begun, and the same name once they are complete. The same
    complete arguments again are a repetition.
    """

    def __init__(self, request_id: str | None = None) -> None:
        self._request_id = request_id
        self._calls: list[_Open] = []

    def add(self, delta: CallDelta) -> list[Delta]:
        """Take a piece; what can be told of its call now."""
        call = self._owner(delta)
        if call is None:
            call = _Open(len(self._calls), delta.index)
            self._calls.append(call)
        call.id = call.id or delta.id or None
        if delta.name and delta.name != call.name and not call.told:
            call.name += delta.name
        text = argument_text(delta.arguments)
        if text and not (text == call.arguments and _complete(text)):
            call.pieces.append(text)
        return self._tell(call) if call.name and call.arguments else []

    def rest(self) -> list[Delta]:
        """What was not told because no arguments came."""
        return [delta for call in self._calls if call.name and not call.told for delta in self._tell(call)]

    def whole(self) -> tuple[RawToolCall, ...]:
        """The calls in the order of their first piece."""
        return tuple(
            RawToolCall(call.shown_id or call.id, call.name or None, resolved(call.pieces))
            for call in self._calls
            if call.id or call.name or call.arguments
        )

    def _tell(self, call: _Open) -> list[Delta]:
        first = not call.told
        if first and self._request_id is not None:
            call.shown_id = call.id or call_id(self._request_id, call.number)
        text = "".join(call.pieces[max(0, call.told - 1) :])
        call.told = len(call.pieces) + 1
        if not text and not first:
            return []
        return [Delta(tool_index=call.number, tool_call_id=call.shown_id, tool_name=call.name if first else None, arguments=text)]

    def _owner(self, delta: CallDelta) -> _Open | None:
        if delta.id and (known := [call for call in self._calls if call.id == delta.id]):
            return known[-1]
        placed = delta.index is not None and delta.index >= 0
        mine = [call for call in self._calls if call.index == delta.index] if placed else self._calls
        if not mine:
            return None
        last = mine[-1]
        if delta.id and delta.name and last.id:
            return None
        return None if delta.name and last.name and _is_next(last, delta) else last


def gather(deltas: Iterable[CallDelta]) -> tuple[RawToolCall, ...]:
    """The calls that a stream's pieces make up."""
    calls = Calls()
    for delta in deltas:
        calls.add(delta)
    return calls.whole()


def _is_next(last: _Open, delta: CallDelta) -> bool:
    if delta.name != last.name:
        return bool(last.pieces)
    return bool(delta.arguments) and argument_text(delta.arguments) != last.arguments and _complete(last.arguments)


def _complete(arguments: str) -> bool:
    try:
        return isinstance(json.loads(arguments), dict)
    except (ValueError, RecursionError):
        return False


def resolved(pieces: list[str]) -> str:
    """A call's arguments. Where the pieces together are no object, but are one read as repetitions, they are read so."""
    joined = "".join(pieces)
    if len(pieces) < 2 or _complete(joined):
        return joined
    last, before = pieces[-1], "".join(pieces[:-1])
    growing = all(later.startswith(earlier) for earlier, later in pairwise(pieces))
    if (growing or last == before) and _complete(last):
        return last
    twice = pieces[::2]
    if twice == pieces[1::2] and _complete("".join(twice)):
        return "".join(twice)
    return joined


class Reasoning:
    """Parts tagged reasoning at the start of a text from the rest, piece by piece; a tag may come in pieces as well."""

    def __init__(self) -> None:
        self._held = ""
        self._place = "start"

    def split(self, text: str) -> Delta:
        """What can be passed on now; both parts may be empty."""
        text, self._held = self._held + text, ""
        if self._place == "start":
            return self._begin(text)
        if self._place == "inside":
            return self._inside(text)
        if self._place == "after":
            text = text.lstrip()
            self._place = "rest" if text else "after"
        return Delta(text=text)

    def rest(self) -> Delta:
        """What was held back."""
        held, self._held = self._held, ""
        return Delta(reasoning=held) if self._place == "inside" else Delta(text=held)

    def _begin(self, text: str) -> Delta:
        if opened := _OPENING.match(text):
            self._place = "inside"
            return self._inside(text[opened.end() :])
        bare = text.lstrip()
        if len(bare) < _TAG_LENGTH and ("<think>".startswith(bare) or "<thinking>".startswith(bare)):
            self._held = text
            return Delta()
        self._place = "rest"
        return Delta(text=text)

    def _inside(self, text: str) -> Delta:
        if closed := _CLOSING.search(text):
            after = text[closed.end() :]
            self._place = "rest" if after else "after"
            return Delta(text=after, reasoning=text[: closed.start()])
        tag = text.rfind("<", max(0, len(text) - _TAG_LENGTH))
        self._held = text[tag:] if tag >= 0 else ""
        return Delta(reasoning=text[:tag] if tag >= 0 else text)
