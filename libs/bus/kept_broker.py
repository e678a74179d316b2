"""A broker that is kept alive: on another port when its own is taken, started again when it dies or the disk has room again."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from libs.bus import ports
from libs.bus.broker import Broker
from libs.bus.disk import DiskWatch, watch_disk
from libs.bus.errors import NoAnswer

_HEALTHY_SECONDS = 10.0
Say = Callable[[str, str], None]
Started = Callable[[Broker], None]


def backoff_seconds(deaths: int) -> float:
    """The pause before the next start after `deaths` quick deaths in a row: 0.2 s, doubled up to 10 s."""
    return float(min(0.2 * 2 ** max(deaths - 1, 0), 10.0))


@asynccontextmanager
async def kept(broker: Broker, say: Say, started: Started) -> AsyncIterator[asyncio.Task[None]]:
    """Keep `broker` alive inside the block. The task that is given ends at its first start; `started` is told of each."""
    starting = asyncio.create_task(_start(broker, started))
    keeping = asyncio.create_task(_keep(broker, starting, say, started))
    watching = asyncio.create_task(watch_disk(DiskWatch(broker.home), say, broker.end))
    try:
        yield starting
    finally:
        for task in (watching, keeping, starting):
            task.cancel()
        await asyncio.gather(watching, keeping, starting, return_exceptions=True)
        await broker.stop()


async def _start(broker: Broker, started: Started) -> None:
    """Start the broker; on other ports when somebody took ours since we looked."""
    for tries_left in (4, 3, 2, 1, 0):
        try:
            await broker.start()
        except (RuntimeError, NoAnswer):
            await broker.stop()
            if not tries_left or (ports.is_free(broker.port) and ports.is_free(broker.monitor_port)):
                raise
        else:
            started(broker)
            return
        broker.port, broker.monitor_port = ports.free(), ports.free()


async def _keep(broker: Broker, starting: asyncio.Task[None], say: Say, started: Started) -> None:
    await starting
    deaths = 0
    while True:
        assert broker.process is not None
        began = time.monotonic()
        code = await broker.process.wait()
        deaths = 1 if time.monotonic() - began > _HEALTHY_SECONDS else deaths + 1
        say("nats", f"ended with code {code}; started again in {backoff_seconds(deaths):g} s")
        await asyncio.sleep(backoff_seconds(deaths))
        try:
            await broker.start()
        except (RuntimeError, NoAnswer, OSError) as error:
            await broker.stop()
            say("nats", str(error))
        else:
            started(broker)
