"""Serves the application with uvicorn until cancelled; open event streams end first, so that stopping never waits for a reader."""

import asyncio
import contextlib
import logging
from collections.abc import Generator

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from services.gateway.settings import GatewaySettings

log = logging.getLogger(__name__)
_GRACE_SECONDS = 5
_HEAD_BYTES = 128 * 1024
_TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


class _Server(uvicorn.Server):
    """Leaves the process's signals to whoever runs the service."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Nothing is captured."""
        yield


class _Protocol(HttpToolsProtocol):
    """Gives up on a head that does not end: the parser itself would hold it, whatever its size."""

    _in_head = False
    _head_bytes = 0

    def on_message_begin(self) -> None:
        """Called by the parser."""
        super().on_message_begin()
        self._in_head, self._head_bytes = True, 0

    def on_headers_complete(self) -> None:
        """Called by the parser."""
        self._in_head = False
        super().on_headers_complete()

    def data_received(self, data: bytes) -> None:
        """Called by the event loop."""
        super().data_received(data)
        if self._in_head:
            self._head_bytes += len(data)
            if self._head_bytes > _HEAD_BYTES and not self.transport.is_closing():
                self.transport.write(_TOO_LARGE)
                self.transport.close()


async def serve(app: FastAPI, settings: GatewaySettings) -> None:
    """Serve until cancelled, then finish what is being answered.

    Raises:
        OSError: the port is taken; the text names it.
    """
    config = uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        http=_Protocol,
        ws="websockets-sansio",
        ws_max_size=settings.chat_body_limit_bytes,
        ws_ping_interval=20,
        ws_ping_timeout=20,
        lifespan="off",
        log_config=None,
        log_level="warning",  # at info it writes the address of every WebSocket, and with it the token
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=_GRACE_SECONDS,
        timeout_keep_alive=30,
        backlog=512,
    )
    server = _Server(config)
    serving = asyncio.create_task(_serve(server, settings))
    try:
        await asyncio.shield(serving)
    except asyncio.CancelledError:
        app.state.gateway.stopping.set()
        server.should_exit = True
        await serving
        raise


async def _serve(server: uvicorn.Server, settings: GatewaySettings) -> None:
    try:
        await server.serve()
    except SystemExit as error:  # how uvicorn says that it cannot listen
        raise OSError(f"the gateway cannot listen on {settings.host}:{settings.port}: set AGENT_CODER_PORT to a free port") from error
