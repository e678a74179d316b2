"""What the gateway needs of the bus, as a protocol, and the real one. The fake beside it is `tests/unit/gateway/fake_bus.py`."""

import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

from libs.bus import Bus, Decide, Delivery, Kv, Retryable, token
from libs.bus.connection import status_of
from libs.bus.dead_letters import ErrorKind
from libs.bus.journal import parse_time
from libs.bus.tail import Heard, Stored, Tail
from libs.contracts.dead import DeadLetter
from libs.contracts.envelope import Message, Question
from libs.contracts.fold import Recorded, RunState
from libs.contracts.run import RunEvent
from libs.contracts.turn import TurnEvent
from libs.telemetry import extract, trace_id

AnswerT = TypeVar("AnswerT", bound=Message)
FrameHandler = Callable[[bytes], Awaitable[None]]


class Journal(Protocol):
    """The journals of runs, see `libs.bus.journal`."""

    async def append(self, event: RunEvent, *, follows: int, causation: int | None = None) -> int: ...
    async def read(self, run_id: str, after: int = 0) -> list[Recorded]: ...
    async def state(self, run_id: str) -> RunState: ...
    async def get(self, sequence: int) -> Recorded | None: ...


class TurnJournal(Protocol):
    """The journals of chat turns, see `libs.bus.journal`."""

    async def append(self, event: TurnEvent, *, follows: int, causation: int | None = None) -> int: ...
    async def read_to_end(self, work_id: str, after: int = 0) -> tuple[list[Recorded], int]: ...


class Letters(Protocol):
    """The dead letters, see `libs.bus.dead_letters`."""

    async def list(self, after: int = 0, limit: int = 50) -> list[DeadLetter]: ...
    async def show(self, sequence: int) -> DeadLetter | None: ...
    async def original_headers(self, sequence: int) -> dict[str, str]: ...
    async def bury(self, delivery: Delivery, reason: str, kind: ErrorKind, correlation: str = "-") -> int: ...
    async def put(self, letter: DeadLetter, headers: dict[str, str], correlation: str) -> int: ...
    async def remove(self, sequence: int) -> bool: ...


class KeyValue(Protocol):
    """A key-value bucket, see `libs.bus.kv`."""

    async def get(self, key: str) -> tuple[bytes, int] | None: ...
    async def put(self, key: str, value: bytes, expected_revision: int | None = None) -> int: ...
    async def delete(self, key: str, revision: int) -> None: ...


class Buckets(Protocol):
    """Whoever knows the key-value buckets."""

    def kv(self, bucket: str) -> KeyValue:
        """A bucket that `libs.bus.topology` declares."""
        ...


class GatewayBus(Buckets, Protocol):
    """Everything that routes and handlers use of the bus."""

    @property
    def journal(self) -> Journal: ...
    @property
    def turns(self) -> TurnJournal: ...
    @property
    def letters(self) -> Letters: ...
    @property
    def connected(self) -> bool: ...

    async def ask(self, question: Question[AnswerT], on_frame: FrameHandler | None = None, timeout_seconds: float | None = None) -> AnswerT:
        """Ask a service. Raises Refusal or NoAnswer."""
        ...

    async def alive(self, service: str, timeout_seconds: float) -> bool:
        """Whether a process of the service answers."""
        ...

    async def decide(self, run_id: str, decide: Decide) -> tuple[int, RunEvent] | None:
        """Append what `decide` makes of the run's newest state, see `libs.bus.service.Bus.decide`."""
        ...

    async def trace_id(self, run_id: str) -> str | None:
        """The trace that a run was opened in."""
        ...

    async def inbound(self, source: str, kind: str, payload: bytes, headers: Mapping[str, str]) -> int:
        """Store a fact from outside on INBOX; the sequence that the server acknowledged."""
        ...

    async def republish(self, subject: str, payload: bytes, headers: Mapping[str, str]) -> int:
        """Put a dead message back to INBOX."""
        ...

    async def stored(self, stream: str, sequence: int) -> Stored | None:
        """One message of RUN or INBOX; None when it is gone."""
        ...

    def tail(self, stream: str, subject: str, after: int | None, rings: Collection[str] = ()) -> AsyncIterator[Stored]:
        """The messages of a subject after a sequence (None: only new ones), for ever, each once and in order; see `libs.bus.tail.Tail`."""
        ...

    def heard(self, stream: str, subject: str, continues: Callable[[bytes], bool]) -> AsyncIterator[bytes]:
        """The payloads of messages that number themselves, as they are heard; see `libs.bus.tail.Heard`."""
        ...

    def span(self, name: str, headers: Mapping[str, str]) -> AbstractContextManager[Any]:
        """A server span around a request, a child of the caller's when its headers name one."""
        ...


