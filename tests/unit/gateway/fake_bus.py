"""The gateway's bus in memory: journals with the fence, INBOX, dead letters, live progress, scripted answers. No delivery, no time."""

import asyncio
import contextlib
import json
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from datetime import UTC, datetime
from typing import Any

from libs.bus import Decide, Fenced, NoAnswer, Refusal, token
from libs.bus.deciding import append_decided
from libs.bus.journal import BrokenEvent, decode
from libs.bus.subjects import matches
from libs.bus.tail import Stored
from libs.contracts.artifact import ListRepositories, Repositories
from libs.contracts.dead import DeadLetter
from libs.contracts.envelope import Message
from libs.contracts.fold import Recorded, RunState, fold
from libs.contracts.github import DescribeForge, Integration, ReceiveWebhook, WebhookAnswer
from libs.contracts.inference import DescribeModels, ModelDescription, Models
from libs.contracts.mail import DecideByLink, DescribeMailer, ReceiveMail
from libs.contracts.sandbox import CheckSandbox, Health
from libs.contracts.session import ListRuns, ReadRun, RunPage
from libs.contracts.work import WorkEvent

Answer = Callable[[Any, Any], Awaitable[Message]]


class FakeLetters:
    """Dead letters in a dict."""

    def __init__(self) -> None:
        self.all: dict[int, tuple[DeadLetter, dict[str, str]]] = {}

    async def bury(self, delivery: Any, reason: str, kind: Any, correlation: str = "-") -> int:
        letter = DeadLetter(
            sequence=0,
            reason=reason,
            error_kind=kind,
            consumer=delivery.consumer,
            stream=delivery.stream,
            subject=delivery.subject,
            stream_sequence=delivery.sequence,
            deliveries=delivery.number,
            died_at=datetime.now(UTC),
            payload=delivery.payload,
        )
        return await self.put(letter, delivery.headers, correlation)

    async def put(self, letter: DeadLetter, headers: dict[str, str], correlation: str) -> int:
        sequence = max(self.all, default=0) + 1
        self.all[sequence] = (letter.model_copy(update={"sequence": sequence}), headers)
        return sequence

    async def list(self, after: int = 0, limit: int = 50) -> list[DeadLetter]:
        return [letter for n, (letter, _) in sorted(self.all.items()) if n > after][:limit]

    async def show(self, sequence: int) -> DeadLetter | None:
        return self.all[sequence][0] if sequence in self.all else None

    async def original_headers(self, sequence: int) -> dict[str, str]:
        return self.all[sequence][1]

    async def remove(self, sequence: int) -> bool:
        return self.all.pop(sequence, None) is not None


class FakeJournal:
    """Journals with the fence, of runs or of turns."""

    def __init__(self, bus: "FakeBus", stream: str = "RUN") -> None:
        self._bus = bus
        self._stream = stream
        self.intruders: list[WorkEvent] = []

    async def append(self, event: WorkEvent, *, follows: int, causation: int | None = None) -> int:
        if self.intruders:
            self._bus.add(self.intruders.pop(0))
        if self._last(event.work_id) != follows:
            raise Fenced
        return self._bus.add(event, causation)

    def _last(self, work_id: str) -> int:
        return max((m.sequence for m in self._bus.messages[self._stream] if m.subject.split(".")[1] == work_id), default=0)

    async def read(self, run_id: str, after: int = 0) -> list[Recorded]:
        return (await self.read_to_end(run_id, after))[0]

    async def read_to_end(self, work_id: str, after: int = 0) -> tuple[list[Recorded], int]:
        await asyncio.sleep(0)
        own = [m for m in self._bus.messages[self._stream] if m.sequence > after and m.subject.split(".")[1] == work_id]
        return [r for m in own if (r := _recorded(m))], max((m.sequence for m in own), default=after)

    async def state(self, run_id: str) -> RunState:
        return fold(await self.read(run_id), run_id)

    async def get(self, sequence: int) -> Recorded | None:
        found = await self._bus.stored(self._stream, sequence)
        return _recorded(found) if found else None


