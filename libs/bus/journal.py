"""The journal of a unit of work: events on `run.<id>.<event>` or `turn.<id>.<event>`, appended behind a fence, read in order.

Every append names the sequence that it follows; the server refuses it when anything else was appended meanwhile.
"""

import json
import logging
from datetime import UTC, datetime

from nats.aio.msg import Msg
from pydantic import ValidationError

from libs.bus.connection import Connection, status_of
from libs.bus.errors import Retryable
from libs.bus.faults import reach
from libs.contracts import envelope
from libs.contracts.fold import Recorded, RunState, fold
from libs.contracts.registry import KINDS, work_event
from libs.contracts.work import Kind, WorkEvent
from libs.telemetry import inject

log = logging.getLogger(__name__)
_BATCH = 500
EXPECTED = "Nats-Expected-Last-Subject-Sequence"


class BrokenEvent(Exception):
    """An event does not match its schema."""


def decode(subject: str, payload: bytes) -> WorkEvent | None:
    """The event on `subject`; None for a kind that this version does not know.

    Raises:
        BrokenEvent: the payload does not match the schema of its subject.
    """
    kind = work_event(subject)
    if kind is None:
        return None
    try:
        return kind.model_validate_json(payload)
    except ValidationError as error:
        raise BrokenEvent(f"{subject} does not match its schema: {_first_fault(error)}") from error


def _first_fault(error: ValidationError) -> str:
    fault = error.errors(include_url=False, include_input=False)[0]
    return f"{'.'.join(str(part) for part in fault['loc'])}: {fault['msg']}"


def headers_of(event: WorkEvent, source: str, causation: int | None) -> dict[str, str]:
    """The headers of an event: CloudEvents attributes in binary mode, correlation, causation and trace context."""
    headers = {
        envelope.HEADER_SPEC: "1.0",
        envelope.HEADER_TYPE: f"{event.type}.v{event.version}",
        envelope.HEADER_SOURCE: source,
        envelope.HEADER_TIME: datetime.now(UTC).isoformat(),
        envelope.HEADER_CORRELATION: event.work_id,
    }
    if causation is not None:
        headers[envelope.HEADER_CAUSATION] = str(causation)
    return headers | inject()


class Journal:
    """Appends to and reads from the journals of one kind of work."""

    def __init__(self, connection: Connection, kind: Kind = KINDS["run"]) -> None:
        self._connection = connection
        self.kind = kind

    async def append(self, event: WorkEvent, *, follows: int, causation: int | None = None) -> int:
        """Append `event` after the sequence `follows` (0: the run must not exist) and return its sequence.

        Raises:
            Fenced: something else was appended meanwhile, or the run exists.
            Retryable: the server did not acknowledge.
        """
        headers = headers_of(event, self._connection.name, causation)
        headers[envelope.HEADER_ID] = f"{event.work_id}-{follows}"  # only one event follows another
        headers[EXPECTED] = str(follows)
        headers[f"{EXPECTED}-Subject"] = f"{self.kind.name}.{event.work_id}.>"
        payload = event.model_dump_json(exclude_none=True).encode()
        reach(self._connection.name, "before_append", event.type)
        sequence = await self._connection.publish(event.subject_of(), payload, headers, self.kind.stream)
        reach(self._connection.name, "after_append", event.type)
        return sequence

    async def read(self, work_id: str, after: int = 0) -> list[Recorded]:
        """The events of a run after the sequence `after`, in order; what this version cannot read is left out."""
        return (await self.read_to_end(work_id, after))[0]

    async def read_to_end(self, work_id: str, after: int = 0) -> tuple[list[Recorded], int]:
        """The events after `after`, and the place of the newest one, readable or not: what an append must follow."""
        found: list[Recorded] = []
        last = after
        while True:
            pending, last, batch = await self._read_batch(work_id, last)
            found.extend(batch)
            if pending == 0:
                return found, last

    async def state(self, work_id: str) -> RunState:
        """The fold of a run; `sequence` is that of the newest event, readable or not, and 0 when there is no such run."""
        found, last = await self.read_to_end(work_id)
        return fold(found, work_id).model_copy(update={"sequence": last})

    async def get(self, sequence: int) -> Recorded | None:
        """The event at `sequence`; None when it is gone or of an unknown kind."""
        reply = await self._connection.call(f"$JS.API.DIRECT.GET.{self.kind.stream}", json.dumps({"seq": sequence}).encode())
        return recorded(reply) if status_of(reply) is None else None

    async def opening(self, work_id: str) -> dict[str, str]:
        """The headers of the event that opened a run or turn, its trace among them; empty when it is gone."""
        message = await self._opening(work_id)
        return dict(message.headers or {}) if message is not None else {}

    async def opened(self, work_id: str) -> Recorded | None:
        """The event that opened a run or turn, without the rest of its journal; None when it is gone or of an unknown kind."""
        message = await self._opening(work_id)
        return recorded(message) if message is not None else None

    async def _opening(self, work_id: str) -> Msg | None:
        request = json.dumps({"last_by_subj": f"{self.kind.name}.{work_id}.opened"}).encode()
        reply = await self._connection.call(f"$JS.API.DIRECT.GET.{self.kind.stream}", request)
        status = status_of(reply)
        if status not in (None, "404"):
            raise Retryable(f"{self.kind.stream} cannot be read: {status}")
        return reply if status is None else None

    async def _read_batch(self, work_id: str, after: int) -> tuple[int, int, list[Recorded]]:
        """How many are left, the place of the last one seen, and the readable ones."""
        request = json.dumps(
            {"seq": after + 1, "next_by_subj": f"{self.kind.name}.{work_id}.>", "batch": _BATCH, "max_bytes": 4_000_000}
        ).encode()
        found: list[Recorded] = []
        last = after
        async for message in self._connection.collect(f"$JS.API.DIRECT.GET.{self.kind.stream}", request):
            status = status_of(message)
            headers = message.headers or {}
            if status == "404":
                return 0, last, found
            if status == "204":
                return int(headers.get("Nats-Num-Pending", 0)), last, found
            if status is not None:
                raise Retryable(f"{self.kind.stream} cannot be read: {status} {headers.get('Description', '')}")
            last = int(headers["Nats-Sequence"])
            item = recorded(message)
            if item is not None:
                found.append(item)
        return 0, last, found


def recorded(message: Msg) -> Recorded | None:
    """A direct-get reply as an event with its place; None for a broken one, with a log line, and for an unknown kind."""
    headers = message.headers or {}
    try:
        event = decode(headers["Nats-Subject"], message.data)
    except BrokenEvent as error:
        log.error("sequence %s: %s", headers.get("Nats-Sequence"), error)
        return None
    if event is None:
        return None
    cause = headers.get(envelope.HEADER_CAUSATION)
    return Recorded(
        sequence=int(headers["Nats-Sequence"]),
        at=parse_time(headers["Nats-Time-Stamp"]),
        causation=int(cause) if cause and cause.isdigit() else None,
        event=event,
    )


def parse_time(text: str) -> datetime:
    """An RFC 3339 time with up to nine digits of seconds' fraction, in UTC and cut to microseconds."""
    return datetime.fromisoformat(text).astimezone(UTC)
