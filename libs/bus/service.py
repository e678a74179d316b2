"""The one entrance to the bus: a service names its steps, answers and views; `run` connects, delivers and stops cleanly."""

import asyncio
import logging
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any, TypeVar

from libs.bus.connection import Connection
from libs.bus.dead_letters import DeadLetters
from libs.bus.deciding import Decide, append_decided
from libs.bus.delivery import Delivery, PullConsumer
from libs.bus.errors import Backoff, Fenced, NoAnswer
from libs.bus.journal import EXPECTED, Journal
from libs.bus.questions import SILENCE_SECONDS, Answerer, AnswerSpec, Asker, FrameHandler, Questioner
from libs.bus.steps import StepHandler, StepRunner, StepSpec
from libs.bus.timers import Timers
from libs.bus.topology import CONSUMERS
from libs.bus.tracing import BusSpanExporter
from libs.bus.views import View, ViewSpec
from libs.contracts.envelope import Message, Question
from libs.contracts.live import Progress
from libs.contracts.registry import KINDS
from libs.contracts.run import RunEvent
from libs.contracts.work import StepName, WorkEvent
from libs.settings import BusSettings
from libs.telemetry import Telemetry, extract, inject

log = logging.getLogger(__name__)
AnswerT = TypeVar("AnswerT", bound=Message)
Background = Callable[[], Awaitable[None]]


class Bus:
    """What a running service can do: ask, append, show progress, set timers."""

    def __init__(self, connection: Connection, telemetry: Telemetry, silence_seconds: float = SILENCE_SECONDS) -> None:
        self.connection = connection
        self.telemetry = telemetry
        self.journals = {name: Journal(connection, kind) for name, kind in KINDS.items()}
        self.journal = self.journals["run"]
        self.timers = Timers(connection)
        self.dead_letters = DeadLetters(connection)
        self._questioner = Questioner(connection, telemetry, silence_seconds)

    async def ask(self, question: Question[AnswerT], on_frame: FrameHandler | None = None, timeout_seconds: float | None = None) -> AnswerT:
        """Ask another service. Raises Refusal or NoAnswer."""
        return await self._questioner.ask(question, on_frame, timeout_seconds)

    @asynccontextmanager
    async def run_span(self, run_id: str, name: str, kind: str = "internal", cause: Mapping[str, str] | None = None) -> AsyncIterator[None]:
        """A span in the trace that the run was opened in, linked to the message that caused it, whose headers are `cause`."""
        opened = extract(await self.journal.opening(run_id))
        with self.telemetry.span(name, kind, parent=opened, link=extract(cause)):
            yield

    async def decide(self, run_id: str, decide: Decide, cause: Mapping[str, str] | None = None) -> tuple[int, RunEvent] | None:
        """Append what `decide` makes of the run's newest state, in the run's trace; None when it makes nothing.

        `decide` is asked again whenever something came in between, so it must be pure and find what it appended before.
        `cause` are the headers of the message that it comes from. Raises NoJournal, Retryable, and what `decide` raises.
        """
        return await append_decided(
            self.journal, run_id, decide, lambda event: self.run_span(run_id, f"send {event.type}", "producer", cause)
        )

    async def publish_once(self, stream: str, subject: str, fact: Message) -> bool:
        """Store a fact under a subject of its own, in the trace of the current span; False when it was there before.

        Raises:
            Retryable: the server did not acknowledge.
        """
        headers = inject() | {EXPECTED: "0"}
        try:
            await self.connection.publish(subject, fact.model_dump_json(exclude_defaults=True).encode(), headers, stream)
        except Fenced:
            return False
        return True

    async def alive(self, service: str, timeout_seconds: float = 2.0) -> bool:
        """Whether a process of `service` answers."""
        try:
            await self.connection.call(f"alive.{service}", b"", timeout_seconds=timeout_seconds)
        except NoAnswer:
            return False
        return True

    async def progress(self, id: str, step: str, kind: str, text: str) -> None:  # noqa: A002 - the subject's own word
        """Show what is going on; may be lost."""
        frame = Progress.model_validate({"id": id, "step": step, "kind": kind, "text": text[:8000], "at": datetime.now(UTC)})
        await self.connection.send(f"live.{id}.progress", frame.model_dump_json().encode())


