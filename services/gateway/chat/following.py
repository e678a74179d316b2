"""Follow a turn: its live frames woven into one stream, its journal for how it ends, the stored message for what was lost on the way.

The stream depends on nobody: any number of readers may come, go and come back. It ends when the turn ends or waits for somebody.
"""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from typing import Any

from libs.bus import NoAnswer, Refusal
from libs.bus.journal import BrokenEvent, decode
from libs.bus.tail import Stored
from libs.contracts.conversation import ReadHistory, StoredMessage
from libs.contracts.turn import TurnCancelled, TurnEvent, TurnFailed, TurnFinished, TurnPaused, TurnSuperseded
from libs.contracts.work import WorkEvent
from services.gateway.chat.plain import queued
from services.gateway.chat.turns import Asked, Turns, answer_id
from services.gateway.chat.weave import SILENT, TERMINAL, Chunk, Weave, before_answers, chunks_of, read_frame, said
from services.gateway.clients import GatewayBus
from services.gateway.feed import ended
from services.gateway.identity.caller import Caller
from services.gateway.problems import Problem

log = logging.getLogger(__name__)
_QUEUE = 64
_LAST_FRAMES_SECONDS = 1.0
_WHY_SECONDS = 2.0
_RECORDED_SECONDS = 5.0
_HINT_SECONDS = 1.0
_ENDINGS = ("finished", "paused", "failed", "cancelled", "superseded")
Ending = TurnFinished | TurnPaused | TurnFailed | TurnCancelled | TurnSuperseded


