"""A run as server-sent events (WHATWG HTML, section 9.2): its journal from any place on, live progress in between, an end.

Events of the journal carry their sequence as `id` and are never left out; progress carries none and is dropped when the client is slow.
"""

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

from fastapi.responses import StreamingResponse
from pydantic import ValidationError
from starlette.types import Receive, Scope, Send

from libs.bus.journal import BrokenEvent, decode
from libs.bus.tail import Stored
from libs.contracts.envelope import HEADER_CAUSATION
from libs.contracts.fold import Recorded, RunState, apply
from libs.contracts.live import Progress
from services.gateway.clients import GatewayBus
from services.gateway.models import EventView

log = logging.getLogger(__name__)
_QUEUE = 256
RETRY_MILLISECONDS = 2000


def event_view(recorded: Recorded) -> EventView:
    """An event of a journal as it is shown."""
    return EventView(
        sequence=recorded.sequence,
        at=recorded.at,
        type=recorded.event.type,
        causation=recorded.causation,
        data=recorded.event.model_dump(mode="json", exclude_none=True),
    )


def frame(event: str, data: str, sequence: int | None = None) -> bytes:
    """One server-sent event; `data` is one line of JSON."""
    head = f"id: {sequence}\n" if sequence is not None else ""
    return f"{head}event: {event}\ndata: {data}\n\n".encode()


def _journal_frame(recorded: Recorded) -> bytes:
    return frame(recorded.event.type, event_view(recorded).model_dump_json(exclude_none=True), recorded.sequence)


def _end_frame(state: RunState) -> bytes:
    return frame("end", json.dumps({"run_id": state.run_id, "status": state.status}))


class Feed:
    """One client's reading of one run. `stopping` is set when the server goes down: the stream ends, the client comes back elsewhere."""

    def __init__(self, bus: GatewayBus, stopping: asyncio.Event, heartbeat_seconds: float) -> None:
        self._bus = bus
        self._stopping = stopping
        self._heartbeat_seconds = heartbeat_seconds
        self._queue: asyncio.Queue[Recorded | Progress] = asyncio.Queue(_QUEUE)

    async def frames(self, history: list[Recorded], run_id: str, after: int) -> AsyncGenerator[bytes, None]:
        """The events after the sequence `after`, first those of `history` (the whole journal so far), until the run has ended."""
        yield f"retry: {RETRY_MILLISECONDS}\n\n".encode()
        state = RunState(run_id=run_id)
        for recorded in history:
            state = apply(state, recorded)
            if recorded.sequence > after:
                yield _journal_frame(recorded)
        if not state.ended:
            async with contextlib.aclosing(self._live(state)) as live:
                async for frame_bytes in live:
                    yield frame_bytes
            return
        yield _end_frame(state)

    async def _live(self, state: RunState) -> AsyncGenerator[bytes, None]:
        tasks = [
            asyncio.create_task(self._follow_journal(state.run_id, state.sequence)),
            asyncio.create_task(self._follow_progress(state.run_id)),
        ]
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            while not state.ended:
                item = await self._next(stopping)
                match item:
                    case Recorded():
                        state = apply(state, item)
                        yield _journal_frame(item)
                    case Progress():
                        yield frame("progress", item.model_dump_json())
                    case None if self._stopping.is_set():
                        return
                    case None:
                        for task in tasks:
                            if task.done():
                                task.result()
                        yield b": heartbeat\n\n"
            yield _end_frame(state)
        finally:
            await ended([*tasks, stopping])

    async def _next(self, stopping: asyncio.Task[Any]) -> Recorded | Progress | None:
        """What comes next; None when nothing came for a heartbeat, or the server stops."""
        if not self._queue.empty():
            return self._queue.get_nowait()
        getting = asyncio.create_task(self._queue.get())
        try:
            await asyncio.wait({getting, stopping}, timeout=self._heartbeat_seconds, return_when=asyncio.FIRST_COMPLETED)
            return getting.result() if getting.done() else None
        finally:
            getting.cancel()

    async def _follow_journal(self, run_id: str, after: int) -> None:
        async for message in self._bus.tail("RUN", f"run.{run_id}.>", after):
            recorded = _recorded(message)
            if recorded is not None:
                await self._queue.put(recorded)

    async def _follow_progress(self, run_id: str) -> None:
        async for message in self._bus.tail("LIVE", f"live.{run_id}.>", None):
            with contextlib.suppress(asyncio.QueueFull, ValidationError):
                self._queue.put_nowait(Progress.model_validate_json(message.payload))


async def ended(tasks: Sequence[asyncio.Task[Any]]) -> None:
    """Cancel until it is heard: `asyncio.wait_for` before Python 3.12 may swallow a cancellation that meets a result."""
    pending = set(tasks)
    while pending:
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=0.1)


def _recorded(message: Stored) -> Recorded | None:
    try:
        event = decode(message.subject, message.payload)
    except BrokenEvent:
        return None
    if event is None:
        return None
    cause = message.headers.get(HEADER_CAUSATION, "")
    return Recorded(sequence=message.sequence, at=message.at, causation=int(cause) if cause.isdecimal() else None, event=event)


class EventStream(StreamingResponse):
    """A stream of server-sent events; a client that takes nothing for `send_timeout_seconds` is dropped. `held` is closed after it."""

    media_type = "text/event-stream"

    def __init__(
        self,
        frames: AsyncGenerator[bytes, None],
        send_timeout_seconds: float,
        headers: Mapping[str, str] | None = None,
        media_type: str = "text/event-stream",
        held: contextlib.AsyncExitStack | None = None,
    ) -> None:
        super().__init__(frames, headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no", **(headers or {})}, media_type=media_type)
        self._frames = frames
        self._send_timeout_seconds = send_timeout_seconds
        self._held = held or contextlib.AsyncExitStack()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def bounded(message: Any) -> None:
            async with asyncio.timeout(self._send_timeout_seconds):
                await send(message)

        async with self._held, contextlib.aclosing(self._frames):
            try:
                await super().__call__(scope, receive, bounded)
            except TimeoutError:
                log.info("a client of %s took nothing for %g s and is dropped", scope["path"], self._send_timeout_seconds)
