"""What a reader of a turn sees while it is worked on: AI SDK 6 UI-message chunks, and a transcript that shows what it records.

Invariant: a new delivery shows the turn from its start out of the record, then goes on; every message carries the delivery's token and the
number of its first chunk.
"""

import json
import re
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

from libs.agent import Record, ToolResult, Transcript
from libs.contracts.envelope import JsonObject
from libs.contracts.inference import Completion, TextDelta
from libs.contracts.turn import PendingCall
from libs.uimessages.parts import Answers, call_id, call_input, result_state

_CALL = re.compile(r"\d+\.\d+")
_MOST_BYTES = 64_000
Send = Callable[[bytes], Awaitable[None]]


class _Flow:
    """One streamed text of a reply: what was shown of it, under which part id."""

    def __init__(self, kind: str, call: int) -> None:
        self.kind, self.name = kind, f"{kind}-{call}"
        self.shown, self.open, self._again = "", False, 0

    def begin_again(self) -> None:
        """What comes does not continue what was shown: a new part begins."""
        self._again += 1
        self.name, self.shown, self.open = f"{self.name.split('~')[0]}~{self._again}", "", False


class Live:
    """The chunks of one delivery; those that are said at once are one message. What is sent here may be lost."""

    def __init__(self, send: Send, token: int, prefix: str) -> None:
        self._send, self._token, self._prefix = send, token, prefix
        self._number, self._call = 0, 0
        self._flows: dict[str, _Flow] = {}
        self._said: deque[bytes] = deque()

    async def begin(self, message_id: str, record: Record, answers: Answers) -> None:
        """The beginning, and the turn so far."""
        self._say("start", messageId=message_id)
        for number, reply in enumerate(record.replies, 1):
            self._reply(number, reply)
            for index in range(1, len(reply.tool_calls) + 1):
                result = record.results.get(call_id(self._prefix, number, index))
                if result is not None:
                    self._result(result, answers)
        await self._flush()

    async def frame(self, request_id: str, delta: TextDelta) -> None:
        """A piece of a reply that streams in."""
        self._step(int(request_id.removeprefix(f"{self._prefix}-")))
        if delta.reasoning:
            self._piece("reasoning", delta.reasoning, None)
        if delta.text:
            self._piece("text", delta.text, delta.offset)
        await self._flush()

    async def reply(self, number: int, reply: Completion) -> None:
        """A recorded reply: the rest of its texts, and its calls."""
        self._reply(number, reply)
        await self._flush()

    async def result(self, result: ToolResult, answers: Answers) -> None:
        """A recorded result."""
        self._result(result, answers)
        await self._flush()

    async def pending(self, pending: tuple[PendingCall, ...]) -> None:
        """Calls that wait for consent."""
        for call in pending:
            if call.waits_for == "approval":
                self._say("tool-approval-request", approvalId=call.call_id, toolCallId=call.call_id)
        await self._flush()

    async def notice(self, text: str) -> None:
        """Something that the reader should know and that is no part of the answer."""
        self._close()
        self._say("data-notice", data={"text": text}, transient=True)
        await self._flush()

    async def finish(self, reason: str, metadata: JsonObject) -> None:
        """The end of the answer, or of what can be said until somebody answers."""
        await self.stop("finish", finishReason=reason, messageMetadata=metadata)

    async def stop(self, kind: str, **fields: Any) -> None:
        """The end; a premature one is an `error` or an `abort`."""
        self._close()
        self._say(kind, **fields)
        await self._flush()

    def streamed(self, replies: int) -> str:
        """The text of the reply that has not been recorded yet."""
        flow = self._flows.get("text")
        return flow.shown if flow is not None and self._call > replies else ""

    def _say(self, kind: str, **fields: Any) -> None:
        self._said.append(json.dumps({"type": kind, **fields}, ensure_ascii=False).encode("utf-8", "replace"))

    async def _flush(self) -> None:
        while self._said:
            await self._send(self._message())

    def _message(self) -> bytes:
        """What was said, as far as it fits into one message; one chunk at least."""
        chunks = [self._said.popleft()]
        size = len(chunks[0])
        while self._said and size + len(self._said[0]) <= _MOST_BYTES:
            chunks.append(self._said.popleft())
            size += len(chunks[-1])
        first, self._number = self._number + 1, self._number + len(chunks)
        return b'{"n": %d, "token": %d, "chunks": [%s]}' % (first, self._token, b", ".join(chunks))

    def _reply(self, number: int, reply: Completion) -> None:
        self._step(number)
        for kind, text in (("reasoning", reply.reasoning), ("text", reply.content)):
            self._whole(kind, text)
        for index, call in enumerate(reply.tool_calls, 1):
            ident = call_id(self._prefix, number, index)
            self._say("tool-input-start", toolCallId=ident, toolName=call.name)
            self._say("tool-input-available", toolCallId=ident, toolName=call.name, input=call_input(call))

    def _result(self, result: ToolResult, answers: Answers) -> None:
        fields = result_state(result, answers)
        self._say(f"tool-{fields.pop('state')}", toolCallId=result.call_id, **fields)

    def _step(self, call: int) -> None:
        if call != self._call:
            self._close()
            self._call = call
            self._flows = {kind: _Flow(kind, call) for kind in ("reasoning", "text")}
            self._say("start-step")

    def _close(self) -> None:
        for flow in self._flows.values():
            self._end(flow)
        if self._call:
            self._say("finish-step")
        self._call, self._flows = 0, {}

    def _end(self, flow: _Flow) -> None:
        if flow.open:
            flow.open = False
            self._say(f"{flow.kind}-end", id=flow.name)

    def _piece(self, kind: str, piece: str, offset: int | None) -> None:
        flow = self._flows[kind]
        if kind == "text":
            self._end(self._flows["reasoning"])
        place = len(flow.shown) if offset is None else offset
        known = flow.shown[place:]
        if place > len(flow.shown) or known.startswith(piece):
            return  # a gap is filled when the reply is recorded
        if not piece.startswith(known):
            self._end(flow)
            flow.begin_again()
            known = ""
        self._show(flow, piece[len(known) :])

    def _whole(self, kind: str, text: str) -> None:
        flow = self._flows[kind]
        if not text.startswith(flow.shown):
            self._end(flow)
            flow.begin_again()
        self._show(flow, text[len(flow.shown) :])
        self._end(flow)

    def _show(self, flow: _Flow, text: str) -> None:
        if not text:
            return
        if not flow.open:
            flow.open = True
            self._say(f"{flow.kind}-start", id=flow.name)
        flow.shown += text
        self._say(f"{flow.kind}-delta", id=flow.name, delta=text)


class ShownTranscript:
    """A transcript that shows each entry once it is recorded. Made by `open`, which shows what is recorded already."""

    def __init__(self, transcript: Transcript, live: Live, answers: Answers) -> None:
        self._transcript, self._live, self._answers = transcript, live, answers

    @classmethod
    async def open(cls, transcript: Transcript, live: Live, answers: Answers, message_id: str) -> "ShownTranscript":
        """Show the turn so far."""
        await live.begin(message_id, transcript.record, answers)
        return cls(transcript, live, answers)

    @property
    def prefix(self) -> str:
        return self._transcript.prefix

    @property
    def record(self) -> Record:
        return self._transcript.record

    async def record_reply(self, reply: Completion) -> None:
        await self._transcript.record_reply(reply)
        await self._live.reply(len(self.record.replies), reply)

    async def record_tool_start(self, call_id: str, tool: str) -> None:
        await self._transcript.record_tool_start(call_id, tool)

    async def record_tool_result(self, result: ToolResult) -> None:
        await self._transcript.record_tool_result(result)
        if _CALL.fullmatch(result.call_id.removeprefix(f"{self.prefix}-")):
            await self._live.result(result, self._answers)

    async def interject(self, text: str) -> None:
        await self._transcript.interject(text)
