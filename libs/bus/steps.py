"""A step is a function from an event to the next event. This module delivers, claims, fences, appends and acknowledges.

Invariant: of all deliveries of one event to one step, exactly one result is on the journal; a late one is dropped.
"""

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from libs.bus.delivery import Delivery
from libs.bus.errors import AskPerson, Backoff, Fenced, GiveUp, LeaseLost, Retry, decide, describe
from libs.bus.journal import BrokenEvent, Journal, decode
from libs.contracts.envelope import Message
from libs.contracts.fold import Recorded, RunState, fold
from libs.contracts.registry import KINDS
from libs.contracts.work import Claim, End, FailedTry, Failure, Inner, Kind, PersonAsked, Resumes, StepName, WorkEvent
from libs.telemetry import extract

if TYPE_CHECKING:
    from libs.bus.service import Bus

log = logging.getLogger(__name__)
EXPIRES_SECONDS = 7 * 86_400
WORKER = f"{socket.gethostname()}-{os.getpid()}"
StepHandler = Callable[[Any, "Step"], Awaitable[WorkEvent | None]]


@dataclass(frozen=True)
class StepSpec:
    """How a step is delivered and retried. `retries` counts failures, not crashes; `claim` records that a worker has begun."""

    name: StepName
    on: tuple[type[WorkEvent], ...]
    handler: StepHandler
    retries: int
    deadline_seconds: float
    concurrency: int
    claim: bool
    backoff: Backoff
    kind: Kind = KINDS["run"]


@dataclass
class Step:
    """One delivery of one event to a step: what a handler may ask, record and show. `run_id` is the id of the run or turn."""

    bus: "Bus"
    spec: StepSpec
    event: WorkEvent
    run_id: str
    sequence: int
    causation: int
    delivery: int
    token: int = 0
    last: int = 0
    _seen: list[Recorded] = field(default_factory=list)

    @property
    def journal(self) -> Journal:
        """The journals of this kind of work."""
        return self.bus.journals[self.spec.kind.name]

    def make(self, base: type[Message], **fields: Any) -> Any:
        """An inner event of this step, in the kind of its journal: `step.make(ModelReply, call=1, …)`."""
        return self.spec.kind.make(base, self.run_id, step=self.spec.name, of=self.sequence, **fields)

    async def history(self) -> list[Recorded]:
        """All events of the run, in order."""
        self._seen.extend(await self.journal.read(self.run_id, self._seen[-1].sequence if self._seen else 0))
        return list(self._seen)

    async def state(self) -> RunState:
        """The fold of the run."""
        return fold(await self.history(), self.run_id)

    async def record(self, event: WorkEvent) -> int:
        """Append an inner event of this step behind the fence.

        Raises:
            LeaseLost: another worker has taken the step over, or the run has ended.
        """
        while True:
            try:
                self.last = await self.journal.append(event, follows=self.last, causation=self.sequence)
            except Fenced:
                news = await self.news()
                if self.settled(news) or self._taken_over(news):
                    raise LeaseLost from None
            else:
                return self.last

    async def ask(
        self, question: Any, on_frame: Callable[[bytes], Awaitable[None]] | None = None, timeout_seconds: float | None = None
    ) -> Any:
        """Ask another service. Raises Refusal or NoAnswer."""
        return await self.bus.ask(question, on_frame=on_frame, timeout_seconds=timeout_seconds)

    async def progress(self, kind: str, text: str) -> None:
        """Show what is going on; may be lost."""
        await self.bus.progress(self.run_id, self.spec.name, kind, text)

    async def news(self) -> list[Recorded]:
        """What was appended after the last event that this delivery knows of; moves the fence there."""
        found, self.last = await self.journal.read_to_end(self.run_id, self.last)
        return found

    def settled(self, news: list[Recorded]) -> bool:
        """Whether this step's own result is among `news`, or the run's end."""
        return any(isinstance(r.event, End) or (r.causation == self.sequence and not isinstance(r.event, Inner)) for r in news)

    def handed_over(self, news: list[Recorded]) -> bool:
        """Whether the newest claim of this step was made for another message, which is delivered until the step is done."""
        claims = [r for r in news if isinstance(r.event, Claim) and r.event.step == self.spec.name]
        return bool(claims) and claims[-1].causation != self.causation

    def _taken_over(self, news: list[Recorded]) -> bool:
        return any(
            isinstance(r.event, Claim) and r.event.step == self.spec.name and r.sequence > self.token and self.spec.claim for r in news
        )


