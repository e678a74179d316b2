"""Deliveries of the App that failed are asked for on start, and again while the service runs."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

from libs.bus import Service
from services.forge import incoming
from services.forge.app import GitHubApp
from services.forge.settings import ForgeSettings
from tests.integration.forge.hooks_world import world


def tried(number: int, guid: str, status: int, minutes_ago: float = 5) -> dict[str, Any]:
    at = datetime.now(UTC) - timedelta(minutes=minutes_ago)
    return {"id": number, "guid": guid, "status_code": status, "delivered_at": at.isoformat().replace("+00:00", "Z"), "redelivery": False}


async def test_what_failed_is_asked_for_on_start_and_again_and_what_came_through_is_not(tmp_path):
    async with world(tmp_path, intake=False) as here:
        here.github.deliveries = [tried(3, "lost", 502), tried(2, "kept", 202), tried(1, "kept", 503, 9)]
        forge = ForgeSettings.model_validate(here.forge.model_dump() | {"github_redelivery_seconds": 0.05})
        service = Service("forge")
        incoming.register(service, forge, GitHubApp(forge))
        async with service.running(here.settings), asyncio.timeout(60):
            while 3 not in here.github.redelivered:
                await asyncio.sleep(0.01)
            here.github.down = True
            seen = here.github.calls["GET /app/hook/deliveries"]
            while here.github.calls["GET /app/hook/deliveries"] < seen + 2:
                await asyncio.sleep(0.01)
            here.github.deliveries = [tried(4, "timed out", 0), tried(5, "lost", 202), *here.github.deliveries]
            here.github.down = False
            while 4 not in here.github.redelivered:
                await asyncio.sleep(0.01)
    assert set(here.github.redelivered) == {3, 4}
