"""Installation tokens: minted once, renewed early, dropped when told, never shown. Limits: how long each answer asks to wait."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from libs.bus import Retryable
from services.forge.errors import NotFound, Refused, meaning
from services.forge.tokens import Scope, Tokens

NOW = datetime(2026, 1, 1, tzinfo=UTC)


class Clock:
    """A time that a test sets, and a mint that counts."""

    def __init__(self) -> None:
        self.now = NOW
        self.minted: list[tuple[int, dict[str, object]]] = []

    async def mint(self, installation: int, request: dict[str, object]) -> tuple[str, datetime]:
        self.minted.append((installation, request))
        await asyncio.sleep(0)
        return f"ghs_{len(self.minted)}", self.now + timedelta(hours=1)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def tokens(clock: Clock) -> Tokens:
    return Tokens(clock.mint, lambda: clock.now)


READS = Scope.of(5, 1, {"contents": "read"})


async def test_a_token_is_asked_for_one_repository_with_its_permissions(tokens: Tokens, clock: Clock):
    await tokens.get(READS)
    assert clock.minted == [(5, {"repository_ids": [1], "permissions": {"contents": "read"}})]


async def test_many_at_once_mint_one_and_other_permissions_another(tokens: Tokens, clock: Clock):
    found = await asyncio.gather(*(tokens.get(READS) for _ in range(20)))
    assert {t.value for t in found} == {"ghs_1"}
    await tokens.get(Scope.of(5, 1, {"contents": "write"}))
    await tokens.get(Scope.of(5, 2, {"contents": "read"}))
    assert len(clock.minted) == 3


async def test_it_is_renewed_five_minutes_before_its_end(tokens: Tokens, clock: Clock):
    first = await tokens.get(READS)
    clock.now = NOW + timedelta(minutes=54, seconds=59)
    assert await tokens.get(READS) == first
    clock.now = NOW + timedelta(minutes=55)
    assert (await tokens.get(READS)).value == "ghs_2"


async def test_a_suspended_installation_or_a_refused_token_is_forgotten(tokens: Tokens, clock: Clock):
    first = await tokens.get(READS)
    other = await tokens.get(Scope.of(6, 9, {"contents": "read"}))
    tokens.drop(5)
    assert (await tokens.get(READS)).value != first.value
    assert await tokens.get(Scope.of(6, 9, {"contents": "read"})) == other
    tokens.drop(token=other)
    assert await tokens.get(Scope.of(6, 9, {"contents": "read"})) != other


async def test_a_token_is_in_no_representation(tokens: Tokens):
    token = await tokens.get(READS)
    assert token.value not in f"{token!r} {token} {tokens.__dict__}"


@pytest.mark.parametrize(
    ("status", "headers", "message", "after"),
    [
        (429, {"retry-after": "17"}, "", 17),
        (403, {"retry-after": "60", "x-ratelimit-remaining": "12"}, "You have exceeded a secondary rate limit", 60),
        (403, {"x-ratelimit-remaining": "0", "x-ratelimit-reset": "1100"}, "API rate limit exceeded for installation ID 5.", 101),
        (403, {"x-ratelimit-remaining": "0", "x-ratelimit-reset": "900"}, "API rate limit exceeded", 1),
        (403, {"x-ratelimit-remaining": "0", "x-ratelimit-reset": "99999999"}, "API rate limit exceeded", 3900),
        (403, {}, "You have exceeded a secondary rate limit. Please wait a few minutes before you try again.", 60),
        (403, {}, "You have triggered an abuse detection mechanism. Please retry your request again later.", 60),
        (429, {}, "Too many requests", None),
        (502, {}, "Bad gateway", None),
    ],
)
def test_an_answer_that_is_to_be_waited_for(status, headers, message, after):
    error = meaning(status, {"message": message}, headers, 1000.0)
    assert isinstance(error, Retryable)
    assert error.after == after


@pytest.mark.parametrize(
    ("status", "data", "kind", "reason"),
    [
        (404, {"message": "Not Found"}, NotFound, "Not Found"),
        (403, {"message": "Resource not accessible by integration"}, Refused, "Resource not accessible by integration"),
        (
            422,
            {"message": "Validation Failed", "errors": [{"message": "body is too long"}, {"code": "custom"}, "x"]},
            Refused,
            "Validation Failed; body is too long; custom; x",
        ),
        (409, {"message": "Head branch\nwas modified"}, Refused, "Head branch was modified"),
        (400, "<html>", Refused, "no reason given"),
        (403, None, Refused, "no reason given"),
    ],
)
def test_an_answer_that_is_a_no(status, data, kind, reason):
    error = meaning(status, data, {}, 0.0)
    assert type(error) is kind
    assert error.reason == reason
