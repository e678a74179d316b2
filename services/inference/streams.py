"""Requests under way in this process: whoever asks for one a second time joins it from its start and pays nothing.

Every piece is kept until the request ends. When nobody listens any more, the request is cancelled, and its upstream stream with it.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from typing import Any

from libs.contracts.inference import Completion, TextDelta
from services.inference.domain import Delta, OnDelta

Listen = Callable[[TextDelta], Awaitable[None]]
Work = Callable[[OnDelta], Coroutine[Any, Any, Completion]]
FRAME_CHARACTERS = 512


class Frames:
    """The frames of one request, numbered and placed. Pieces of text that come faster than they are taken become one frame."""

    def __init__(self, request_id: str) -> None:
        self._request_id = request_id
        self._offset = 0
        self._taken = 0
        self.all: list[TextDelta] = []

    def take(self, number: int) -> TextDelta:
        """A frame to send; it grows no more."""
        self._taken = max(self._taken, number + 1)
        return self.all[number]

    def add(self, delta: Delta) -> None:
        """One more piece."""
        if len(self.all) > self._taken and (longer := _joined(self.all[-1], delta)) is not None:
            self.all[-1] = longer
            self._offset += len(delta.text)
            return
        frame = TextDelta(
            text=delta.text,
            request_id=self._request_id,
            index=len(self.all),
            offset=self._offset,
            reasoning=delta.reasoning or None,
            tool_index=delta.tool_index,
            tool_call_id=delta.tool_call_id,
            tool_name=delta.tool_name,
            arguments_delta=delta.arguments if delta.tool_index is not None else None,
        )
        self._offset += len(delta.text)
        self.all.append(frame)


def _joined(frame: TextDelta, delta: Delta) -> TextDelta | None:
    """A frame of text or of reasoning with one more piece of its kind; None where that is another kind or too long."""
    if frame.tool_index is not None or delta.tool_index is not None:
        return None
    if bool(frame.text) != bool(delta.text) or bool(frame.reasoning) != bool(delta.reasoning):
        return None
    text, reasoning = frame.text + delta.text, (frame.reasoning or "") + delta.reasoning
    if len(text) + len(reasoning) > FRAME_CHARACTERS:
        return None
    return frame.model_copy(update={"text": text, "reasoning": reasoning or None})


def replayed(completion: Completion) -> Iterator[Delta]:
    """A finished reply as the pieces of a stream."""
    if completion.reasoning:
        yield Delta(reasoning=completion.reasoning)
    for start in range(0, len(completion.content), FRAME_CHARACTERS):
        yield Delta(text=completion.content[start : start + FRAME_CHARACTERS])
    for index, call in enumerate(completion.tool_calls):
        yield Delta(tool_index=index, tool_call_id=call.id, tool_name=call.name, arguments=call.arguments)


class _Running:
    """One request: its work, what came of it, and how many listen."""

    def __init__(self, request_id: str, work: Work) -> None:
        self.frames = Frames(request_id)
        self.listeners = 0
        self._changed = asyncio.Event()
        self.task = asyncio.create_task(work(self._push))
        self.task.add_done_callback(lambda _: self._changed.set())

    async def _push(self, delta: Delta) -> None:
        self.frames.add(delta)
        self._changed.set()

    async def follow(self, listen: Listen | None) -> Completion:
        """Hand every frame to `listen`, from the first one on, and return the reply; a reply that came without frames is told as some."""
        sent = 0
        while True:
            self._changed.clear()
            done = self.task.done()
            if listen is not None:
                if done and not self.frames.all and not self.task.cancelled() and self.task.exception() is None:
                    for delta in replayed(self.task.result()):
                        self.frames.add(delta)
                while sent < len(self.frames.all):
                    await listen(self.frames.take(sent))
                    sent += 1
            if done:
                return self.task.result()
            if not self.task.done() and (listen is None or sent == len(self.frames.all)):
                await self._changed.wait()


class Streams:
    """The requests under way."""

    def __init__(self) -> None:
        self._running: dict[str, _Running] = {}

    async def join(self, request_id: str, key: str, work: Work, listen: Listen | None) -> Completion:
        """The reply of `work`, which is begun unless it is under way under `key`; whoever comes later gets it marked as replayed."""
        running = self._running.get(key)
        first = running is None
        if running is None:
            running = self._running[key] = _Running(request_id, work)
            running.task.add_done_callback(lambda _: self._forget(key, running))
        running.listeners += 1
        try:
            completion = await running.follow(listen)
        finally:
            running.listeners -= 1
            if running.listeners == 0 and not running.task.done():
                await self._stop(key, running)
        return completion if first else completion.model_copy(update={"replayed": True})

    async def _stop(self, key: str, running: _Running) -> None:
        self._forget(key, running)
        running.task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.shield(asyncio.gather(running.task, return_exceptions=True))

    def _forget(self, key: str, running: _Running) -> None:
        if self._running.get(key) is running:
            del self._running[key]
