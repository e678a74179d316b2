"""What the gateway does with what the bus delivers: facts from outside, expired approvals, deliveries that the server gave up."""

import logging
from collections.abc import Sequence
from datetime import UTC, datetime
from urllib.parse import unquote

from pydantic import BaseModel, ValidationError

from libs.bus import Delivery, Fenced, Retryable
from libs.bus.tail import Stored
from libs.contracts import decisions
from libs.contracts.dead import DeadLetter
from libs.contracts.fold import Recorded, RunState
from libs.contracts.live import TimerDue
from libs.contracts.run import RunEvent, RunFailed
from libs.contracts.work import Inner
from services.gateway import cloud_events, domain
from services.gateway.clients import GatewayBus
from services.gateway.problems import Problem
from services.gateway.runs import append_decided

log = logging.getLogger(__name__)
_READABLE = ("RUN", "INBOX")
_PAUSE_SECONDS = 2.0


async def take_in(bus: GatewayBus, delivery: Delivery) -> None:
    """Open the run that an event from outside asks for, once; what cannot be understood goes to the dead letters with its reason."""
    try:
        event = cloud_events.parse_nats(delivery.headers, delivery.payload)
        command = cloud_events.command_of(event)
    except cloud_events.InboundError as error:
        await bus.letters.bury(delivery, str(error), "schema", "inbox")
        await delivery.ack()
        return
    tenant = delivery.headers.get(cloud_events.HEADER_TENANT, cloud_events.LOCAL)
    user = unquote(delivery.headers.get(cloud_events.HEADER_USER, cloud_events.LOCAL))
    run_id = cloud_events.run_id_of(event, tenant, user)
    assert run_id is not None
    opening = domain.opening(command, run_id, datetime.now(UTC), by=event.source[:200], origin="event", tenant=tenant, user=user)
    try:
        with bus.span("process inbound", delivery.headers):
            await bus.journal.append(opening, follows=0)
    except Fenced:
        log.info("event %s of %s came again: run %s is there", event.id, event.source, run_id)
    except Retryable as error:
        log.warning("run %s cannot be opened yet: %s", run_id, error)
        await delivery.nak(_PAUSE_SECONDS)
        return
    await delivery.ack()


async def expire(bus: GatewayBus, delivery: Delivery) -> None:
    """End a run whose question nobody answered in time."""
    try:
        due = TimerDue.model_validate_json(delivery.payload)
    except ValidationError as error:
        await bus.letters.bury(delivery, f"not a timer: {error.error_count()} faults", "schema", "timer")
        await delivery.ack()
        return
    try:
        await append_decided(bus, due.id, lambda state, _: decisions.expire(state, datetime.now(UTC)))
    except Problem as problem:
        log.info("a timer of run %s came too late: %s", due.id, problem.detail)
    except Retryable:
        await delivery.nak(_PAUSE_SECONDS)
        return
    await delivery.ack()


class Advisory(BaseModel):
    """JetStream says that a consumer's message was given up (`io.nats.jetstream.advisory.v1.max_deliver` or `.terminated`)."""

    stream: str
    consumer: str
    stream_seq: int
    deliveries: int = 0
    reason: str = ""


async def mourn(bus: GatewayBus, delivery: Delivery) -> None:
    """Copy what the server gave up to the dead letters; the run that it belonged to ends with that reason."""
    try:
        advisory = Advisory.model_validate_json(delivery.payload)
    except ValidationError:
        log.warning("an advisory cannot be read: %s", delivery.subject)
        await delivery.ack()
        return
    lost = await bus.stored(advisory.stream, advisory.stream_seq) if advisory.stream in _READABLE else None
    if lost is not None or advisory.stream not in _READABLE:
        await _bury(bus, advisory, lost)
    await delivery.ack()


async def _bury(bus: GatewayBus, advisory: Advisory, lost: Stored | None) -> None:
    run_id = lost.subject.split(".")[1] if lost and advisory.stream == "RUN" else None
    reason = advisory.reason or f"the server gave it up after {advisory.deliveries} deliveries to {advisory.consumer}"
    letter = DeadLetter(
        sequence=0,
        reason=reason,
        error_kind="advisory",
        consumer=advisory.consumer,
        stream=advisory.stream,
        subject=lost.subject if lost else "",
        stream_sequence=advisory.stream_seq,
        deliveries=advisory.deliveries,
        died_at=datetime.now(UTC),
        payload=lost.payload if lost else b"",
    )
    sequence = await bus.letters.put(letter, lost.headers if lost else {}, run_id or "-")
    if run_id is not None:
        await _end_run(bus, run_id, advisory, reason, sequence)


async def _end_run(bus: GatewayBus, run_id: str, advisory: Advisory, reason: str, letter: int) -> None:
    def decide(state: RunState, history: Sequence[Recorded]) -> RunEvent | None:
        settled = any(r.causation == advisory.stream_seq and not isinstance(r.event, Inner) for r in history)
        if state.ended or settled:
            return None
        return RunFailed(run_id=run_id, reason=f"{reason}: retry the run", kind="exhausted", of=advisory.stream_seq, dead_letter=letter)

    try:
        await append_decided(bus, run_id, decide)
    except Problem as problem:
        log.warning("run %s of a dead letter: %s", run_id, problem.detail)


async def replay(bus: GatewayBus, letter: DeadLetter, by: str) -> tuple[str, int]:
    """Put what died to work again, then remove the letter; returns the stream and the new sequence.

    Raises Problem 409 when the letter's run is not over, or its stream cannot be replayed to.
    """
    if letter.stream == "INBOX" and letter.subject:
        headers = await bus.letters.original_headers(letter.sequence)
        sequence = await bus.republish(letter.subject, letter.payload, headers)
    elif letter.stream == "RUN" and letter.subject:
        sequence = await _send_back(bus, letter, by)
    else:
        raise Problem(409, "not-replayable", f"what dies on {letter.stream} is not replayed", "DELETE removes the letter")
    await bus.letters.remove(letter.sequence)
    return letter.stream, sequence


async def _send_back(bus: GatewayBus, letter: DeadLetter, by: str) -> int:
    run_id = letter.subject.split(".")[1]
    died = await bus.journal.get(letter.stream_sequence)

    def decide(state: RunState, _: Sequence[Recorded]) -> RunEvent:
        if not state.ended:
            raise Problem(409, "at-work", f"run {run_id} is {state.status}: it was sent to work already", "DELETE removes the letter")
        return domain.retry_of_letter(run_id, letter.consumer, died, by)

    appended = await append_decided(bus, run_id, decide)
    assert appended is not None
    return appended[0]
