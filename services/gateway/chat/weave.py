"""One clean stream of UI-message chunks (AI SDK 6) out of the live frames of all deliveries of a turn. Pure.

A delivery after a crash tells the turn again from its start. A reader passes on what is new and nothing twice: of a text what goes
beyond the text sent before, of a step, a tool or a datum what was not there. A text that goes otherwise ends and begins under another id.
"""

import json
from collections import Counter
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from libs.contracts.envelope import JsonObject

Chunk = JsonObject
TERMINAL = frozenset({"finish", "error", "abort"})
SILENT = frozenset({"start", "start-step", "finish-step", "message-metadata"})
"""Chunks that show nobody anything: while only these came, a turn can still be refused as a whole."""
_ENDINGS = {"tool-output-available": "output", "tool-output-error": "output", "tool-output-denied": "output"}
_FROM_RECORD = 1 << 62


@dataclass
class _Flow:
    """A streamed text: what was passed on under which id, and what the present delivery has said of it."""

    kind: str
    name: str
    sent: str = ""
    said: str = ""
    open: bool = False
    told: bool = False
    again: int = 0


class Weave:
    """Feed frames with `take`; it gives the chunks to pass on. `finished` after the last one.

    Within a delivery the frames count from 1. One that is missing leaves a hole: texts that began before it are not continued, `whole` is
    False, and `settle` with the stored message fills in what is missing at the end.
    """

    def __init__(self) -> None:
        self._token = 0
        self._number = 0
        self._flows: dict[str, _Flow] = {}
        self._steps = {"start-step": [0, 0], "finish-step": [0, 0]}
        self._seen: set[tuple[str, str]] = set()
        self._told: Counter[str] = Counter()
        self._sent: Counter[str] = Counter()
        self._started = False
        self.whole = True
        self.finished = False

    def take(self, frame: JsonObject) -> list[Chunk]:
        """The chunks that a frame makes. Frames of a delivery that another one has followed are passed over."""
        token, number = frame.get("token"), frame.get("n")
        if not isinstance(token, int) or not isinstance(number, int):
            return []
        return [made for place, chunk in enumerate(said(frame), number) for made in self._take(token, place, chunk)]

    def _take(self, token: int, number: int, chunk: Chunk) -> list[Chunk]:
        if self.finished or token < self._token or (token == self._token and number <= self._number):
            return []
        if token > self._token:
            self._begin(token)
        if number != self._number + 1:
            self._hole()
        self._number = number
        return self._pass(chunk)

    def seed(self, chunks: Iterable[Chunk]) -> None:
        """Take it that the reader has these already."""
        self._begin(self._token)
        for chunk in chunks:
            if chunk.get("type") not in TERMINAL:
                self._pass(chunk)
        self._started = False
        self._begin(self._token)

    def settle(self, chunks: Iterable[Chunk]) -> list[Chunk]:
        """What of the whole message, as chunks, was not passed on yet."""
        self._begin(_FROM_RECORD)
        return [made for chunk in chunks for made in self._pass(chunk)] if not self.finished else []

    def _begin(self, token: int) -> None:
        self._token, self._number, self.whole = token, 0, True
        self._told.clear()
        for flow in self._flows.values():
            flow.said, flow.told = "", False
        for counts in self._steps.values():
            counts[0] = 0

    def _hole(self) -> None:
        self.whole = False
        for flow in self._flows.values():
            flow.told = False

    def _pass(self, chunk: Chunk) -> list[Chunk]:
        if self.finished:
            return []
        kind = str(chunk.get("type", ""))
        if kind in TERMINAL:
            self.finished = True
            return [*self._start({}), *self._close(), chunk]
        if kind == "start":
            return self._start(chunk)
        if kind in self._steps:
            return self._step(kind, chunk)
        if kind.partition("-")[0] in ("text", "reasoning"):
            return self._text(kind, chunk)
        return [*self._start({}), chunk] if self._is_new(kind, chunk) else []

    def _start(self, chunk: Chunk) -> list[Chunk]:
        if self._started:
            return []
        self._started = True
        return [{"type": "start", **chunk}]

    def _step(self, kind: str, chunk: Chunk) -> list[Chunk]:
        counts = self._steps[kind]
        counts[0] += 1
        if counts[0] <= counts[1]:
            return []
        counts[1] = counts[0]
        return [*self._start({}), *(self._close() if kind == "finish-step" else []), chunk]

    def _is_new(self, kind: str, chunk: Chunk) -> bool:
        """Tools once for each call and stage, data with an id whenever it changes, anything else by its place in the delivery."""
        if "toolCallId" in chunk and kind != "tool-input-delta" and not chunk.get("preliminary"):
            key = (_ENDINGS.get(kind, kind), str(chunk["toolCallId"]))
        elif kind.startswith("data-") and "id" in chunk:
            key = (f"{kind}\0{chunk['id']}", repr(chunk.get("data")))
        else:
            group = f"{kind}\0{chunk.get('toolCallId', '')}"
            self._told[group] += 1
            if self._told[group] <= self._sent[group]:
                return False
            self._sent[group] = self._told[group]
            return True
        if key in self._seen:
            return False
        self._seen.add(key)
        return True

    def _text(self, kind: str, chunk: Chunk) -> list[Chunk]:
        flow_kind, _, stage = kind.partition("-")
        name = str(chunk.get("id", "")).partition("~")[0]  # a text that began anew is the same text told otherwise
        flow = self._flows.get(name)
        if stage == "start":
            return self._begin_text(flow_kind, name, flow)
        if flow is None or not flow.told:
            return []
        if stage == "delta":
            flow.said += str(chunk.get("delta", ""))
            return self._continue(flow, name)
        if stage == "end" and self.whole:
            made = [] if flow.said == flow.sent else self._anew(flow, name)
            return [*made, *self._end(flow)]
        return self._end(flow)

    def _begin_text(self, kind: str, name: str, flow: _Flow | None) -> list[Chunk]:
        if flow is not None:
            flow.said, flow.told = "", True
            return []
        flow = self._flows[name] = _Flow(kind, name, told=True, open=True)
        return [*self._start({}), {"type": f"{kind}-start", "id": flow.name}]

    def _continue(self, flow: _Flow, name: str) -> list[Chunk]:
        if flow.sent.startswith(flow.said):
            return []
        if flow.open and flow.said.startswith(flow.sent):
            more, flow.sent = flow.said[len(flow.sent) :], flow.said
            return [{"type": f"{flow.kind}-delta", "id": flow.name, "delta": more}]
        return self._anew(flow, name)

    def _anew(self, flow: _Flow, name: str) -> list[Chunk]:
        """What was sent is not how the text goes (or its part is closed): a new part holds the whole of it."""
        ended = self._end(flow)
        flow.again += 1
        flow.name = f"{name}~{flow.again}"
        flow.sent, flow.open = flow.said, True
        opening: Chunk = {"type": f"{flow.kind}-start", "id": flow.name}
        return [*ended, opening, {"type": f"{flow.kind}-delta", "id": flow.name, "delta": flow.said}]

    def _end(self, flow: _Flow) -> list[Chunk]:
        if not flow.open:
            return []
        flow.open = False
        return [{"type": f"{flow.kind}-end", "id": flow.name}]

    def _close(self) -> list[Chunk]:
        return [made for flow in self._flows.values() for made in self._end(flow)]


