"""A broker that goes away and comes back: an open event stream goes on, nothing left out and nothing twice."""

import asyncio
import contextlib
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest

from libs.contracts.run import Issue, RunOpened
from libs.testkit.broker import broker, free_port
from services.gateway.__main__ import build


async def test_an_event_stream_survives_a_restart_of_the_broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    for name, value in (("HOME", str(tmp_path / "home")), ("PORT", str(port)), ("HEARTBEAT_SECONDS", "0.2")):
        monkeypatch.setenv(f"AGENT_CODER_{name}", value)
    async with broker(tmp_path / "home", sync_interval="always") as (server, settings), build().running(settings) as gateway:
        await gateway.bus.journal.append(
            RunOpened(run_id="r1", issue=Issue(id="1", title="x"), repo="a", opened_at=datetime.now(UTC)), follows=0
        )
        headers = {"Authorization": f"Bearer {(settings.home / 'token').read_text().strip()}"}
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=60) as client:
            await listening(client)
            async with client.stream("GET", "/api/runs/r1/events") as stream:
                lines = stream.aiter_lines()
                while await anext(lines) != ": heartbeat":
                    pass
                await server.stop()
                assert (await client.get("/readyz")).status_code == 503
                await server.start_process()
                await cancelled(client)
                rest = [line async for line in lines]
    assert [line for line in rest if line.startswith("event: ")] == ["event: run.cancelled", "event: end"]


async def listening(client: httpx.AsyncClient) -> None:
    async with asyncio.timeout(60):
        while True:
            with contextlib.suppress(httpx.TransportError):
                await client.get("/healthz")
                return
            await asyncio.sleep(0.02)


async def cancelled(client: httpx.AsyncClient) -> None:
    """Cancel the run; 503 until the gateway is connected again."""
    async with asyncio.timeout(60):
        while (answer := await client.post("/api/runs/r1/cancel")).status_code == 503:
            await asyncio.sleep(0.1)
    assert answer.status_code == 200, answer.text
