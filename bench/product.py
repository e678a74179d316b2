"""The product from outside: seconds until it is ready, its idle memory, seconds until a sandbox runs a command."""

import asyncio
import os
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil

from libs.testkit.broker import free_port


@dataclass(frozen=True)
class Product:
    """Seconds and bytes."""

    ready_seconds: float
    idle_bytes: int
    processes: int


async def product(starts: int = 3) -> Product:
    """Start `agent-coder up` in an empty home, wait until it is ready, let it idle, read its memory."""
    ready, idle, processes = [], 0, 0
    for _ in range(starts):
        with tempfile.TemporaryDirectory() as home:
            port = free_port()
            environment = {**os.environ, "AGENT_CODER_HOME": home, "AGENT_CODER_PORT": str(port), "AGENT_CODER_RATE_LIMIT_REQUESTS": "0"}
            begin = time.perf_counter()
            process = await asyncio.create_subprocess_exec(
                str(Path(sys.executable).parent / "agent-coder"),
                *("up", "--port", str(port)),
                env=environment,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.DEVNULL,
            )
            try:
                await _ready(port)
                ready.append(time.perf_counter() - begin)
                await asyncio.sleep(3)  # idle means that start-up work is over
                tree = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
                idle, processes = sum(p.memory_info().rss for p in tree), len(tree)
            finally:
                process.terminate()
                await asyncio.wait_for(process.wait(), 30)
    return Product(statistics.median(ready), idle, processes)


async def _ready(port: int) -> None:
    async with httpx.AsyncClient(trust_env=False) as client, asyncio.timeout(60):
        while True:
            try:
                if (await client.get(f"http://127.0.0.1:{port}/readyz")).status_code == 200:
                    return
            except httpx.HTTPError:
                pass
            await asyncio.sleep(0.01)
