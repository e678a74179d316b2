"""The rate limit: a sliding window for each user, shared, with headers that say what is left."""

import asyncio

import httpx
from fastapi import FastAPI
from hypothesis import given
from hypothesis import strategies as st

from libs.bus import Retryable
from services.gateway.app import create_app
from services.gateway.identity.caller import OWNER, Caller
from services.gateway.rate import RateLimiter, admit
from services.gateway.settings import GatewaySettings
from tests.unit.gateway.conftest import TOKEN
from tests.unit.gateway.fake_bus import FakeBus, FakeKv

OTHER = Caller(tenant="acme", user="kim", scopes=frozenset({"read"}))


class Clock:
    """A clock that is set by hand."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


@given(st.lists(st.tuples(st.floats(0, 30), st.integers(1, 5)), max_size=60), st.integers(1, 8))
def test_no_window_ever_holds_more_than_the_limit(steps: list[tuple[float, int]], limit: int) -> None:
    times: list[float] = []
    admitted: list[float] = []
    now = 0.0
    for pause, wanted in steps:
        now += pause
        times, granted = admit(times, wanted, now, limit, 60.0)
        admitted += [now] * granted
        assert len([t for t in admitted if t > now - 60.0]) <= limit
        if granted < wanted:
            assert len([t for t in admitted if t > now - 60.0]) == limit


async def test_the_window_slides(bus: FakeBus) -> None:
    clock = Clock()
    limiter = RateLimiter(bus, 3, 60.0, clock)
    for at in (0, 20, 40):
        clock.now = 1000 + at
        assert (await limiter.admit(OWNER)).admitted
    clock.now = 1059
    refused = await limiter.admit(OWNER)
    assert not refused.admitted
    assert refused.headers()["Retry-After"] == "1"
    clock.now = 1061
    assert (await limiter.admit(OWNER)).admitted
    assert not (await limiter.admit(OWNER)).admitted
    assert (await limiter.admit(OTHER)).admitted


async def test_replicas_share_one_window(bus: FakeBus) -> None:
    replicas = [RateLimiter(bus, 10, 60.0, Clock()) for _ in range(3)]
    said = await asyncio.gather(*(r.admit(OWNER) for r in replicas for _ in range(20)))
    assert sum(s.admitted for s in said) == 10


async def test_a_burst_of_one_user_is_admitted_with_few_writes(bus: FakeBus) -> None:
    limiter = RateLimiter(bus, 100, 60.0, Clock())
    said = await asyncio.gather(*(limiter.admit(OWNER) for _ in range(100)))
    assert sorted(s.remaining for s in said) == list(range(100))
    assert bus.buckets["RATES"].values["local.local"][1] < 10


async def test_while_the_record_cannot_be_kept_nobody_is_turned_away(bus: FakeBus) -> None:
    class Broken(FakeKv):
        async def get(self, key: str) -> tuple[bytes, int] | None:
            raise Retryable("down")

    bus.buckets["RATES"] = Broken()
    limiter = RateLimiter(bus, 3, 60.0)
    said = await asyncio.gather(*(limiter.admit(OWNER) for _ in range(5)))
    assert all(admission.admitted for admission in said)


def served(app: FastAPI) -> httpx.AsyncClient:
    headers = {"Authorization": f"Bearer {TOKEN}"}
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://server", headers=headers)


async def test_over_the_limit_is_429_with_what_to_do(bus: FakeBus) -> None:
    async with served(create_app(bus, GatewaySettings(rate_limit_requests=2), TOKEN)) as client:
        first, second, third = [await client.get("/api/runs") for _ in range(3)]
        assert (first.status_code, second.status_code, third.status_code) == (200, 200, 429)
        assert first.headers["RateLimit-Policy"] == '"user";q=2;w=60'
        assert first.headers["RateLimit"].startswith('"user";r=1;t=')
        assert third.headers["RateLimit"].startswith('"user";r=0;t=')
        assert 1 <= int(third.headers["Retry-After"]) <= 60
        assert third.headers["content-type"] == "application/problem+json"
        assert third.json()["code"] == "rate-limited"
        for _ in range(5):
            assert (await client.get("/healthz")).status_code == 200
        assert (await client.get("/api/runs", headers={"Authorization": "Bearer wrong"})).status_code == 401


async def test_sixty_in_sixty_seconds_is_the_default(bus: FakeBus) -> None:
    async with served(create_app(bus, GatewaySettings(), TOKEN)) as client:
        said = [(await client.get("/api/runs")).status_code for _ in range(61)]
        assert said == [200] * 60 + [429]
