"""A real nats-server for one test or one session of tests."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from libs.bus.broker import Broker
from libs.settings import BusSettings


def free_port() -> int:
    """A port of the loopback interface that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@asynccontextmanager
async def broker(home: Path, sync_interval: str = "2m", ack_wait_seconds: float = 2.0) -> AsyncIterator[tuple[Broker, BusSettings]]:
    """A running broker with its streams declared, and the settings that reach it."""
    home.mkdir(parents=True, exist_ok=True)
    server = Broker(home, free_port(), free_port(), sync_interval)
    await server.start_process()
    await server.declare(ack_wait_seconds)
    settings = BusSettings(
        home=home,
        nats_url=server.url,
        ack_wait_seconds=ack_wait_seconds,
        silence_seconds=3,
        backoff_base_seconds=0.05,
        backoff_cap_seconds=0.5,
    )
    try:
        yield server, settings
    finally:
        if server.process is not None and server.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                server.process.kill()  # an orderly end takes it a fifth of a second
        await server.stop()


async def until(check: Callable[[], object], seconds: float = 20.0) -> None:
    """Wait until `check` gives something true.

    Raises:
        TimeoutError: it did not in time.
    """
    async with asyncio.timeout(seconds):
        while not check():
            await asyncio.sleep(0.01)