class NatsBus:
    """The gateway's view of a running service's bus. `bus` is asked for at each use: it exists only while the service runs."""

    def __init__(self, bus: Callable[[], Bus]) -> None:
        self._bus = bus

    @property
    def journal(self) -> Journal:
        """The journals of runs."""
        return self._bus().journal

    @property
    def turns(self) -> TurnJournal:
        """The journals of chat turns."""
        return self._bus().journals["turn"]

    @property
    def letters(self) -> Letters:
        """The dead letters."""
        return self._bus().dead_letters

    @property
    def connected(self) -> bool:
        """Whether NATS is reached at this moment."""
        return bool(self._bus().connection.client.is_connected)

    async def ask(self, question: Question[AnswerT], on_frame: FrameHandler | None = None, timeout_seconds: float | None = None) -> AnswerT:
        """Ask a service. Raises Refusal or NoAnswer."""
        return await self._bus().ask(question, on_frame, timeout_seconds)

    async def alive(self, service: str, timeout_seconds: float) -> bool:
        """Whether a process of the service answers."""
        return await self._bus().alive(service, timeout_seconds)

    async def decide(self, run_id: str, decide: Decide) -> tuple[int, RunEvent] | None:
        """Append what `decide` makes of the run's newest state, see `libs.bus.service.Bus.decide`."""
        return await self._bus().decide(run_id, decide)

    async def trace_id(self, run_id: str) -> str | None:
        """The trace that a run was opened in."""
        return trace_id(await self._bus().journal.opening(run_id))

    async def inbound(self, source: str, kind: str, payload: bytes, headers: Mapping[str, str]) -> int:
        """Store a fact from outside on INBOX; the sequence that the server acknowledged."""
        return await self.republish(f"inbound.{token(source)}.{token(kind)}", payload, headers)

    async def republish(self, subject: str, payload: bytes, headers: Mapping[str, str]) -> int:
        """Put a dead message back to INBOX."""
        return await self._bus().connection.publish(subject, payload, dict(headers), "INBOX")

    async def stored(self, stream: str, sequence: int) -> Stored | None:
        """One message of RUN or INBOX; None when it is gone."""
        return await self._get(stream, {"seq": sequence})

    async def _get(self, stream: str, request: dict[str, Any]) -> Stored | None:
        reply = await self._bus().connection.call(f"$JS.API.DIRECT.GET.{stream}", json.dumps(request).encode())
        status = status_of(reply)
        headers = dict(reply.headers or {})
        if status == "404":
            return None
        if status is not None:
            raise Retryable(f"{stream} cannot be read: {status} {headers.get('Description', '')}")
        return Stored(headers["Nats-Subject"], reply.data, headers, int(headers["Nats-Sequence"]), parse_time(headers["Nats-Time-Stamp"]))

    async def tail(self, stream: str, subject: str, after: int | None, rings: Collection[str] = ()) -> AsyncIterator[Stored]:
        """The messages of a subject after a sequence (None: only new ones), for ever, each once and in order."""
        async with contextlib.aclosing(Tail(self._bus().connection, stream, subject, after, rings).messages()) as messages:
            async for message in messages:
                yield message

    async def heard(self, stream: str, subject: str, continues: Callable[[bytes], bool]) -> AsyncIterator[bytes]:
        """The payloads of messages that number themselves, as they are heard."""
        async with contextlib.aclosing(Heard(self._bus().connection, stream, subject, continues).payloads()) as payloads:
            async for payload in payloads:
                yield payload

    def kv(self, bucket: str) -> KeyValue:
        """A bucket that `libs.bus.topology` declares."""
        return Kv(self._bus().connection, bucket)

    def span(self, name: str, headers: Mapping[str, str]) -> AbstractContextManager[Any]:
        """A server span around a request, a child of the caller's when its headers name one."""
        method, _, route = name.partition(" ")
        http: dict[str, Any] = {"http__request__method": method, "http__route": route} if route.startswith("/") else {}
        return self._bus().telemetry.span(name, "server", parent=extract(headers), **http)
