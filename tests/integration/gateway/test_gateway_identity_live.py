"""Keys, rates and shared state on a real broker, with two gateways side by side."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import connect

from libs.bus import Service
from libs.contracts.turn import AgentDescription, Agents, AwaitStable, DescribeAgents, Stability
from libs.settings import BusSettings
from libs.testkit.broker import broker, free_port
from services.gateway.__main__ import build as build_gateway
from services.session_store.__main__ import build as build_session_store


@pytest.fixture
async def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[BusSettings]:
    monkeypatch.setenv("AGENT_CODER_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("AGENT_CODER_RATE_LIMIT_REQUESTS", "20")
    async with broker(tmp_path / "home") as (_, settings):
        yield settings


def assistant() -> Service:
    service = Service("assistant")

    @service.answer(DescribeAgents)
    async def agents(_: DescribeAgents, __: Any) -> Agents:
        return Agents(agents=(AgentDescription(name="assistant"),))

    @service.answer(AwaitStable)
    async def stable(_: AwaitStable, __: Any) -> Stability:
        return Stability(stable=True)

    return service


@pytest.fixture
async def gateways(settings: BusSettings, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[list[httpx.AsyncClient]]:
    """Two gateways on one broker, each with a client that has the owner's token."""
    async with contextlib.AsyncExitStack() as running:
        await running.enter_async_context(assistant().running(settings))
        await running.enter_async_context(build_session_store().running(settings))
        clients = []
        for _ in range(2):
            port = free_port()
            monkeypatch.setenv("AGENT_CODER_PORT", str(port))
            await running.enter_async_context(build_gateway().running(settings))
            headers = {"Authorization": f"Bearer {(settings.home / 'token').read_text().strip()}"}
            client = httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=20, trust_env=False)
            clients.append(await running.enter_async_context(client))
            async with asyncio.timeout(60):
                while not await reachable(client):
                    await asyncio.sleep(0.05)
        yield clients


async def reachable(client: httpx.AsyncClient) -> bool:
    with contextlib.suppress(httpx.TransportError):
        return (await client.get("/healthz")).status_code == 200
    return False


async def test_a_key_made_at_one_gateway_opens_the_other_until_it_is_revoked(gateways: list[httpx.AsyncClient]) -> None:
    one, two = gateways
    made = (await one.post("/api/keys", json={"name": "ci", "scopes": ["read"]})).json()
    headers = {"Authorization": f"Bearer {made['key']}"}
    assert (await two.get("/api/sessions", headers=headers)).status_code == 200
    assert (await two.post("/api/sessions", json={}, headers=headers)).status_code == 403
    assert [k["id"] for k in (await two.get("/api/keys")).json()["keys"]] == [made["id"]]
    assert (await two.delete(f"/api/keys/{made['id']}")).status_code == 204
    assert (await one.get("/api/sessions", headers=headers)).status_code == 401


async def test_gateways_share_the_window_of_a_user(gateways: list[httpx.AsyncClient]) -> None:
    said = await asyncio.gather(*(gateways[n % 2].get("/api/keys") for n in range(40)))
    assert sorted(answer.status_code for answer in said) == [200] * 20 + [429] * 20
    refused = next(answer for answer in said if answer.status_code == 429)
    assert 1 <= int(refused.headers["Retry-After"]) <= 60
    assert refused.headers["RateLimit-Policy"] == '"user";q=20;w=60'


async def test_connections_at_two_gateways_share_state_and_news(gateways: list[httpx.AsyncClient]) -> None:
    async with contextlib.AsyncExitStack() as opened:
        sockets = []
        for client in gateways:
            token = (await client.post("/api/tokens", json={"name": "room"})).json()["token"]
            url = f"{str(client.base_url).rstrip('/').replace('http', 'ws', 1)}/agents/assistant/room?token={token}"
            sockets.append(await opened.enter_async_context(connect(url, proxy=None)))
        one, two = sockets
        for socket in sockets:
            await until(socket, "cf_agent_chat_messages")
        async with asyncio.timeout(60):
            while True:  # the other one may still be about to listen
                await one.send(json.dumps({"type": "cf_agent_state", "state": {"n": 7}}))
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(1):
                        assert (await until(two, "cf_agent_state"))["state"] == {"n": 7}
                        break
                await one.send(json.dumps({"type": "cf_agent_state", "state": {"n": 6}}))
        await one.send(json.dumps({"type": "cf_agent_chat_clear"}))
        await until(two, "cf_agent_chat_clear")


async def until(socket: Any, kind: str) -> dict[str, Any]:
    async with asyncio.timeout(60):
        while True:
            frame = json.loads(await socket.recv())
            if frame["type"] == kind:
                return dict(frame)
