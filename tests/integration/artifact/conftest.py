"""These tests run on the loop that the product runs on: its processes and pipes differ from asyncio's own."""

from asyncio import AbstractEventLoop
from collections.abc import Callable

import uvloop


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], AbstractEventLoop]]:
    return {"uvloop": uvloop.new_event_loop}