class Following:
    """One reader of one turn. `moments` raises Problem while nothing was shown yet; afterwards a fault is an error chunk."""

    def __init__(self, bus: GatewayBus, who: Caller, asked: Asked, stopping: asyncio.Event) -> None:
        self._bus = bus
        self._who = who
        self._asked = asked
        self._stopping = stopping
        self._weave = Weave()
        self._queue: asyncio.Queue[Chunk | Ending] = asyncio.Queue(_QUEUE)
        self._ready: deque[Chunk | Ending] = deque()
        self._heard = (asked.after, 0)
        self._shown = False
        self._over = False
        self._begun = False

    async def moments(self) -> AsyncGenerator[list[Chunk], None]:
        """The chunks from the turn's start (or from where it went on) to its end; the server's stopping ends them too.

        Those that are there at the same moment come together; none of them is empty, and only the last chunk of all is terminal.
        """
        turn = self._asked.turn_id
        if self._asked.unanswered:
            waits = [call.call_id for call in self._asked.unanswered]
            finish: Chunk = {"type": "finish", "finishReason": "tool-calls", "messageMetadata": {"turnId": turn, "unanswered": waits}}
            yield [{"type": "start", "messageId": answer_id(turn)}, finish]
            return
        await self._seed()
        tasks = [
            asyncio.create_task(self._follow(self._bus.heard("LIVE", f"live.{turn}.part", self._continues), self._live)),
            asyncio.create_task(self._follow(self._bus.tail("TURN", f"turn.{turn}.>", self._asked.after, _ENDINGS), self._ending)),
            asyncio.create_task(self._stopping.wait()),
        ]
        hinting = asyncio.create_task(self._hint())
        try:
            while not self._weave.finished:
                item = await self._next(tasks, None)
                if item is None:
                    return
                async for chunks in self._of(item, tasks):
                    async for moment in self._until_recorded(chunks, tasks):
                        yield moment
        finally:
            await ended([*tasks, hinting])

    async def _hint(self) -> None:
        """While nothing comes: say so when the conversation waits for somebody."""
        turns = Turns(self._bus)
        with contextlib.suppress(Refusal, NoAnswer, Problem):
            while not self._begun:
                await asyncio.sleep(_HINT_SECONDS)
                active = (await turns.active(self._who, self._asked.session_id)).active
                if self._begun or active == self._asked.turn_id:
                    return
                blocking = (await turns.state(self._who, active)).unanswered if active else ()
                if active and blocking:
                    text = queued(blocking, self._asked.session_id, active)
                    await self._queue.put({"notice": {"type": "data-notice", "data": {"text": text}, "transient": True}})
                    return

    async def _seed(self) -> None:
        """What the reader has: what it says itself, else what the turn had stored when it last waited."""
        known: Any = self._asked.known
        if not known and self._asked.after:
            message = await self._stored()
            known = before_answers(message.parts, self._asked.answered) if message else ()
        if known:
            self._weave.seed(chunks_of(known))

    async def _of(self, item: Chunk | Ending, tasks: list[asyncio.Task[Any]]) -> AsyncIterator[list[Chunk]]:
        if isinstance(item, WorkEvent):
            self._over = True
            async for chunks in self._close(item, tasks):
                yield chunks
            return
        chunks = self._made_of(item)
        if (error := self._refused(chunks)) is not None:
            raise await self._why(str(error.get("errorText", "")), tasks)
        yield chunks

    def _made_of(self, item: Chunk) -> list[Chunk]:
        """What a frame or a notice makes, and those that came with it."""
        items = [item]
        while self._ready and not isinstance(coming := self._ready[0], WorkEvent):
            items.append(coming)
            self._ready.popleft()
        return [chunk for i in items for chunk in ([i["notice"]] if "notice" in i else self._weave.take(i))]

    def _refused(self, chunks: list[Chunk]) -> Chunk | None:
        """The error that these chunks end with, while nothing was shown; takes note of what is."""
        error = chunks[-1] if chunks and chunks[-1]["type"] == "error" else None
        self._shown = self._shown or any(chunk["type"] not in SILENT and chunk is not error for chunk in chunks)
        return None if self._shown else error

    async def _until_recorded(self, chunks: list[Chunk], tasks: list[asyncio.Task[Any]]) -> AsyncIterator[list[Chunk]]:
        """These chunks; the end waits for the journal, and what can be seen before it does not wait with it."""
        if chunks and chunks[-1]["type"] in TERMINAL:
            if any(chunk["type"] not in SILENT for chunk in chunks[:-1]):
                yield chunks[:-1]
                chunks = chunks[-1:]
            await self._recorded(tasks)
        if chunks:
            yield chunks

    async def _recorded(self, tasks: list[asyncio.Task[Any]]) -> None:
        """Wait until the end that was shown is on the journal too: whoever has read it may ask what comes after."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_RECORDED_SECONDS):
                while not self._over and (item := await self._next(tasks, None)) is not None:
                    self._over = isinstance(item, WorkEvent)

    async def _why(self, text: str, tasks: list[asyncio.Task[Any]]) -> Problem:
        """The refusal of a turn that failed before it showed anything; the journal knows of what kind it is."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_WHY_SECONDS):
                while (item := await self._next(tasks, None)) is not None:
                    if isinstance(item, TurnFailed):
                        return refusal_of(item)
        return Problem(502, "model-failed", text, "try again, or name another model")

    async def _close(self, ending: Ending, tasks: list[asyncio.Task[Any]]) -> AsyncIterator[list[Chunk]]:
        """The turn has ended: the frames that are still on their way, then whatever never came."""
        if isinstance(ending, TurnSuperseded):
            raise superseded(ending)
        while not self._weave.finished:
            item = await self._next(tasks, _LAST_FRAMES_SECONDS)
            if item is None:
                break
            if not isinstance(item, WorkEvent):
                chunks = self._made_of(item)
                if self._refused(chunks) is not None and isinstance(ending, TurnFailed):
                    raise refusal_of(ending)
                yield chunks
        if self._weave.finished:
            return
        if isinstance(ending, TurnFailed) and not self._shown:
            raise refusal_of(ending)
        message = await self._stored()
        yield self._weave.settle([*(chunks_of(message.parts, message.id) if message else ()), _last(ending)])

    async def _stored(self) -> StoredMessage | None:
        wanted = answer_id(self._asked.turn_id)
        question = ReadHistory(**self._who.owned, session_id=self._asked.session_id, leaf_id=wanted, limit=1)
        try:
            return next((m for m in (await self._bus.ask(question)).messages if m.id == wanted), None)
        except (Refusal, NoAnswer) as error:
            log.warning("the answer of turn %s cannot be read: %s", self._asked.turn_id, error)
            return None

    async def _next(self, tasks: list[asyncio.Task[Any]], seconds: float | None) -> Chunk | Ending | None:
        """What comes next; None when nothing came in time, or the server stops. Raises what a follower died of."""
        if not self._ready and self._queue.empty():
            getting = asyncio.create_task(self._queue.get())
            try:
                await asyncio.wait({getting, *tasks}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
                if not getting.done():
                    for task in tasks:
                        if task.done():
                            task.result()
                    return None
                self._ready.append(getting.result())
            finally:
                getting.cancel()
        while not self._queue.empty():
            self._ready.append(self._queue.get_nowait())
        return self._ready.popleft()

    async def _follow(self, source: AsyncIterator[Any], take: Callable[[Any], Awaitable[None]]) -> None:
        async with contextlib.aclosing(source) as messages:  # type: ignore[type-var]  # generators close
            async for message in messages:
                await take(message)

    async def _live(self, payload: bytes) -> None:
        """A frame of a delivery after the place that is followed from: a delivery's token is its claim's place in the journal."""
        frame = read_frame(payload)
        if frame is not None and frame["token"] > self._asked.after:
            self._begun = True
            self._heard = max(self._heard, (frame["token"], frame["n"] + len(said(frame)) - 1))
            await self._queue.put(frame)

    def _continues(self, payload: bytes) -> bool:
        """Whether nothing is missing before a frame: it is the first of its delivery, or the one before it was heard."""
        frame, (token, last) = read_frame(payload), self._heard
        if frame is None or frame["token"] < token:
            return False
        return bool(frame["n"] <= (last + 1 if frame["token"] == token else 1))

    async def _ending(self, message: Stored) -> None:
        try:
            event = decode(message.subject, message.payload)
        except BrokenEvent:
            return
        if isinstance(event, Ending):
            await self._queue.put(event)


def _last(ending: TurnEvent) -> Chunk:
    match ending:
        case TurnFailed():
            return {"type": "error", "errorText": ending.reason}
        case TurnCancelled():
            return {"type": "abort"}
        case TurnPaused():
            return {"type": "finish", "finishReason": "tool-calls", "messageMetadata": {"turnId": ending.turn_id, "paused": True}}
        case _:
            return {"type": "finish", "finishReason": "stop", "messageMetadata": {"turnId": ending.turn_id}}


def superseded(ending: TurnSuperseded) -> Problem:
    """The message is stored, and gets no answer of its own."""
    if ending.by is None:
        return Problem(
            409,
            "turn-dropped",
            "the conversation was at work, so the message is stored and not answered",
            "send it when the answer is there",
        )
    detail = (
        "a later message is answered in place of this one"
        if ending.policy != "merge"
        else "this message is answered together with a later one"
    )
    return Problem(409, "turn-superseded", detail, "follow the conversation with GET /api/chat/{id}/stream")


def refusal_of(ending: TurnFailed) -> Problem:
    """A turn that failed before it showed anything, as a problem."""
    if ending.kind == "limit":
        return Problem(402, "limit-reached", ending.reason, "GET /api/usage shows what was used")
    return Problem(502, "model-failed", ending.reason, "try again, or name another model")