class StepRunner:
    """Handles the deliveries of one step."""

    def __init__(self, bus: "Bus", spec: StepSpec) -> None:
        self._bus = bus
        self._journal = bus.journals[spec.kind.name]
        self.spec = spec
        self.running: dict[str, set[asyncio.Task[Any]]] = {}

    async def __call__(self, delivery: Delivery) -> None:
        """Deliver one message to the handler and settle it."""
        try:
            step = await self._step(delivery)
        except BrokenEvent as error:
            await self._bury_broken(delivery, str(error))
            return
        if step is None:
            await delivery.ack()
            return
        with self._span(step, delivery):
            await self._settle(step, delivery)

    def cancel(self, run_id: str) -> None:
        """Stop the handlers of a run."""
        for task in self.running.get(run_id, ()):
            task.cancel()

    def _span(self, step: Step, delivery: Delivery) -> Any:
        sent = extract(delivery.headers)
        return self._bus.telemetry.span(
            f"process {type(step.event).type}",
            "consumer",
            parent=sent,
            link=sent,
            messaging__system="nats",
            messaging__destination__name=delivery.subject,
            agent_coder__step=self.spec.name,
            agent_coder__delivery=delivery.number,
        )

    def _agent_span(self, step: Step) -> Any:
        """The handler's own time; a step that claims is an agent's (OpenTelemetry GenAI conventions, `invoke_agent`)."""
        if not self.spec.claim:
            return nullcontext()
        agent = self._bus.connection.name
        return self._bus.telemetry.span(
            f"invoke_agent {agent}",
            gen_ai__operation__name="invoke_agent",
            gen_ai__agent__name=agent,
            gen_ai__conversation__id=step.run_id,
        )

    async def _step(self, delivery: Delivery) -> Step | None:
        """The delivered event, or the one that a person sent the step back to; None when it is none of ours."""
        event = decode(delivery.subject, delivery.payload)
        if event is None:
            return None
        sequence = delivery.sequence
        if isinstance(event, Resumes):
            sequence = event.of
            event = await self._original(event, sequence)
        return Step(
            bus=self._bus,
            spec=self.spec,
            event=event,
            run_id=event.work_id,
            sequence=sequence,
            causation=delivery.sequence,
            delivery=delivery.number,
            token=delivery.sequence,
            last=delivery.sequence,
        )

    async def _original(self, word: WorkEvent, of: int) -> WorkEvent:
        found = await self._journal.get(of)
        if found is None or not isinstance(found.event, self.spec.on) or found.event.work_id != word.work_id:
            raise BrokenEvent(f"{type(word).type}: event {of} is not one that step {self.spec.name} handles")
        return found.event

    async def _settle(self, step: Step, delivery: Delivery) -> None:
        if delivery.number > 1 and step.settled(await step.news()):
            await delivery.ack()
            return
        try:
            await self._claim(step)
            with self._agent_span(step):
                result = await self._work(step)
            while result is not None and not await self._append(step, result):
                result = await self._work(step)
        except LeaseLost:
            log.info("run %s: %s was settled or taken over elsewhere", step.run_id, self.spec.name)
            since = await self._journal.read(step.run_id, step.causation)
            if step.settled(since) or step.handed_over(since):
                await delivery.ack()
        except Exception as error:  # noqa: BLE001 - the one place that decides about every error of a handler
            await self._failed(step, delivery, error)
        else:
            await delivery.ack()

    async def _claim(self, step: Step) -> None:
        if not self.spec.claim:
            return
        started = step.make(Claim, delivery=step.delivery, worker=WORKER)
        while True:
            try:
                step.token = step.last = await self._journal.append(started, follows=step.last, causation=step.causation)
            except Fenced:
                if step.settled(await step.news()):
                    raise LeaseLost from None
            else:
                return

    async def _work(self, step: Step) -> WorkEvent | None:
        """Run the handler in a task of its own, so that a cancelled run stops it and a stopped service is told apart."""
        task = asyncio.ensure_future(self.spec.handler(step.event, step))
        tasks = self.running.setdefault(step.run_id, set())
        tasks.add(task)
        try:
            done, _ = await asyncio.wait({task}, timeout=self.spec.deadline_seconds)
            if not done:
                raise TimeoutError(f"{self.spec.name} was still at work after {self.spec.deadline_seconds:g} s")
            if task.cancelled():
                raise LeaseLost
            return task.result()
        finally:
            if not task.done():
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
            tasks.discard(task)
            if not tasks:
                self.running.pop(step.run_id, None)

    async def _append(self, step: Step, result: WorkEvent) -> bool:
        """Append the step's result after the newest event, unless it or the run's end is there already.

        False: a step without a claim would end the work, and something came in between that it has not seen; it decides anew.
        """
        with self._send_span(result):
            while True:
                try:
                    step.last = await self._journal.append(result, follows=step.last, causation=step.sequence)
                except Fenced:
                    news = await step.news()
                    if step.settled(news) or step._taken_over(news):
                        raise LeaseLost from None
                    if isinstance(result, End) and not isinstance(result, Failure) and not self.spec.claim:
                        return False
                else:
                    return True

    def _send_span(self, result: WorkEvent) -> Any:
        """A cheap step is one span: what it sends follows at once from what it processed."""
        if not self.spec.claim:
            return nullcontext()
        return self._bus.telemetry.span(
            f"send {type(result).type}", "producer", messaging__system="nats", messaging__destination__name=result.subject_of()
        )

    async def _failed(self, step: Step, delivery: Delivery, error: Exception) -> None:
        earlier = await self._failures(step)
        match decide(error, len(earlier) + 1, self.spec.retries, self.spec.backoff, step.sequence):
            case AskPerson(question):
                await self._park(step, question)
                await delivery.ack()
            case Retry(delay):
                if _is_bug(error):
                    log.error("run %s: %s raised", step.run_id, self.spec.name, exc_info=error)
                await self._note_failure(step, error, delay)
                await delivery.nak(delay)
            case GiveUp() as end:
                log.warning("run %s: %s ends it: %s", step.run_id, self.spec.name, end.reason, exc_info=error if _is_bug(error) else None)
                await self._end(step, delivery, end)

    async def _failures(self, step: Step) -> list[Recorded]:
        since = await self._journal.read(step.run_id, step.causation)
        return [r for r in since if isinstance(r.event, FailedTry) and r.event.step == self.spec.name and r.causation == step.sequence]

    async def _note_failure(self, step: Step, error: Exception, delay: float) -> None:
        note = step.make(FailedTry, delivery=step.delivery, error=describe(error), retry_in_seconds=round(delay, 3))
        with contextlib.suppress(LeaseLost):
            await step.record(note)

    async def _park(self, step: Step, question: str) -> None:
        """Set the timer that ends the run when nobody answers, then ask: a crash in between leaves a timer that finds nothing to end."""
        state = await step.state()
        seconds = state.opened.policy.approval_expires_seconds if state.opened else EXPIRES_SECONDS
        expires = (datetime.now(UTC) + timedelta(seconds=seconds)).replace(microsecond=0)
        request = step.make(PersonAsked, question=question[:8000], expires_at=expires)
        await self._bus.timers.set(step.run_id, "approval", expires, {"of": step.sequence})
        with contextlib.suppress(LeaseLost):
            await self._append(step, request)

    async def _end(self, step: Step, delivery: Delivery, end: GiveUp) -> None:
        """Copy to the dead letters first, then end the run, then acknowledge: a crash in between repeats, never loses."""
        letter = await self._bus.dead_letters.bury(delivery, end.reason, "exhausted", step.run_id) if end.dead else None
        failed = step.make(Failure, reason=end.reason, kind=end.kind, dead_letter=letter)
        with contextlib.suppress(LeaseLost):
            await self._append(step, failed)
        await delivery.ack()

    async def _bury_broken(self, delivery: Delivery, reason: str) -> None:
        run_id = delivery.subject.split(".")[1]
        letter = await self._bus.dead_letters.bury(delivery, reason, "schema", run_id)
        fields = {"reason": reason, "step": self.spec.name, "of": delivery.sequence, "kind": "schema", "dead_letter": letter}
        failed = self.spec.kind.make(Failure, run_id, **fields)
        news, last = await self._journal.read_to_end(run_id)
        if not news or not isinstance(news[-1].event, End):
            with contextlib.suppress(Fenced):
                await self._journal.append(failed, follows=last, causation=delivery.sequence)
        await delivery.term()


def _is_bug(error: Exception) -> bool:
    return type(error).__module__ != "libs.bus.errors"