def read_frame(payload: bytes) -> JsonObject | None:
    """A live frame as it was sent; None for what is none."""
    try:
        frame = json.loads(payload)
    except ValueError:
        return None
    known = isinstance(frame, dict) and isinstance(frame.get("token"), int) and isinstance(frame.get("n"), int)
    return frame if known and said(frame) else None


def said(frame: JsonObject) -> list[Chunk]:
    """The chunks of a frame `{"n", "token", "chunks"}`, of which the first has the number `n`, or of an older one with a single `chunk`."""
    chunks = frame.get("chunks", [frame.get("chunk")])
    return chunks if isinstance(chunks, list) and all(isinstance(chunk, dict) for chunk in chunks) else []


def chunks_of(parts: Iterable[JsonObject], message_id: str | None = None) -> list[Chunk]:
    """A stored or a client's message as the chunks that would have made it, under the ids that the live stream gives them."""
    found: list[Chunk] = [{"type": "start", **({"messageId": message_id} if message_id else {})}]
    call = 0
    for part in parts:
        kind = str(part.get("type", ""))
        if kind == "step-start":
            found += [{"type": "finish-step"}] if call else []
            found.append({"type": "start-step"})
            call += 1
        elif kind in ("text", "reasoning"):
            name, text = f"{kind}-{max(call, 1)}", str(part.get("text", ""))
            found += [{"type": f"{kind}-start", "id": name}, {"type": f"{kind}-delta", "id": name, "delta": text}]
            found.append({"type": f"{kind}-end", "id": name})
        elif "toolCallId" in part:
            found += _tool_chunks(part, kind)
        elif kind.startswith("data-"):
            found.append({k: v for k, v in part.items() if k in ("type", "id", "data")})
    return found + ([{"type": "finish-step"}] if call else [])


def before_answers(parts: Sequence[JsonObject], answered: Container[str]) -> list[JsonObject]:
    """A stored message as it was when its turn last waited: up to the step whose calls were answered, these without what came of them."""
    last = max((i for i, part in enumerate(parts) if part.get("toolCallId") in answered), default=None)
    if last is None:
        return list(parts)
    end = next((i for i in range(last, len(parts)) if parts[i].get("type") == "step-start"), len(parts))
    begin = max((i for i in range(last) if parts[i].get("type") == "step-start"), default=0)
    return [*parts[:begin], *(_open(part) if part.get("toolCallId") in answered else part for part in parts[begin:end])]


def _open(part: JsonObject) -> JsonObject:
    return {key: value for key, value in part.items() if key not in ("output", "errorText")} | {"state": "input-available"}


def _tool_chunks(part: JsonObject, kind: str) -> list[Chunk]:
    call, state = {"toolCallId": part["toolCallId"]}, str(part.get("state", ""))
    named: dict[str, Any] = {**call, "toolName": part.get("toolName") or kind.removeprefix("tool-")}
    found: list[Chunk] = [{"type": "tool-input-start", **named}]
    if state != "input-streaming":
        found.append({"type": "tool-input-available", **named, "input": part.get("input")})
    approval = part.get("approval")
    if isinstance(approval, dict) and "id" in approval:
        found.append({"type": "tool-approval-request", "approvalId": approval["id"], **call})
    match state:
        case "output-available":
            found.append({"type": "tool-output-available", **call, "output": part.get("output")})
        case "output-error":
            found.append({"type": "tool-output-error", **call, "errorText": str(part.get("errorText", ""))})
        case "output-denied":
            found.append({"type": "tool-output-denied", **call})
    return found
