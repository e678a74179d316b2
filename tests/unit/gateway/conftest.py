"""The real application on a bus in memory."""

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI

from services.gateway.app import create_app
from services.gateway.settings import GatewaySettings
from tests.unit.gateway.fake_bus import FakeBus

TOKEN = "test-token-of-the-owner"


@pytest.fixture
def bus() -> FakeBus:
    return FakeBus()


@pytest.fixture
def app(bus: FakeBus, tmp_path: Path) -> FastAPI:
    settings = GatewaySettings(
        home=tmp_path, heartbeat_seconds=0.05, models_cache_seconds=0, stuck_after_seconds=3600, rate_limit_requests=0
    )
    return create_app(bus, settings, TOKEN)


@pytest.fixture
async def client(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    headers = {"Authorization": f"Bearer {TOKEN}"}
    async with httpx.AsyncClient(transport=transport, base_url="http://server", headers=headers) as client:
        yield client
