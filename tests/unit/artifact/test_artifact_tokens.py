"""Tokens: who gets in, where, for how long, and what the file on disk gives away."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from services.artifact.errors import InvalidName, TokenRefused
from services.artifact.tokens import TokenStore, make_token, well_formed

HOUR = timedelta(hours=1)


class Clock:
    def __init__(self) -> None:
        self.time = datetime(2026, 1, 1, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.time


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def tokens(tmp_path: Path, clock: Clock) -> TokenStore:
    return TokenStore(tmp_path / "data" / "tokens.sqlite", clock)


async def test_a_token_opens_its_repository_with_its_scope(tokens: TokenStore, clock: Clock) -> None:
    for scope in ("read", "write"):
        issued = await tokens.issue("team/calc", scope, HOUR)
        assert issued.expires_at == clock.time + HOUR
        assert await tokens.check(issued.token, "team/calc") == scope


async def test_a_token_opens_nothing_else(tokens: TokenStore) -> None:
    issued = await tokens.issue("calc", "write", HOUR)
    with pytest.raises(TokenRefused, match="not known for this repository"):
        await tokens.check(issued.token, "other")


async def test_a_token_ends_at_its_time(tokens: TokenStore, clock: Clock) -> None:
    issued = await tokens.issue("calc", "read", HOUR)
    clock.time += HOUR - timedelta(seconds=1)
    assert await tokens.check(issued.token, "calc") == "read"
    clock.time += timedelta(seconds=1)
    with pytest.raises(TokenRefused, match="expired"):
        await tokens.check(issued.token, "calc")
    assert await tokens.sweep() == 1
    assert await tokens.sweep() == 0


async def test_a_revoked_token_opens_nothing(tokens: TokenStore) -> None:
    one, two, other = [await tokens.issue(name, "read", HOUR) for name in ("calc", "calc", "other")]
    assert await tokens.revoke(one.token) is True
    assert await tokens.revoke(one.token) is False
    assert await tokens.revoke_repository("calc") == 1
    for issued in (one, two):
        with pytest.raises(TokenRefused):
            await tokens.check(issued.token, "calc")
    assert await tokens.check(other.token, "other") == "read"


@pytest.mark.parametrize(
    "token", ["", "act_", "x" * 53, "act_" + "é" * 49, make_token(b"\1" * 32), make_token(b"\1" * 32)[:-1] + "~", "\ud800"]
)
async def test_what_is_no_token_opens_nothing(token: str, tokens: TokenStore) -> None:
    await tokens.issue("calc", "read", HOUR)
    with pytest.raises(TokenRefused):
        await tokens.check(token, "calc")


async def test_the_file_and_the_log_do_not_hold_the_token(tokens: TokenStore, tmp_path: Path) -> None:
    issued = await tokens.issue("calc", "read", HOUR)
    assert issued.token.encode() not in (tmp_path / "data" / "tokens.sqlite").read_bytes()
    assert issued.token not in repr(issued)
    assert (
        await TokenStore(tmp_path / "data" / "tokens.sqlite", lambda: datetime(2026, 1, 1, tzinfo=UTC)).check(issued.token, "calc")
        == "read"
    )


async def test_a_token_is_for_a_valid_name(tokens: TokenStore) -> None:
    with pytest.raises(InvalidName):
        await tokens.issue("../x", "read", HOUR)


def test_tokens_have_one_shape_and_a_checksum() -> None:
    for secret in (bytes(32), b"\xff" * 32, bytes(range(32))):
        token = make_token(secret)
        assert len(token) == 53
        assert well_formed(token)
        assert not well_formed(token[:20] + ("A" if token[20] != "A" else "B") + token[21:])
