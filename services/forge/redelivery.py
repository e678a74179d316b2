"""Asks GitHub again for the deliveries that never came through: GitHub itself tries once (GitHub, "Handling failed webhook deliveries")."""

import asyncio
import logging
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from libs.bus import Retryable
from services.forge.clients import GitHub, HookDelivery
from services.forge.errors import GitHubError, NotConfigured

log = logging.getLogger(__name__)
_TRIES = 5
_KEPT = timedelta(days=3)  # GitHub redelivers nothing that is older
_UNDER_WAY = timedelta(seconds=30)


async def keep_asking(github: GitHub, seconds: float) -> None:
    """Now, and every so many seconds."""
    while True:
        try:
            await ask_again(github, datetime.now(UTC))
        except (Retryable, GitHubError, NotConfigured) as error:
            log.warning("failed deliveries cannot be asked for: %s", error)
        await asyncio.sleep(seconds)


async def ask_again(github: GitHub, now: datetime) -> int:
    """Ask for each delivery that failed at every try; how many."""
    lost = lost_deliveries(await github.deliveries(), now)
    for delivery in lost:
        await github.redeliver(delivery.id)
    if lost:
        log.info("%d deliveries that had failed are asked for again", len(lost))
    return len(lost)


def lost_deliveries(tries: Sequence[HookDelivery], now: datetime) -> list[HookDelivery]:
    """The newest try of each event that never succeeded, was not tried too often, and is not under way; the oldest first."""
    by_event: dict[str, list[HookDelivery]] = {}
    for one in sorted(tries, key=lambda d: d.at):
        by_event.setdefault(one.guid, []).append(one)
    newest = [of_one[-1] for of_one in by_event.values() if len(of_one) < _TRIES and not any(d.ok for d in of_one)]
    return sorted((d for d in newest if _UNDER_WAY < now - d.at < _KEPT), key=lambda d: d.at)
