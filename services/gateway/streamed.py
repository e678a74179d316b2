"""A question whose answer comes in frames: asked at once, a few frames held, given up when its reader goes."""

import asyncio
import contextlib
from typing import Any, Generic, TypeVar

from libs.contracts.envelope import Message, Question
from services.gateway.clients import GatewayBus
from services.gateway.feed import ended

FrameT = TypeVar("FrameT", bound=Message)


class Streamed(Generic[FrameT]):
    """A slow reader holds back whoever answers: at most `held` frames wait for it."""

    def __init__(self, bus: GatewayBus, question: Question[Any], frame: type[FrameT], held: int) -> None:
        self._frame = frame
        self._queue: asyncio.Queue[FrameT] = asyncio.Queue(held)
        self._asking = asyncio.create_task(bus.ask(question, on_frame=self._take))

    async def _take(self, payload: bytes) -> None:
        await self._queue.put(self._frame.model_validate_json(payload))

    async def next(self) -> FrameT | None:
        """The next frame; None after the last one. Raises what the question raises."""
        if not self._queue.empty():
            return self._queue.get_nowait()
        getting = asyncio.create_task(self._queue.get())
        try:
            await asyncio.wait({getting, self._asking}, return_when=asyncio.FIRST_COMPLETED)
            if getting.done():
                return getting.result()
        finally:
            getting.cancel()
        if not self._queue.empty():
            return self._queue.get_nowait()
        self._asking.result()
        return None

    async def answer(self) -> Any:
        """The answer itself, of the type that the question names. Raises what the question raises."""
        return await self._asking

    async def close(self) -> None:
        """Ask no longer."""
        if not self._asking.done():
            await ended([self._asking])
        with contextlib.suppress(asyncio.CancelledError):
            self._asking.exception()
