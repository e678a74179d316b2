"""A reader of what comes sees everything, however slow it is and whenever it begins."""

import asyncio
import contextlib

import pytest

from libs.bus.connection import Connection
from libs.bus.tail import Heard, Tail
from libs.bus.topology import ADMIN
from libs.testkit.broker import broker

SUBJECT = "live.t1.part"


@pytest.fixture
async def connection(tmp_path):
    async with broker(tmp_path / "home") as (_, settings):
        found = await Connection.open(settings, ADMIN)
        yield found
        await found.close()


async def told(connection, numbers):
    for number in numbers:
        await connection.publish(SUBJECT, str(number).encode(), {}, "LIVE")


async def taken(payloads, last):
    """The numbers as they come, up to `last`."""
    found = []
    async with asyncio.timeout(60):
        async for payload in payloads:
            found.append(int(payload))
            if found[-1] == last:
                break
    return found


def in_order(found):
    """What a reader that passes over known numbers makes of it."""
    kept = []
    for number in found:
        if number == len(kept):
            kept.append(number)
    return kept


async def test_what_is_stored_and_what_comes_is_heard_without_a_gap(connection):
    await told(connection, range(3))
    async with contextlib.aclosing(Heard(connection, "LIVE", SUBJECT).payloads()) as payloads:
        assert await taken(payloads, 2) == [0, 1, 2]
        telling = asyncio.create_task(told(connection, range(3, 50)))
        assert in_order([0, 1, 2, *await taken(payloads, 49)]) == list(range(50))
        await telling


async def test_the_first_message_that_is_heard_may_continue_what_was_read(connection):
    await told(connection, range(3))
    asked = []

    def continues(payload):
        asked.append(int(payload))
        return True

    async with contextlib.aclosing(Heard(connection, "LIVE", SUBJECT, continues).payloads()) as payloads:
        assert await taken(payloads, 2) == [0, 1, 2]
        telling = asyncio.create_task(told(connection, range(3, 50)))
        assert in_order([0, 1, 2, *await taken(payloads, 49)]) == list(range(50))
        await telling
    assert asked == [3]


async def test_a_reader_that_was_too_slow_reads_what_it_let_pass(connection):
    async with contextlib.aclosing(Heard(connection, "LIVE", SUBJECT).payloads()) as payloads:
        telling = asyncio.create_task(told(connection, [0]))
        assert await taken(payloads, 0) == [0]
        await telling
        await told(connection, range(1, 600))
        assert in_order([0, *await taken(payloads, 599)]) == list(range(600))


async def test_only_the_words_that_ring_are_read_at_once_and_nothing_is_lost(connection):
    tail = Tail(connection, "LIVE", "live.t1.>", 0, ("end",))
    async with contextlib.aclosing(tail.messages()) as messages:
        await told(connection, range(3))
        await connection.publish("live.t1.end", b"3", {}, "LIVE")
        async with asyncio.timeout(60):
            found = [int((await anext(messages)).payload) for _ in range(4)]
    assert found == [0, 1, 2, 3]
