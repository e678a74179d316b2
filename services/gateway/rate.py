"""How many requests a user may make: a sliding window that all replicas share, kept in the bucket `RATES`.

A record holds the times of the user's admitted requests. Waiting requests of one user are admitted in one compare-and-set, in order of
arrival; a refused request is not counted.
"""

import asyncio
import json
import logging
import math
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from libs.bus import Fenced, Retryable, token
from services.gateway.clients import Buckets
from services.gateway.identity.caller import Caller
from services.gateway.identity.guard import DOORS
from services.gateway.problems import Problem, response

log = logging.getLogger(__name__)
BUCKET = "RATES"
_TRIES = 50
_REMEMBERED = 1000


@dataclass(frozen=True)
class Admission:
    """Whether one request may pass, what is left of the window and when there is more, in seconds."""

    admitted: bool
    limit: int
    remaining: int
    reset_seconds: float
    window_seconds: float

    def headers(self) -> dict[str, str]:
        """`RateLimit` and `RateLimit-Policy` (draft-ietf-httpapi-ratelimit-headers-10); `Retry-After` when refused."""
        seconds = max(1, math.ceil(self.reset_seconds))
        found = {
            "RateLimit-Policy": f'"user";q={self.limit};w={math.ceil(self.window_seconds)}',
            "RateLimit": f'"user";r={self.remaining};t={seconds}',
        }
        return found if self.admitted else found | {"Retry-After": str(seconds)}

    def problem(self) -> Problem:
        """The refusal."""
        seconds = max(1, math.ceil(self.reset_seconds))
        return Problem(
            429,
            "rate-limited",
            f"more than {self.limit} requests in {self.window_seconds:g} s",
            f"try again in {seconds} s; one stream instead of many requests counts once",
            headers=self.headers(),
        )


def admit(times: list[float], wanted: int, now: float, limit: int, window_seconds: float) -> tuple[list[float], int]:
    """The record after `wanted` requests at `now`, and how many of them are admitted. Pure."""
    recent = [t for t in times if t > now - window_seconds]
    granted = max(0, min(wanted, limit - len(recent)))
    return recent + [now] * granted, granted


class RateLimiter:
    """Admits requests of users. A limit of 0 admits everything."""

    def __init__(self, buckets: Buckets, limit: int, window_seconds: float, clock: Callable[[], float] = time.time) -> None:
        self._buckets = buckets
        self._limit = limit
        self._window_seconds = window_seconds
        self._clock = clock
        self._waiting: dict[str, list[asyncio.Future[Admission]]] = {}
        self._known: OrderedDict[str, tuple[list[float], int]] = OrderedDict()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def on(self) -> bool:
        """Whether there is a limit."""
        return self._limit > 0

    async def admit(self, caller: Caller) -> Admission:
        """Count one request of the caller; while the record cannot be kept, everything is admitted and nothing counted."""
        return await self.admit_key(f"{token(caller.tenant)}.{token(caller.user)}")

    async def admit_address(self, address: str) -> Admission:
        """Count one request of a stranger."""
        return await self.admit_key(f"-.{token(address)}")

    async def admit_key(self, key: str) -> Admission:
        """Count one request under a key of the bucket."""
        place: asyncio.Future[Admission] = asyncio.get_running_loop().create_future()
        leading = key not in self._waiting
        self._waiting.setdefault(key, []).append(place)
        if leading:
            task = asyncio.create_task(self._serve(key))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return await place

    async def _serve(self, key: str) -> None:
        """Admit whoever waits for `key`, until nobody does."""
        while places := self._waiting[key]:
            self._waiting[key] = []
            try:
                said = await self._admit(key, len(places))
            except Exception as error:  # noqa: BLE001 - whatever it is, whoever waits must be let go
                log.warning("the rate of %s cannot be counted, so it is not limited: %s", key, error)
                said = [Admission(True, self._limit, self._limit, self._window_seconds, self._window_seconds)] * len(places)
            for place, admission in zip(places, said, strict=True):
                if not place.done():
                    place.set_result(admission)
        del self._waiting[key]

    async def _admit(self, key: str, wanted: int) -> list[Admission]:
        bucket = self._buckets.kv(BUCKET)
        for _ in range(_TRIES):
            before, revision = self._known.pop(key) if key in self._known else await self._load(key)
            now = self._clock()
            times, granted = admit(before, wanted, now, self._limit, self._window_seconds)
            try:
                if granted:
                    revision = await bucket.put(key, json.dumps(times).encode(), revision)
            except Fenced:
                continue
            self._remember(key, times if granted else before, revision)
            reset = times[0] + self._window_seconds - now if times else self._window_seconds
            left = self._limit - len(times)
            return [Admission(n < granted, self._limit, left + max(0, granted - n - 1), reset, self._window_seconds) for n in range(wanted)]
        raise Retryable("the record of this user's requests changes too often")

    async def _load(self, key: str) -> tuple[list[float], int]:
        found = await self._buckets.kv(BUCKET).get(key)
        return (json.loads(found[0]), found[1]) if found else ([], 0)

    def _remember(self, key: str, times: list[float], revision: int) -> None:
        """Keep what this replica put last: the next put says whether another one has put since."""
        self._known[key] = (times, revision)
        if len(self._known) > _REMEMBERED:
            self._known.popitem(last=False)


class RateLimit:
    """Middleware: every request of a known caller counts once, a stream too, and what comes to a door counts for its address.

    The answer says what is left.
    """

    def __init__(self, app: ASGIApp, limiter: RateLimiter, knocking: RateLimiter) -> None:
        self._app = app
        self._limiter = limiter
        self._knocking = knocking

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        admission = await self._admission(scope) if scope["type"] == "http" else None
        if admission is None:
            await self._app(scope, receive, send)
            return
        if not admission.admitted:
            await response(admission.problem(), scope["path"])(scope, receive, send)
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(raw=message["headers"])
                for name, value in admission.headers().items():
                    headers.setdefault(name, value)
            await send(message)

        await self._app(scope, receive, with_headers)

    async def _admission(self, scope: Scope) -> Admission | None:
        """None when nothing is counted."""
        caller = scope.get("state", {}).get("caller")
        if caller is not None:
            return await self._limiter.admit(caller) if self._limiter.on else None
        if self._knocking.on and scope["path"].startswith(DOORS):
            return await self._knocking.admit_address((scope.get("client") or ("-", 0))[0])
        return None
