"""A loop's transcript on the journal of a run or a turn: model replies, tool starts and tool results behind the step's fence.

A person who sends a stopped step to work again lets the same transcript go on with a fresh allowance; one who sends a finished
step to work again begins a new transcript, whose ids carry the sequence of that request.
"""

import json
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, Protocol, TypeVar

from libs.agent.blobs import INLINE_BYTES, get_blob, put_blob
from libs.agent.record import Entry, Interjection, Record, Started, ToolResult
from libs.contracts.envelope import BlobRef
from libs.contracts.fold import Recorded
from libs.contracts.inference import Completion
from libs.contracts.work import Claim, End, Inner, ModelReply, Pause, PersonAsked, Resumes, Retries, StepName, ToolCall, WorkEvent
from libs.contracts.work import ToolResult as Returned
from libs.contracts.work import ToolStart as Begun

_INTERJECTION = "message"
_GO_ON = "You were stopped here by a limit or a failure; a person lets you go on. Do not repeat what led there."
EventT = TypeVar("EventT", ModelReply, Returned)


class JournalStep(Protocol):
    """What a transcript needs of a step."""

    @property
    def run_id(self) -> str: ...

    @property
    def sequence(self) -> int: ...

    async def history(self) -> list[Recorded]: ...

    async def record(self, event: WorkEvent) -> int: ...

    def make(self, base: type[WorkEvent], **fields: Any) -> Any: ...

    async def ask(self, question: Any, on_frame: Any = None) -> Any: ...


class JournalTranscript:
    """The transcript of one step's loop. Made by `open`."""

    def __init__(self, step: JournalStep, name: StepName, prefix: str, record: Record) -> None:
        self._step = step
        self._name = name
        self.prefix = prefix
        self.record = record

    @classmethod
    async def open(cls, step: JournalStep, name: StepName, seen: Sequence[Recorded] = ()) -> "JournalTranscript":
        """Read what earlier deliveries of the step have recorded; `seen` is the journal where it was read just now."""
        history = seen or await step.history()
        begin = _beginning(history, name, step.sequence)
        prefix = f"{step.run_id}-{step.sequence}" + (f"-r{begin}" if begin else "")
        mine = [recorded for recorded in history if recorded.sequence > begin and _is_of(recorded.event, name, step.sequence)]
        record = Record()
        for recorded in mine:
            if (entry := await _entry(step, recorded.event)) is not None:
                record.add(entry)
        record.seconds_used = seconds_used(mine)
        return cls(step, name, prefix, record)

    async def record_reply(self, reply: Completion) -> None:
        call = len(self.record.replies) + 1
        event: ModelReply = self._step.make(
            ModelReply,
            call=call,
            model=reply.model,
            content=reply.content,
            reasoning=reply.reasoning,
            tool_calls=reply.tool_calls,
            finish_reason=reply.finish_reason,
            usage=reply.usage.model_copy(update={"calls": reply.usage.calls or 1}),
        )
        await self._step.record(await self._slim(event, ("content", "reasoning", "tool_calls")))
        self.record.add(reply)

    async def record_tool_start(self, call_id: str, tool: str) -> None:
        await self._step.record(self._step.make(Begun, call_id=call_id, tool=tool))
        self.record.add(Started(call_id=call_id, tool=tool))

    async def record_tool_result(self, result: ToolResult) -> None:
        event: Returned = self._step.make(
            Returned,
            call_id=result.call_id,
            tool=result.tool,
            ok=result.ok,
            result=result.text,
            duration_seconds=result.seconds,
        )
        await self._step.record(await self._slim(event, ("result",)))
        self.record.add(result)

    async def interject(self, text: str) -> None:
        result = ToolResult(call_id=f"{self.prefix}.{_INTERJECTION}.{len(self.record.replies)}", tool=_INTERJECTION, text=text)
        await self._step.record(self._step.make(Returned, call_id=result.call_id, tool=result.tool, result=text))
        self.record.add(Interjection(text=text))

    async def _slim(self, event: EventT, fields: Sequence[str]) -> EventT:
        """The event itself, or with `fields` moved into a blob when it is too large for the journal."""
        if len(event.model_dump_json()) <= INLINE_BYTES // 4 or len(event.model_dump_json().encode()) <= INLINE_BYTES:
            return event
        data = json.dumps(event.model_dump(mode="json", include=set(fields)), ensure_ascii=False).encode()
        blob = await put_blob(self._step.ask, self._step.run_id, data)
        empty = {name: type(getattr(event, name))() for name in fields}
        return event.model_copy(update={**empty, "overflow": blob})


def _beginning(history: Iterable[Recorded], name: StepName, sequence: int) -> int:
    """The sequence of the last request to do a finished step anew, 0 when there is none."""
    begin, finished = 0, False
    for recorded in history:
        if recorded.causation == sequence and not isinstance(recorded.event, Inner | Resumes | PersonAsked | Pause | End):
            finished = True
        elif isinstance(recorded.event, Retries) and _is_of(recorded.event, name, sequence) and finished:
            begin, finished = recorded.sequence, False
    return begin


def _is_of(event: WorkEvent, name: StepName, sequence: int) -> bool:
    kinds = (ModelReply, Begun, Returned, Retries, Claim)
    return isinstance(event, kinds) and event.step == name and event.of == sequence


async def _entry(step: JournalStep, event: WorkEvent) -> Entry | None:
    match event:
        case ModelReply():
            stored = await _stored(step, event.overflow)
            calls = tuple(ToolCall.model_validate(call) for call in stored["tool_calls"]) if stored else event.tool_calls
            return Completion(
                model=event.model,
                content=stored.get("content", event.content),
                reasoning=stored.get("reasoning", event.reasoning),
                tool_calls=calls,
                finish_reason=event.finish_reason,
                usage=event.usage,
            )
        case Begun():
            return Started(call_id=event.call_id, tool=event.tool)
        case Returned():
            text = (await _stored(step, event.overflow)).get("result", event.result)
            if event.tool == _INTERJECTION:
                return Interjection(text=text)
            return ToolResult(call_id=event.call_id, tool=event.tool, text=text, ok=event.ok, seconds=event.duration_seconds)
        case Retries():
            return Interjection(text=_GO_ON, fresh_allowance=True)
    return None


async def _stored(step: JournalStep, overflow: BlobRef | None) -> dict[str, Any]:
    return dict(json.loads(await get_blob(step.ask, overflow))) if overflow is not None else {}


def seconds_used(recorded: Iterable[Recorded]) -> float:
    """Seconds of work since the last fresh allowance: of each delivery the time from its start to its last entry, none in between."""
    total, begun, last = 0.0, _NEVER, _NEVER
    for entry in recorded:
        if isinstance(entry.event, Retries):
            total, begun, last = 0.0, _NEVER, _NEVER
            continue
        if isinstance(entry.event, Claim) or begun is _NEVER:
            total += (last - begun).total_seconds()
            begun = entry.at
        last = entry.at
    return total + (last - begun).total_seconds()


_NEVER = datetime.min
