"""The agent loop: the model replies, its tool calls run, their results go back, until it is done.

Invariant: what a transcript already holds is neither asked nor run again; a loop resumed at any point ends as if it had never stopped.
"""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel, Field

from libs.agent.conversation import Conversation
from libs.agent.dialect import Dialect, NativeCalls, printed_call
from libs.agent.gate import Gate, Given, Paused, Waits, open_gate
from libs.agent.limits import Limits, Meter, TimeLimit
from libs.agent.model import Model
from libs.agent.record import Interjection, ToolResult
from libs.agent.tools import Arguments, MalformedCall, Tool, ToolFailed, Tools, cut, parse_arguments
from libs.agent.transcript import Transcript
from libs.contracts.envelope import Usage
from libs.contracts.inference import ChatMessage, Completion
from libs.contracts.turn import PendingCall
from libs.contracts.work import ToolCall

NextTask = Callable[[str], Awaitable[str | None]]
Span = Callable[..., AbstractContextManager[Any]]
Show = Callable[[str, str], Awaitable[None]]
UNKNOWN = (
    "The outcome is unknown: the work was interrupted after this call had begun, and it may have been carried out or not. "
    "Look at the present state before you go on; do not simply repeat the call."
)
_EMPTY = "Your reply was empty. Answer, or call a tool to go on."


class Done(Arguments):
    """Arguments of `done`."""

    summary: str = Field(min_length=1, description="what was changed and why, in a few sentences")


@dataclass(frozen=True)
class LoopResult:
    """How a loop ended: the summaries of its tasks, what it used, and whether any call with effects succeeded."""

    summary: str
    usage: Usage
    calls: int
    changed: bool


async def run_loop(
    model: Model,
    tools: Tools,
    transcript: Transcript,
    limits: Limits,
    messages: Sequence[ChatMessage],
    next_task: NextTask,
    *,
    dialect: Dialect | None = None,
    show: Show | None = None,
    span: Span | None = None,
    gate: Gate = open_gate,
    talk: bool = False,
) -> LoopResult:
    """Run until the model calls `done` and `next_task(summary)` has no further task to give; with `talk` there is no `done`, and a reply
    without tool calls ends the task.

    `messages` is the beginning of the prompt with the first task. `show(kind, text)` is told what goes on. Tool calls of one reply run
    in order, each in a `span` of the GenAI conventions, those that `gate` lets run. Raises Stopped (see libs.agent.limits), Paused when
    calls wait at the gate, and whatever the model or a tool raises apart from ToolError.
    """
    remaining = limits.max_seconds - transcript.record.seconds_used
    timer = asyncio.timeout(max(remaining, 0.0))
    loop = _Loop(model, tools, transcript, limits, next_task, dialect or NativeCalls(), show or _quiet, span or _untraced, gate, talk)
    try:
        async with timer:
            return await loop.run(messages)
    except TimeoutError:
        if not timer.expired():
            raise
    raise TimeLimit(limits)


async def _quiet(kind: str, text: str) -> None:
    return


def _untraced(name: str, **attributes: Any) -> AbstractContextManager[Any]:
    return nullcontext()


