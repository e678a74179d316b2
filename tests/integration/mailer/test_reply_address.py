"""Reply addresses on a real bucket: each typed refusal, letters of any case, and no way to move a token elsewhere."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest

from libs.bus import Kv
from libs.bus.connection import Connection
from libs.testkit.broker import broker
from services.mailer.reply_address import ReplyAddresses, ReplyRefused

NOW = datetime(2026, 3, 1, 12, 30, tzinfo=UTC)
SECRET = b"a secret of the tests"


@pytest.fixture
async def kv(tmp_path) -> AsyncIterator[Kv]:
    async with broker(tmp_path / "nats") as (_, settings):
        connection = await Connection.open(settings, "mailer")
        yield Kv(connection, "MAIL")
        await connection.close()


def addresses(kv: Kv, secret: bytes = SECRET, domain: str = "example.org", days: float = 30) -> ReplyAddresses:
    return ReplyAddresses(kv, secret, domain, days)


async def refusal(known: ReplyAddresses, address: str, now: datetime = NOW) -> str:
    with pytest.raises(ReplyRefused) as caught:
        await known.open(address, now)
    return caught.value.fault


async def test_an_address_tells_what_it_was_given_out_for(kv):
    known = addresses(kv)
    address = await known.give("R" * 64, "decision", 17, "Dev@Example.ORG", NOW)
    assert len(address.partition("@")[0]) <= 64
    for spelled in (address, address.upper(), f" <{address.title()}> "):
        grant = await known.open(spelled, NOW)
        assert (grant.run_id, grant.purpose, grant.of) == ("R" * 64, "decision", 17)
        grant.require_sender("<dev@example.org>")
        grant.require_sender("DEV@EXAMPLE.ORG")


async def test_the_same_mail_has_the_same_address(kv):
    known = addresses(kv)
    first = await known.give("run", "reply", 3, "dev@example.org", NOW)
    assert await known.give("run", "reply", 3, "dev@example.org", NOW + timedelta(hours=2)) == first
    others = [
        await known.give("run2", "reply", 3, "dev@example.org", NOW),
        await known.give("run", "decision", 3, "dev@example.org", NOW),
        await known.give("run", "reply", 4, "dev@example.org", NOW),
        await known.give("run", "reply", 3, "other@example.org", NOW),
        await known.give("run", "reply", 3, "dev@example.org", NOW + timedelta(days=1)),
    ]
    assert len({first, *others}) == 6


@pytest.mark.parametrize("address", ["agent@example.org", "agent+x@elsewhere.org", "somebody+x@example.org", "", "@", "agent+@"])
async def test_missing(kv, address):
    assert await refusal(addresses(kv), address) == "missing"


async def test_invalid(kv):
    known = addresses(kv)
    address = await known.give("run", "reply", 3, "dev@example.org", NOW)
    other = await known.give("other", "reply", 3, "dev@example.org", NOW)
    token, second = address[6:54], other[6:54]
    halves = [f"agent+{token[:24]}{second[24:]}@example.org", f"agent+{second[:20]}{token[20:]}@example.org"]
    flipped = [f"agent+{token[:i]}{'a' if token[i] != 'a' else 'b'}{token[i + 1 :]}@example.org" for i in range(48)]
    shapes = [
        "agent+@example.org",
        f"agent+{token}a@example.org",
        f"agent+{token[:-1]}@example.org",
        f"agent+{'é' * 48}@example.org",
    ]
    for forged in (*halves, *flipped, *shapes):
        assert await refusal(known, forged) == "invalid", forged
    assert await refusal(addresses(kv, secret=b"another secret"), address) == "invalid"


async def test_expired(kv):
    known = addresses(kv)
    address = await known.give("run", "reply", 3, "dev@example.org", NOW)
    assert (await known.open(address, NOW + timedelta(days=30))).run_id == "run"
    assert await refusal(known, address, NOW + timedelta(days=31)) == "expired"


async def test_wrong_sender(kv):
    known = addresses(kv)
    grant = await known.open(await known.give("run", "reply", 3, "dev@example.org", NOW), NOW)
    for sender in ("other@example.org", "dev@example.com", "", "dev\udce9@example.org"):
        with pytest.raises(ReplyRefused) as caught:
            grant.require_sender(sender)
        assert caught.value.fault == "wrong_sender"
