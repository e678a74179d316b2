"""One delivery of an admitted turn: the loop over the conversation, up to the answer, a pause, or the reason why there is none.

Invariant: replies and results are recorded before they are acted on, and the answer's message id follows from the turn's id, so a turn
that is delivered again asks and stores nothing twice.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from pydantic import BaseModel

from libs.agent import (
    AskedModel,
    CallLimit,
    DeclaredTool,
    Given,
    JournalTranscript,
    LimitReached,
    Limits,
    LoopResult,
    Paused,
    Stopped,
    Tool,
    ToolFailed,
    Tools,
    Waits,
    run_loop,
)
from libs.agent.limits import NothingDone, TimeLimit
from libs.agent.tools import AnyArguments
from libs.bus import LeaseLost, NoAnswer, Refusal, Step
from libs.contracts.conversation import Appended, AppendMessages, StoredMessage
from libs.contracts.envelope import JsonObject
from libs.contracts.fold import Recorded
from libs.contracts.inference import ModelDescription
from libs.contracts.turn import PendingCall, TurnAdmitted, TurnFailed, TurnFinished, TurnOpened, TurnPaused
from libs.contracts.turn_fold import TurnState, fold_turn
from libs.uimessages import Live, ShownTranscript, fitted, message_parts
from services.assistant.agents import Agent, TurnContext
from services.assistant.conversations import turn_state
from services.assistant.models import KnownModels
from services.assistant.prompt import Prompt
from services.assistant.settings import AssistantSettings

MODEL_REFUSALS = frozenset({"no_model", "budget_exceeded", "rate_limited", "upstream", "bad_request"})
_CLEANUP_SECONDS = 5.0
_FOR_THE_TALK = 0.6
_EMPTY = "The model's reply was empty, also when it was asked once more. Try again, or name another model."
DENIED = "The user did not allow this call. Do not try it again in another way; go on without it, or ask."


class Unanswerable(Exception):
    """There is no answer; the text says why."""

    def __init__(self, reason: str, kind: Any = "permanent") -> None:
        super().__init__(reason)
        self.kind = kind


def answer_id(turn_id: str) -> str:
    """The id of the message that answers a turn."""
    return f"answer-{turn_id}"


@dataclass(frozen=True)
class Kept:
    """What became of an answer: how many characters of it had to be left out, and the tokens of the active branch then."""

    left_out: int
    context_tokens: int


@dataclass
class Turn:
    """What one delivery works with. Made by `begin`."""

    settings: AssistantSettings
    agent: Agent
    step: Step
    event: TurnAdmitted
    opened: TurnOpened
    state: TurnState
    live: Live
    transcript: ShownTranscript
    models: KnownModels
    room: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(1))
    save: Callable[[], Awaitable[None]] | None = None

    @classmethod
    async def begin(
        cls, settings: AssistantSettings, models: KnownModels, agent: Agent, event: TurnAdmitted, step: Step, history: Sequence[Recorded]
    ) -> "Turn":
        """Show what is recorded; `history` is the turn's journal."""
        state = fold_turn(history, step.run_id)
        assert state.opened is not None
        recorded = await JournalTranscript.open(step, "turn", history)

        async def send(payload: bytes) -> None:
            await step.bus.connection.send(f"live.{step.run_id}.part", payload)

        live = Live(send, step.token, recorded.prefix)
        answers = {answer.call_id: answer for answer in state.answers}
        shown = await ShownTranscript.open(recorded, live, answers, answer_id(step.run_id))
        return cls(settings, agent, step, event, state.opened, state, live, shown, models)

    @property
    def context(self) -> TurnContext:
        """The turn as hooks see it."""
        return TurnContext(turn_id=self.step.run_id, opened=self.opened)

    async def answer(self, tools: Sequence[Tool[Any]], prompt: Prompt) -> TurnFinished | TurnPaused | TurnFailed:
        """Run the loop; the event that it ends with. A cancelled turn keeps what was written."""
        try:
            return await self._loop(tools, prompt)
        except Paused as paused:
            return await self._pause(paused.pending)
        except Unanswerable as why:
            return await self._fail(str(why), why.kind)
        except TimeLimit:
            return await self._fail(f"The turn used {self.settings.turn_seconds:g} seconds of work. Ask for less at a time.", "limit")
        except Stopped as why:
            words = _EMPTY if isinstance(why, NothingDone) else str(why)
            return await self._fail(words, "limit" if isinstance(why, LimitReached) else "permanent")
        except Refusal as no:
            if no.retryable and no.code not in MODEL_REFUSALS:
                raise
            return await self._fail(no.detail, "limit" if no.code == "budget_exceeded" else "permanent")
        except (asyncio.CancelledError, LeaseLost):
            await self._keep_partial()
            raise

    async def _loop(self, tools: Sequence[Tool[Any]], prompt: Prompt) -> TurnFinished:
        async with self.room:
            chosen, read = await asyncio.gather(self._model(), prompt.read())
        opened, limit = self.opened, min(self.settings.max_output_tokens, chosen.context_tokens // 4)
        told = prompt.messages(read, int((chosen.context_tokens - limit) * _FOR_THE_TALK))
        messages = await self.agent.before_turn(self.context, tuple(told))
        model = AskedModel(
            self.step.ask,
            account=f"turn:{self.step.run_id}",
            purpose="chat",
            name=opened.model,
            max_output_tokens=limit,
            frame=self.live.frame,
            tenant=opened.tenant,
            user=opened.user,
            plan=opened.plan,
        )
        limits = Limits(
            self._most_calls(), self.settings.turn_seconds, context_tokens=chosen.context_tokens, max_output_tokens=limit, nudges=1
        )
        result: LoopResult | None = None
        with contextlib.suppress(CallLimit):
            result = await run_loop(
                model,
                self._tools(tools if chosen.tool_calling else ()),
                self.transcript,
                limits,
                messages,
                _no_more,
                gate=self._gate,
                talk=True,
                span=self.step.bus.telemetry.span,
            )
        last = self.transcript.record.replies[-1]
        if result is None and not last.tool_calls:  # only an empty reply leaves something to ask for
            raise Unanswerable(_EMPTY)
        return await self._finish("tool-calls" if result is None else last.finish_reason)

    def _most_calls(self) -> int:
        """How often the model may be asked: no more when the one who answered the last call wants to say something first."""
        record = self.transcript.record
        held = self.state.answers and not self.state.answers[-1].goes_on
        return len(record.replies) - record.allowance_from if held else self.opened.max_model_calls

    def _tools(self, own: Sequence[Tool[Any]]) -> Tools:
        """The agent's own tools, whose results pass the hook, then those that the client declares; a later one of a name wins."""
        declared = [
            DeclaredTool(tool.name, tool.description, AnyArguments, _unreachable, parameters=tool.parameters)
            for tool in self.opened.client_tools
        ]
        return Tools((*(self._hooked(tool) for tool in own if self.opened.inline_tools), *declared))

    def _hooked(self, tool: Tool[Any]) -> Tool[Any]:
        async def run(arguments: BaseModel, call_id: str) -> str:
            try:
                text = await tool.run(arguments, call_id)
            except Refusal as no:
                if no.retryable:
                    raise
                raise ToolFailed(no.detail) from no
            return await self.agent.after_tool_call(self.context, tool.name, arguments.model_dump(), text)

        return replace(tool, run=run)

    async def _gate(self, tool: Tool[Any], arguments: BaseModel, call_id: str) -> Given | Waits | None:
        """A client's tool waits for its output, a tool that needs consent for a person's word; hooks speak before that."""
        answer = next((a for a in self.state.answers if a.call_id == call_id), None)
        if isinstance(tool, DeclaredTool):
            if answer is None:
                return Waits("client")
            return Given(answer.error, ok=False) if answer.error is not None else Given(answer.output or "")
        fields = arguments.model_dump()
        if (word := await self.agent.before_tool_call(self.context, tool.name, fields)) is not None:
            return word
        if not self.agent.needs_approval(tool.name, fields):
            return None
        if answer is None:
            return Waits("approval")
        return None if answer.approved else Given(f"{DENIED} They said: {answer.error}" if answer.error else DENIED, ok=False)

    async def _model(self) -> ModelDescription:
        models = await self.models.of(self.step.ask, self.opened.plan)
        if not models.models:
            raise Unanswerable(models.advice or "No model is configured: set MODEL, for example MODEL=anthropic/<model>, and restart.")
        return next((model for model in models.models if model.name == self.opened.model), models.models[0])

    async def _finish(self, reason: str) -> TurnFinished:
        usage = self.transcript.record.usage()
        metadata = {"finishReason": reason, "usage": usage.model_dump()}
        if self.save is not None:
            await self.save()
        async with self.room:
            kept = await self.store(metadata=metadata, usage=True)
        await self._tell(kept)
        await self.live.finish(_ui_reason(reason), {"turnId": self.step.run_id, **metadata})
        return TurnFinished(
            turn_id=self.step.run_id,
            message_id=answer_id(self.step.run_id),
            finish_reason=reason,
            usage=usage,
            context_tokens=kept.context_tokens,
        )

    async def _pause(self, pending: tuple[PendingCall, ...]) -> TurnPaused:
        await self._tell(await self.store(pending=pending, metadata={"paused": True}))
        await self.live.pending(pending)
        await self.live.finish("tool-calls", {"turnId": self.step.run_id, "paused": True})
        return TurnPaused(turn_id=self.step.run_id, pending=pending)

    async def _fail(self, reason: str, kind: Any) -> TurnFailed:
        kept = False
        with contextlib.suppress(Refusal):  # a conversation that was deleted keeps nothing
            kept = await self._keep({"error": reason[:2000]})
        await self.live.stop("error", errorText=reason)
        message_id = answer_id(self.step.run_id) if kept else None
        return TurnFailed(
            turn_id=self.step.run_id, reason=reason[:8000], kind=kind, step="turn", of=self.step.sequence, message_id=message_id
        )

    async def _keep_partial(self) -> None:
        """After a person's cancellation, not when the service stops or another worker goes on: store what was written, in bounded time."""
        with contextlib.suppress(TimeoutError, NoAnswer, Refusal):
            async with asyncio.timeout(_CLEANUP_SECONDS):
                if (await turn_state(self.step.journal, self.step.run_id)).status == "cancelled":
                    await self._keep({"aborted": True})
                    await self.live.stop("abort")

    async def _keep(self, metadata: JsonObject) -> bool:
        cut_off = self.live.streamed(len(self.transcript.record.replies))
        if not cut_off and not self.transcript.record.replies:
            return False
        await self._tell(await self.store(metadata=metadata, cut_off=cut_off, usage=True))
        return True

    async def _tell(self, kept: Kept) -> None:
        """The answer is longer than what can be kept of it."""
        if kept.left_out:
            await self.live.notice(f"The answer was too long to be kept whole: {kept.left_out:,} characters of its longest texts are not.")

    async def store(self, *, metadata: JsonObject, pending: tuple[PendingCall, ...] = (), cut_off: str = "", usage: bool = False) -> Kept:
        """Put the answer into the tree, in place of what an earlier delivery has put there.

        It goes to the end of the branch that holds its question, which may have grown since; one more answer goes beside the first.
        """
        opened, record = self.opened, self.transcript.record
        beside = self.event.parent_id if opened.trigger in ("regenerate", "continue") else None
        answers = {answer.call_id: answer for answer in self.state.answers}
        parts, left_out = fitted(message_parts(record, self.transcript.prefix, answers, pending, cut_off))
        cut: JsonObject = {"leftOut": left_out} if left_out else {}
        message = StoredMessage(
            id=answer_id(self.step.run_id),
            parent_id=beside,
            role="assistant",
            parts=parts,
            metadata={"turnId": self.step.run_id, "answers": self.event.parent_id, "model": _model_name(record.replies), **metadata, **cut},
            created_at=datetime.now(UTC),
        )
        appended: Appended = await self.step.ask(
            AppendMessages(
                tenant=opened.tenant,
                user=opened.user,
                session_id=opened.session_id,
                messages=(message,),
                on_branch_of=None if beside is not None else self.event.parent_id,
                agent=opened.agent,
                replace=True,
                usage=record.usage() if usage else None,
            )
        )
        return Kept(left_out, appended.context_tokens)


async def _no_more(summary: str) -> str | None:
    return None


async def _unreachable(arguments: AnyArguments, call_id: str) -> str:
    raise LeaseLost  # the gate gives every call of a client's tool its result


def _model_name(replies: Sequence[Any]) -> str:
    return str(replies[-1].model) if replies else ""


def _ui_reason(reason: str) -> str:
    """A finish reason in the words of AI SDK 6."""
    known = reason.replace("_", "-")
    return known if known in ("stop", "length", "content-filter", "tool-calls", "error") else "other"
