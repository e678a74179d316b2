"""Runs and spans: what is done with each batch and each question. Both views may see a batch twice."""

import logging
import time
from collections.abc import Awaitable, Callable, Iterable
from datetime import datetime
from typing import Protocol

from pydantic import ValidationError

from libs.bus import Refusal
from libs.bus.journal import BrokenEvent, decode
from libs.contracts.envelope import HEADER_CAUSATION
from libs.contracts.fold import Recorded, RunState
from libs.contracts.session import ListRuns, ReadRun, ReadTrace, RunPage, Span, SpanBatch, Trace
from services.session_store.domain import Link, Projected
from services.session_store.errors import CursorError
from services.session_store.store import Store

log = logging.getLogger(__name__)
_FOLLOWS = "Nats-Expected-Last-Subject-Sequence"
_TRACE_SPANS = 2000
_DAY_NS = 86_400 * 1_000_000_000


class Stored(Protocol):
    """A delivered message of a stream: its subject, body, headers, place and time."""

    @property
    def subject(self) -> str: ...
    @property
    def payload(self) -> bytes: ...
    @property
    def headers(self) -> dict[str, str]: ...
    @property
    def sequence(self) -> int: ...
    @property
    def at(self) -> datetime: ...


def link_of(message: Stored) -> Link:
    """A message of the stream RUN as a link of its journal; an event that is broken or of an unknown kind keeps its place only."""
    run_id = message.subject.split(".")[1]
    follows, cause = message.headers.get(_FOLLOWS, ""), message.headers.get(HEADER_CAUSATION, "")
    try:
        event = decode(message.subject, message.payload)
    except BrokenEvent as error:
        log.warning("sequence %d: %s", message.sequence, error)
        event = None
    recorded = None
    if event is not None:
        causation = int(cause) if cause.isdecimal() else None
        recorded = Recorded(sequence=message.sequence, at=message.at, causation=causation, event=event)
    return Link(run_id, message.sequence, int(follows) if follows.isdecimal() else None, recorded)


async def project(store: Store, journal: Callable[[str], Awaitable[RunState]], batch: Iterable[Stored]) -> None:
    """Fold a batch into the rows; a run with a gap is read from its journal."""
    links = [link_of(message) for message in batch]
    for run_id in sorted(await store.project(links)):
        state = await journal(run_id)
        newest = max(link.sequence for link in links if link.run_id == run_id)
        await store.replace(Projected(max(state.sequence, newest), state))


async def store_spans(store: Store, batch: Iterable[Stored]) -> None:
    """Store the spans of a batch; a message that is not a `SpanBatch` is dropped with a log line."""
    spans: list[Span] = []
    for message in batch:
        try:
            spans.extend(SpanBatch.model_validate_json(message.payload).spans)
        except ValidationError as error:
            log.warning("a batch of spans does not match its schema and is dropped: %d faults", error.error_count())
    if spans:
        await store.add_spans(spans)


async def list_runs(store: Store, question: ListRuns) -> RunPage:
    """A page of runs. Raises Refusal("bad_cursor")."""
    try:
        return await store.runs(question)
    except CursorError as error:
        raise Refusal("bad_cursor", str(error)) from error


async def read_run(store: Store, question: ReadRun) -> RunState:
    """The last known state of a run. Raises Refusal("not_found")."""
    state = await store.state(question.run_id)
    if state is None:
        raise Refusal("not_found", f"there is no run {question.run_id}")
    return state


async def read_trace(store: Store, question: ReadTrace) -> Trace:
    """The spans of a trace, at most 2,000; none when it is unknown or swept away."""
    return Trace(trace_id=question.trace_id, spans=await store.trace(question.trace_id, _TRACE_SPANS))


async def sweep(store: Store, *, keep_days: float, keep_spans: int) -> None:
    """Delete the spans that are too old or too many."""
    gone = await store.sweep_spans(ended_before_ns=time.time_ns() - int(keep_days * _DAY_NS), keep=keep_spans)
    if gone:
        log.info("%d old spans deleted", gone)