def _recorded(message: Stored) -> Recorded | None:
    try:
        event = decode(message.subject, message.payload)
    except BrokenEvent:
        return None
    cause = message.headers.get("causation-id")
    return Recorded(sequence=message.sequence, at=message.at, causation=int(cause) if cause else None, event=event) if event else None


class FakeKv:
    """A bucket in a dict."""

    def __init__(self, put: Callable[[str, bytes], object] = lambda key, value: None) -> None:
        self._put = put
        self.values: dict[str, tuple[bytes, int]] = {}
        self.intruders: list[bytes] = []

    async def get(self, key: str) -> tuple[bytes, int] | None:
        await asyncio.sleep(0)
        return self.values.get(key)

    async def put(self, key: str, value: bytes, expected_revision: int | None = None) -> int:
        if self.intruders:
            self.values[key] = (self.intruders.pop(0), self.values.get(key, (b"", 0))[1] + 1)
        last = self.values.get(key, (b"", 0))[1]
        if expected_revision is not None and expected_revision != last:
            raise Fenced
        self.values[key] = (value, last + 1)
        self._put(key, value)
        return last + 1

    async def delete(self, key: str, revision: int) -> None:
        if self.values.get(key, (b"", 0))[1] == revision:
            del self.values[key]


class FakeBus:
    """Implements `GatewayBus`. `answers` maps a question to its handler; a question without one gets NoAnswer."""

    def __init__(self) -> None:
        self.messages: dict[str, list[Stored]] = defaultdict(list)
        self.journal = FakeJournal(self)
        self.turns = FakeJournal(self, "TURN")
        self.letters = FakeLetters()
        self.connected = True
        self.silent: set[str] = set()
        self.asked: list[Any] = []
        self.trace: str | None = "a" * 32
        self.tails = 0
        self.continued: list[bool] = []
        self.buckets: dict[str, FakeKv] = {}
        self.spans: list[tuple[str, dict[str, str]]] = []
        self._news = asyncio.Condition()
        self.answers: dict[type, Answer] = {}
        self.listeners: list[Callable[[WorkEvent], None]] = []
        self.answer(DescribeModels, Models(models=(ModelDescription(name="scripted", scripted=True),)))
        self.answer(ListRuns, RunPage(runs=()))
        self.answer(ListRepositories, Repositories(repositories=()))
        self.answer(CheckSandbox, Health(ok=True, backend="process"))
        for question in (ReceiveWebhook, ReceiveMail):
            self.answer(question, WebhookAnswer(status=401, detail="not signed"))
        for question in (DescribeForge, DescribeMailer):
            self.answer(question, Integration(configured=False))
        self.answer(DecideByLink, Refusal("invalid", "no such link"))
        self.answer(ReadRun, Refusal("not_found", "no such run"))

    def answer(self, question: type, answer: Message | Exception | Answer) -> None:
        """Answer a question with a message, an error, or what a function makes of it."""

        async def fixed(_: Any, on_frame: Any) -> Message:
            if isinstance(answer, Exception):
                raise answer
            assert isinstance(answer, Message)
            return answer

        self.answers[question] = fixed if isinstance(answer, Message | Exception) else answer

    async def ask(self, question: Any, on_frame: Any = None, timeout_seconds: float | None = None) -> Any:
        self.asked.append(question)
        if type(question) not in self.answers:
            raise NoAnswer(f"nobody answers {question.subject}")
        return await self.answers[type(question)](question, on_frame)

    async def alive(self, service: str, timeout_seconds: float) -> bool:
        return service not in self.silent

    def add(self, event: WorkEvent, causation: int | None = None) -> int:
        """Append without a fence."""
        headers = {"causation-id": str(causation)} if causation is not None else {}
        for told in self.listeners:
            asyncio.get_running_loop().call_soon(told, event)
        return self.store(event.work.upper(), event.subject_of(), event.model_dump_json().encode(), headers)

    def store(self, stream: str, subject: str, payload: bytes, headers: Mapping[str, str] | None = None) -> int:
        """Put a message on a stream and wake those who follow it."""
        sequence = len(self.messages[stream]) + 1
        self.messages[stream].append(Stored(subject, payload, dict(headers or {}), sequence, datetime.now(UTC)))
        with contextlib.suppress(RuntimeError):
            asyncio.get_running_loop().create_task(self._wake())
        return sequence

    async def _wake(self) -> None:
        async with self._news:
            self._news.notify_all()

    async def last_sequence(self, run_id: str) -> int:
        return max((m.sequence for m in self.messages["RUN"] if m.subject.split(".")[1] == run_id), default=0)

    async def trace_id(self, run_id: str) -> str | None:
        return self.trace if await self.last_sequence(run_id) else None

    async def decide(self, run_id: str, decide: Decide) -> Any:
        @contextlib.asynccontextmanager
        async def sending(event: WorkEvent) -> AsyncIterator[None]:
            self.spans.append((f"send {event.type}", dict(await self.opening(run_id))))
            yield

        return await append_decided(self.journal, run_id, decide, sending)

    async def opening(self, run_id: str) -> Mapping[str, str]:
        return {"traceparent": f"00-{self.trace}-{'b' * 16}-01"} if self.trace else {}

    async def inbound(self, source: str, kind: str, payload: bytes, headers: Mapping[str, str]) -> int:
        return await self.republish(f"inbound.{token(source)}.{token(kind)}", payload, headers)

    async def republish(self, subject: str, payload: bytes, headers: Mapping[str, str]) -> int:
        return self.store("INBOX", subject, payload, headers)

    async def stored(self, stream: str, sequence: int) -> Stored | None:
        return next((m for m in self.messages[stream] if m.sequence == sequence), None)

    async def heard(self, stream: str, subject: str, continues: Callable[[bytes], bool]) -> AsyncIterator[bytes]:
        async for message in self.tail(stream, subject, 0):
            self.continued.append(continues(message.payload))
            yield message.payload

    async def tail(self, stream: str, subject: str, after: int | None, rings: Collection[str] = ()) -> AsyncIterator[Stored]:
        self.tails += 1
        place = len(self.messages[stream]) if after is None else after
        try:
            while True:
                for message in list(self.messages[stream]):
                    if message.sequence > place and matches(subject, message.subject):
                        place = message.sequence
                        yield message
                async with self._news:
                    if not any(m.sequence > place and matches(subject, m.subject) for m in self.messages[stream]):
                        await self._news.wait()
        finally:
            self.tails -= 1

    async def followed(self, count: int) -> None:
        """Wait until so many streams are followed, and have told what is there."""
        async with asyncio.timeout(60):
            while self.tails < count:
                await asyncio.sleep(0)
        for _ in range(50):
            await asyncio.sleep(0)

    def kv(self, bucket: str) -> FakeKv:
        if bucket not in self.buckets:
            self.buckets[bucket] = FakeKv(lambda key, value: self.store(f"KV_{bucket}", f"$KV.{bucket}.{key}", value))
        return self.buckets[bucket]

    def span(self, name: str, headers: Mapping[str, str]) -> contextlib.AbstractContextManager[Any]:
        self.spans.append((name, dict(headers)))
        return contextlib.nullcontext()

    def events_of(self, run_id: str) -> list[str]:
        """The subjects of a run's journal, without their first two tokens."""
        return [m.subject.split(".", 2)[2] for m in self.messages["RUN"] if m.subject.split(".")[1] == run_id]


class FakeDelivery:
    """One delivery that remembers how it was settled."""

    def __init__(self, subject: str, payload: bytes | Any, headers: dict[str, str] | None = None, stream: str = "INBOX") -> None:
        self.subject = subject
        self.payload = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
        self.headers = headers or {}
        self.stream = stream
        self.consumer = "gateway-inbox"
        self.number = 1
        self.sequence = 1
        self.settled: str | None = None

    async def ack(self) -> None:
        self.settled = "ack"

    async def nak(self, delay_seconds: float = 0.0) -> None:
        self.settled = "nak"
