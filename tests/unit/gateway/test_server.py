"""The application behind a real socket: heads that do not end, readers that do not read, a port that is taken."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from datetime import UTC, datetime

import pytest
from fastapi import FastAPI

from libs.contracts.live import Progress
from libs.testkit.broker import free_port
from services.gateway.server import serve
from services.gateway.settings import GatewaySettings
from tests.unit.gateway import stories
from tests.unit.gateway.conftest import TOKEN
from tests.unit.gateway.fake_bus import FakeBus

REQUEST = f"GET /api/runs/r1/events HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n\r\n".encode()


@contextlib.asynccontextmanager
async def served(app: FastAPI) -> AsyncIterator[int]:
    settings = GatewaySettings(port=free_port())
    task = asyncio.create_task(serve(app, settings))
    try:
        async with asyncio.timeout(60):
            while True:
                with contextlib.suppress(OSError):
                    _, writer = await asyncio.open_connection("127.0.0.1", settings.port)
                    writer.close()
                    break
                await asyncio.sleep(0.01)
        yield settings.port
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_head_that_does_not_end_is_given_up(app: FastAPI) -> None:
    async with served(app) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.1\r\nx: ")
        answer = asyncio.create_task(reader.read(1000))
        with contextlib.suppress(OSError):
            for _ in range(200):
                writer.write(b"a" * 10_000)
                await writer.drain()
                if answer.done():
                    break
        assert (await asyncio.wait_for(answer, 10)).startswith(b"HTTP/1.1 431 ")
        writer.close()


async def test_a_large_body_right_behind_the_head_is_no_large_head(app: FastAPI) -> None:
    async with served(app) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        body = b'{"title": "x", "repo": "app", "body": "' + b"b" * 60_000 + b'"}'
        head = f"POST /api/issues/1/solve HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\nContent-Type: application/json\r\n"
        for _ in range(3):
            writer.write(head.encode() + f"Content-Length: {len(body)}\r\n\r\n".encode() + body)
            assert (await asyncio.wait_for(reader.readuntil(b"}"), 10)).startswith(b"HTTP/1.1 202")
        writer.close()


async def test_a_reader_that_takes_nothing_is_dropped_and_holds_no_memory(app: FastAPI, bus: FakeBus) -> None:
    gateway = app.state.gateway
    object.__setattr__(gateway, "settings", gateway.settings.model_copy(update={"send_timeout_seconds": 0.2}))
    bus.add(stories.opened())
    async with served(app) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
        writer.write(REQUEST)
        await reader.readuntil(b"run.opened")
        while bus.tails < 2:
            await asyncio.sleep(0.01)
        frame = Progress(id="r1", step="edit", kind="output", text="x" * 8000, at=datetime.now(UTC)).model_dump_json().encode()
        async with asyncio.timeout(30):
            while bus.tails:
                if len(bus.messages["LIVE"]) < 3000:
                    bus.store("LIVE", "live.r1.progress", frame)
                await asyncio.sleep(0.001)
        writer.close()


async def test_a_port_that_is_taken_is_said_with_the_variable_to_set(app: FastAPI) -> None:
    async with served(app) as port:
        with pytest.raises(OSError, match="AGENT_CODER_PORT"):
            await serve(app, GatewaySettings(port=port))