class Service:
    """One bounded context on the bus. `name` is its NATS user."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._steps: list[StepSpec] = []
        self._answers: list[AnswerSpec] = []
        self._views: list[ViewSpec] = []
        self._consumers: list[tuple[str, Callable[[Delivery], Awaitable[None]], int]] = []
        self._background: list[Background] = []
        self._closing: list[Background] = []
        self._cancelling: list[Callable[[str], Awaitable[None]]] = []
        self._bus: Bus | None = None

    @property
    def bus(self) -> Bus:
        """The bus, while the service runs."""
        if self._bus is None:
            raise RuntimeError(f"{self.name} is not running")
        return self._bus

    def step(
        self,
        name: StepName,
        on: tuple[type[WorkEvent], ...],
        *,
        retries: int = 2,
        deadline_seconds: float = 600.0,
        concurrency: int = 8,
        claim: bool = True,
        backoff: Backoff | None = None,
    ) -> Callable[[StepHandler], StepHandler]:
        """Register a handler from an event to the next one. `claim` False leaves out the record that a worker has begun."""

        def register(handler: StepHandler) -> StepHandler:
            kind = KINDS[on[0].work]
            self._steps.append(StepSpec(name, on, handler, retries, deadline_seconds, concurrency, claim, backoff or Backoff(), kind))
            return handler

        return register

    def answer(self, question: type[Question[Any]], *, concurrency: int = 64) -> Callable[[Any], Any]:
        """Register the handler of a question: `async (question, asker) -> answer`."""

        def register(handler: Callable[[Any, Asker], Awaitable[Message]]) -> Any:
            self._answers.append(AnswerSpec(question, handler, concurrency))
            return handler

        return register

    def view(self, name: str, stream: str, *, batch: int = 500, events: bool = True) -> Callable[[Any], Any]:
        """Register a batch reader of the durable consumer `<service>-<name>`."""

        def register(handler: Callable[[list[Any]], Awaitable[None]]) -> Any:
            self._views.append(ViewSpec(name, stream, handler, batch, events))
            return handler

        return register

    def consume(self, name: str, *, concurrency: int = 8) -> Callable[[Any], Any]:
        """Register a handler of raw deliveries of the durable consumer `<service>-<name>`; it acknowledges by itself."""

        def register(handler: Callable[[Delivery], Awaitable[None]]) -> Any:
            self._consumers.append((name, handler, concurrency))
            return handler

        return register

    def background(self, job: Background) -> Background:
        """Run `job` while the service runs; its failure stops the service."""
        self._background.append(job)
        return job

    def on_close(self, job: Background) -> Background:
        """Await `job` when the service stops."""
        self._closing.append(job)
        return job

    def on_cancelled(self, job: Callable[[str], Awaitable[None]]) -> Callable[[str], Awaitable[None]]:
        """Await `job(run_id)` when a person has cancelled a run; a hint that may be lost."""
        self._cancelling.append(job)
        return job

    @asynccontextmanager
    async def running(self, settings: BusSettings) -> AsyncIterator["Service"]:
        """Connect and deliver inside the block; what is in work when it ends is put back."""
        telemetry = Telemetry(self.name)
        pulls: list[PullConsumer] = []
        views: list[View] = []

        async def reconnected() -> None:
            for pull in pulls:
                await pull.reset()
            for view in views:
                await view.reset()

        connection = await Connection.open(settings, self.name, reconnected)
        telemetry.add(BusSpanExporter(lambda payload: connection.send(f"spans.{self.name}", payload), asyncio.get_running_loop()))
        self._bus = Bus(connection, telemetry, settings.silence_seconds)
        answerers = [Answerer(connection, telemetry, spec, settings.silence_seconds) for spec in self._answers]
        runners = [StepRunner(self._bus, _tuned(spec, settings)) for spec in self._steps]
        pulls.extend(self._pull(connection, settings, runners))
        views.extend(View(connection, f"{self.name}-{spec.name}", spec) for spec in self._views)
        for answerer in answerers:
            await answerer.start()
        await self._listen(connection, runners, answerers)
        jobs: list[Background] = [*(p.run for p in pulls), *(v.run for v in views), *self._background]
        tasks = [asyncio.create_task(_supervised(job, self.name)) for job in jobs]
        try:
            yield self
        finally:
            await self._stop(tasks, answerers, connection, telemetry)

    def _pull(self, connection: Connection, settings: BusSettings, runners: list[StepRunner]) -> list[PullConsumer]:
        declared = {c.durable: c for c in CONSUMERS}
        wanted: list[tuple[str, Callable[[Delivery], Awaitable[None]], int]] = [
            *((r.spec.name, r, r.spec.concurrency) for r in runners),
            *self._consumers,
        ]
        return [
            PullConsumer(
                connection,
                declared[f"{self.name}-{name}"].stream,
                f"{self.name}-{name}",
                handler,
                concurrency=concurrency,
                ack_wait_seconds=settings.ack_wait_seconds,
            )
            for name, handler, concurrency in wanted
        ]

    async def _listen(self, connection: Connection, runners: list[StepRunner], answerers: list[Answerer]) -> None:
        async def on_cancelled(message: Any) -> None:
            for runner in runners:
                runner.cancel(message.subject.split(".")[1])
            for job in self._cancelling:
                await job(message.subject.split(".")[1])

        async def on_asker_gone(message: Any) -> None:
            for answerer in answerers:
                answerer.cancel(message.data.decode())

        async def on_asked_alive(message: Any) -> None:
            await connection.send(message.reply, b"")

        await connection.subscribe(f"alive.{self.name}", on_asked_alive, queue=self.name)
        for kind in KINDS if self._cancelling else {runner.spec.kind.name for runner in runners}:
            await connection.subscribe(f"{kind}.*.cancelled", on_cancelled)
        await connection.subscribe(f"cancel.{self.name}", on_asker_gone)
        await connection.client.flush(10)  # who starts next may ask at once

    async def _stop(self, tasks: list[asyncio.Task[None]], answerers: list[Answerer], connection: Connection, telemetry: Telemetry) -> None:
        for answerer in answerers:
            await answerer.stop()
        pending = set(tasks)
        while pending:  # again, because asyncio.wait_for before Python 3.12 may swallow a cancellation that meets a result
            for task in pending:
                task.cancel()
            _, pending = await asyncio.wait(pending, timeout=8.0)
        for job in self._closing:
            await job()
        await asyncio.to_thread(telemetry.shutdown)
        await connection.close()
        self._bus = None

    async def run(self, settings: BusSettings) -> None:
        """Run until SIGTERM or SIGINT."""
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        async with self.running(settings):
            log.info("%s is running", self.name)
            await stop.wait()


def _tuned(spec: StepSpec, settings: BusSettings) -> StepSpec:
    if spec.backoff != Backoff():
        return spec
    return StepSpec(**{**spec.__dict__, "backoff": Backoff(settings.backoff_base_seconds, settings.backoff_cap_seconds)})


async def _supervised(job: Background, name: str) -> None:
    """Run a job for ever: one that fails is logged and started again after a pause, which grows while it fails at once."""
    loop, pause, failures = asyncio.get_running_loop(), Backoff(), 0
    while True:
        began = loop.time()
        try:
            await job()
        except Exception:
            log.exception("%s: a background job failed; it is started again", name)
        else:
            return
        failures = 1 if loop.time() - began > pause.cap_seconds else failures + 1
        await asyncio.sleep(pause.delay(failures, seed=0))
