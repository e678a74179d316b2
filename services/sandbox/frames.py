"""Shows a running command's output to the one who asked for it, at the pace that this one takes it."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from libs.contracts.sandbox import OutputChunk
from services.sandbox.backends import Stream

logger = logging.getLogger(__name__)


class Frames:
    """Passes output on until its asker goes away; the command itself then runs on unhindered."""

    def __init__(self, send: Callable[[OutputChunk], Awaitable[None]]) -> None:
        self._send = send
        self._gone = asyncio.Event()

    async def __call__(self, stream: Stream, data: bytes) -> None:
        """Send a piece; waits while the asker is behind, gives up when it is gone or cannot be reached."""
        if self._gone.is_set():
            return
        sending = asyncio.ensure_future(self._send(OutputChunk(stream=stream, data=data)))
        leaving = asyncio.ensure_future(self._gone.wait())
        try:
            await asyncio.wait({sending, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if sending.done() and sending.exception() is not None:
                logger.info("output cannot be shown any more: %s", sending.exception())
                self._gone.set()
        finally:
            sending.cancel()
            leaving.cancel()

    def close(self) -> None:
        """The asker is gone."""
        self._gone.set()
