"""What the product adds to a call of a model, beside `litellm --proxy`, on one fake provider; and many chats at the same time.

The ways are asked in turn in one loop, so that what else the machine does falls on all of them. Memory is off: it asks the model
a second time after a turn, which is no part of the answer.
"""

import asyncio
import contextlib
import itertools
import math
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import psutil

from bench.provider import FIRST, PACED, provider
from bench.proxy import NoProxy, Proxy, proxy
from libs.testkit.product import Product, product

PLAIN = {"AGENT_CODER_ASSISTANT_MEMORY": "false"}
_FIRST = FIRST.encode()
_numbers = itertools.count()


@dataclass(frozen=True)
class Took:
    """Seconds from the request to the first word, and to the end; not a number when there was no good answer."""

    first: float
    end: float


@dataclass(frozen=True)
class Overhead:
    """Seconds over the median of the bare call, one a call."""

    first: list[float]
    end: list[float]


@dataclass(frozen=True)
class Crowd:
    """Many streams at once: seconds to the first word, how many had no good answer, resident bytes of the server before and at the most."""

    first: list[float]
    failed: int
    idle_bytes: int
    most_bytes: int


@dataclass(frozen=True)
class ChatFigures:
    """By way: `bare`, `v1`, `v1 streamed`, `chat`, `proxy`, `proxy streamed`. `proxy` says which proxy, or why there is none.

    `processor` are the seconds of processor time that a call costs the server, its broker included: busy neighbours change them less.
    """

    proxy: str
    processor: Mapping[str, float]
    overhead: Mapping[str, Overhead]
    crowds: Mapping[str, Crowd]


class Way:
    """One way to ask: a URL and the body of a request."""

    def __init__(self, url: str, *, token: str = "", chat: bool = False, stream: bool = True, pid: int | None = None) -> None:
        self.url = url
        self.stream = stream
        self.pid = pid
        self._chat = chat
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}

    def body(self, words: str) -> dict[str, Any]:
        """A request of its own: no two are equal, and each chat is a new conversation."""
        number = next(_numbers)
        if self._chat:
            return {"message": f"{words} {number}", "session": f"bench{number}"}
        return {"model": "fake", "stream": self.stream, "messages": [{"role": "user", "content": f"{words} {number}"}]}

    async def ask(self, client: aiohttp.ClientSession, words: str) -> Took:
        """One call, read to its end."""
        begin, first, good = time.perf_counter(), math.nan, False
        with contextlib.suppress(aiohttp.ClientError, TimeoutError):
            async with client.post(self.url, json=self.body(words), headers=self._headers) as answer:
                good = answer.status == 200
                async for line in answer.content:
                    if math.isnan(first) and _FIRST in line:
                        first = time.perf_counter() - begin
        return Took(first, time.perf_counter() - begin) if good and not math.isnan(first) else Took(math.nan, math.nan)


@asynccontextmanager
async def ways() -> AsyncIterator[tuple[dict[str, Way], str]]:
    """All ways to one provider, and what to say of the proxy."""
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(provider())
        home = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "home"
        running = await stack.enter_async_context(product(home, "fake", environment={"MODEL_BASE_URL": url, **PLAIN}))
        found = {"bare": Way(f"{url}/chat/completions", stream=False), "bare streamed": Way(f"{url}/chat/completions")}
        found |= _of_product(running)
        try:
            beside = await stack.enter_async_context(proxy(url))
        except NoProxy as error:
            yield found, f"no proxy: {error}"
            return
        yield found | _of_proxy(beside), beside.origin


def _of_product(running: Product) -> dict[str, Way]:
    base, token, pid = str(running.client.base_url).rstrip("/"), (running.home / "token").read_text().strip(), running.process.pid
    return {
        "v1": Way(f"{base}/v1/chat/completions", token=token, stream=False, pid=pid),
        "v1 streamed": Way(f"{base}/v1/chat/completions", token=token, pid=pid),
        "chat": Way(f"{base}/api/chat", token=token, chat=True, pid=pid),
    }


def _of_proxy(beside: Proxy) -> dict[str, Way]:
    url = f"{beside.base_url}/chat/completions"
    return {
        "proxy": Way(url, token=beside.key, stream=False, pid=beside.pid),
        "proxy streamed": Way(url, token=beside.key, pid=beside.pid),
    }


async def overheads(client: aiohttp.ClientSession, found: Mapping[str, Way], rounds: int) -> dict[str, Overhead]:
    """Ask each way in turn, `rounds` times after a tenth as many to warm up."""
    seen: dict[str, list[Took]] = {name: [] for name in found}
    for number in range(-max(5, rounds // 10), rounds):
        for name, way in found.items():
            took = await way.ask(client, "hello")
            if math.isnan(took.end):
                raise RuntimeError(f"{name}: {way.url} did not answer as it should")
            if number >= 0:
                seen[name].append(took)
    return {name: _over(seen["bare streamed" if way.stream else "bare"], seen[name]) for name, way in found.items()}


def _over(bare: list[Took], seen: list[Took]) -> Overhead:
    first, end = statistics.median(took.first for took in bare), statistics.median(took.end for took in bare)
    return Overhead([took.first - first for took in seen], [took.end - end for took in seen])


async def crowd(client: aiohttp.ClientSession, way: Way, streams: int) -> Crowd:
    """`streams` streams that are all open at the same time for some seconds."""
    idle = resident(way.pid)
    most = [idle]
    watching = asyncio.create_task(_watch(way.pid, most))
    took = await asyncio.gather(*(way.ask(client, PACED) for _ in range(streams)))
    watching.cancel()
    first = [seen.first for seen in took if not math.isnan(seen.first)]
    return Crowd(first, len(took) - len(first), idle, max(most))


async def _watch(pid: int | None, most: list[int]) -> None:
    while True:
        await asyncio.sleep(0.25)
        most.append(resident(pid))


async def processor(client: aiohttp.ClientSession, way: Way, pid: int, calls: int) -> float:
    """Seconds of processor time of a call, what is done after its answer included as far as it is done within a second."""
    before = _busy(pid)
    for _ in range(calls):
        await way.ask(client, "hello")
    await asyncio.sleep(1.0)
    return (_busy(pid) - before) / calls


def _busy(pid: int) -> float:
    parent, total = psutil.Process(pid), 0.0
    for process in (parent, *parent.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            total += times.user + times.system
    return total


def resident(pid: int | None) -> int:
    """Resident bytes of a process and its children; 0 without one."""
    if pid is None:
        return 0
    parent, total = psutil.Process(pid), 0
    for process in (parent, *parent.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):
            total += process.memory_info().rss
    return total


async def chat(rounds: int = 300, streams: int = 500) -> ChatFigures:
    """All figures."""
    connector, timeout = aiohttp.TCPConnector(limit=0), aiohttp.ClientTimeout(total=180)
    async with ways() as (found, beside), aiohttp.ClientSession(connector=connector, timeout=timeout) as client:
        over = await overheads(client, found, rounds)
        busy = {name: await processor(client, way, way.pid, rounds) for name, way in found.items() if way.pid is not None}
        crowds = {name: await crowd(client, way, streams) for name, way in found.items() if way.stream}
    return ChatFigures(beside, busy, over, crowds)