@dataclass
class _Loop:
    model: Model
    tools: Tools
    transcript: Transcript
    limits: Limits
    next_task: NextTask
    dialect: Dialect
    show: Show
    span: Span
    gate: Gate = open_gate
    talk: bool = False
    summaries: list[str] = field(default_factory=list)
    changed: bool = False
    finished: bool = False

    def __post_init__(self) -> None:
        self.done = Tool("done", "End this step when it is complete. Say what was changed and why.", Done, _say_nothing)
        if not self.talk:
            self.tools = self.tools.plus(self.done)
        self.meter = Meter(self.limits, self.transcript.record.allowance_from)
        self.conversation = Conversation(self.limits.context_tokens, self.limits.max_output_tokens, self.tools.definitions())

    async def run(self, messages: Sequence[ChatMessage]) -> LoopResult:
        for message in messages:
            self.conversation.add(message)
        while not self.finished:
            reply = self._with_ids(self.dialect.read(await self._reply(), self.tools))
            self.conversation.reply(reply)
            if reply.tool_calls:
                await self._act(reply)
            else:
                await self._nudge(reply)
        record = self.transcript.record
        return LoopResult("\n\n".join(self.summaries), record.usage(), self.meter.calls, self.changed)

    async def _reply(self) -> Completion:
        """The next reply, from the record or else from the model."""
        record, call = self.transcript.record, self.meter.calls + 1
        for said in record.interjections.get(self.meter.calls, ()):
            self._interject(said)
        if self.conversation.fit():
            self.meter.forget_repeats()
        if call > len(record.replies):
            self.meter.before_call(record.usage(), record.seconds_used)
            messages, definitions = self.dialect.prompt(self.conversation.messages, self.tools)
            await self.show("status", f"model call {call}")
            reply = await self.model.complete(messages, definitions, f"{self.transcript.prefix}-{call}")
            await self.transcript.record_reply(reply)
        self.meter.calls = call
        return record.replies[call - 1]

    def _interject(self, said: Interjection) -> None:
        self.conversation.user(said.text)
        if said.fresh_allowance:
            self.meter.reset()

    def _with_ids(self, reply: Completion) -> Completion:
        """The reply with a unique id for each call; some providers give none, or the same one twice."""
        used = {call.id for message in self.conversation.messages for call in message.tool_calls}
        calls = []
        for index, call in enumerate(reply.tool_calls, 1):
            unique = call.id if call.id and call.id not in used else f"call_{self.meter.calls}_{index}"
            used.add(unique)
            calls.append(call.model_copy(update={"id": unique}))
        return reply.model_copy(update={"tool_calls": tuple(calls)})

    async def _nudge(self, reply: Completion) -> None:
        """A reply without calls: told to go on, then taken as the summary when something was changed."""
        said = reply.content.strip()
        if self.talk:
            await self._answer(said)
            return
        usable = self.changed and bool(said) and not printed_call(said, self.tools)
        if self.meter.silent(said, usable=usable):
            await self._end_task(said)
        else:
            self.conversation.user(self.dialect.nudge(reply, self.tools))

    async def _answer(self, said: str) -> None:
        """A reply without calls in a talk is the answer, unless it is empty."""
        if said:
            await self._end_task(said)
        elif not self.meter.silent(said, usable=False):
            self.conversation.user(_EMPTY)

    async def _act(self, reply: Completion) -> None:
        """Run the calls of a reply in order; `done` counts only when every call before it has succeeded. Raises Paused."""
        all_ok, summary, pending = True, None, list[PendingCall]()
        for index, call in enumerate(reply.tool_calls, 1):
            call_id = f"{self.transcript.prefix}-{self.meter.calls}.{index}"
            if summary is not None:
                self.conversation.output(call, "Not run: the step was ended by done before this call.")
                continue
            result = await self._call(call, call_id, all_ok)
            if isinstance(result, PendingCall):
                pending.append(result)
                continue
            all_ok = all_ok and result.ok
            self.conversation.output(call, result.text)
            if self._is_done(call) and result.ok:
                summary = result.text
        if pending:
            raise Paused(tuple(pending))
        if summary is not None:
            await self._end_task(self._summary(reply))

    def _is_done(self, call: ToolCall) -> bool:
        return call.name == self.done.name and not self.talk

    def _summary(self, reply: Completion) -> str:
        arguments = next(parse_arguments(call.arguments) for call in reply.tool_calls if call.name == self.done.name)
        return str((arguments or {}).get("summary", ""))

    async def _end_task(self, summary: str) -> None:
        """The task is done, unless something has happened since that the model must be told first."""
        happened = self.transcript.record.interjections.get(self.meter.calls, ())
        if any(not said.fresh_allowance for said in happened):
            return
        self.summaries.append(summary)
        self.meter.reset()
        task = await self.next_task(summary)
        if task is None:
            self.finished = True
        else:
            self.conversation.user(task)

    async def _call(self, call: ToolCall, call_id: str, all_ok: bool) -> ToolResult | PendingCall:
        """One call's result, from the record or else by running it, counted against the limits; the call itself when it must wait."""
        recorded = self.transcript.record.results.get(call_id)
        try:
            tool, arguments = self.tools.find(call), self.tools.arguments(call)
        except MalformedCall as error:
            result = recorded or await self._keep(call_id, call.name, str(error), ok=False)
            self.meter.malformed(str(error))
            return result
        key = f"{call.name} {json.dumps(parse_arguments(call.arguments), sort_keys=True)}"
        refused = self._refusal(call, key, all_ok)
        if recorded is not None:
            result = recorded
        elif refused:
            result = await self._keep(call_id, call.name, refused, ok=False)
        else:
            passed = await self._pass(tool, arguments, call_id)
            if isinstance(passed, Waits):
                return PendingCall(call_id=call_id, tool=call.name, arguments=call.arguments, waits_for=passed.waits_for)
            result = passed
        effects = tool.effects != "none"
        self.changed = self.changed or (result.ok and effects)
        self.meter.outcome(key, ok=result.ok, effects=effects, why=result.text[:300])
        return result

    async def _pass(self, tool: Tool[Any], arguments: BaseModel, call_id: str) -> ToolResult | Waits:
        """Run a call, or take what the gate gives in its place. One that was begun before has passed the gate."""
        if call_id not in self.transcript.record.started:
            word = await self.gate(tool, arguments, call_id)
            if isinstance(word, Waits):
                return word
            if isinstance(word, Given):
                return await self._keep(call_id, tool.name, cut(word.text, tool.rest), ok=word.ok)
        return await self._run(tool, arguments, call_id)

    def _refusal(self, call: ToolCall, key: str, all_ok: bool) -> str:
        """Why a call that could be run is not."""
        if self._is_done(call):
            return "" if all_ok else "The step is not ended: an earlier call of this reply failed. Look at it first."
        if self.meter.repeats(key, call.name):
            return (
                f"Not run: you have made this very call of {call.name} before and nothing has changed since, so its result would be "
                "the same. Use the result you have, or do something else."
            )
        return ""

    async def _run(self, tool: Tool[Any], arguments: BaseModel, call_id: str) -> ToolResult:
        """Run a call. One that was begun before a crash is run again only if that is harmless."""
        if tool.effects != "none":
            if call_id not in self.transcript.record.started:
                await self.transcript.record_tool_start(call_id, tool.name)
            elif not tool.idempotent:
                return await self._keep(call_id, tool.name, UNKNOWN, ok=False)
        await self.show("tool", f"{tool.name} {_brief(arguments)}")
        begun = time.monotonic()
        try:
            with self.span(f"execute_tool {tool.name}", gen_ai__operation__name="execute_tool", gen_ai__tool__name=tool.name):
                text, ok = await tool.run(arguments, call_id), True
        except ToolFailed as error:
            text, ok = str(error), False
        return await self._keep(call_id, tool.name, cut(text, tool.rest), ok=ok, seconds=time.monotonic() - begun)

    async def _keep(self, call_id: str, tool: str, text: str, *, ok: bool, seconds: float = 0.0) -> ToolResult:
        result = ToolResult(call_id=call_id, tool=tool, text=text, ok=ok, seconds=round(seconds, 3))
        await self.transcript.record_tool_result(result)
        return result


async def _say_nothing(arguments: Done, call_id: str) -> str:
    return "The step is ended."


def _brief(arguments: BaseModel) -> str:
    return " ".join(str(value).split("\n", 1)[0][:120] for value in arguments.model_dump(exclude_none=True).values())[:300]
