"""The fake of a bucket and the real one keep the same rules. What the fake cannot show: expiry, lost acknowledgements, other processes."""

import asyncio

import pytest

from libs.bus import Service
from libs.bus.errors import Fenced
from libs.testkit.broker import broker
from services.inference.__main__ import BusRecords
from services.inference.store import MemoryRecords


@pytest.fixture(params=["memory", "BUDGET", "REPLIES", "USAGE", "CACHE"])
async def records(request, tmp_path):
    if request.param == "memory":
        yield MemoryRecords()
        return
    async with broker(tmp_path / "home") as (_, settings), Service("inference").running(settings) as service:
        yield BusRecords(service, request.param)


async def test_a_key_that_was_never_put_is_none(records):
    assert await records.get("nothing") is None


async def test_what_was_put_comes_back_with_its_revision(records):
    first = await records.put("key", b"1", 0)
    assert await records.get("key") == (b"1", first)
    second = await records.put("key", b"2", first)
    assert second > first
    assert await records.get("key") == (b"2", second)


async def test_only_the_holder_of_the_last_revision_may_put(records):
    first = await records.put("key", b"1", 0)
    for stale in (0, first + 1):
        with pytest.raises(Fenced):
            await records.put("key", b"x", stale)
    assert await records.get("key") == (b"1", first)


async def test_without_a_revision_a_put_always_counts(records):
    await records.put("key", b"1", 0)
    await records.put("key", b"2")
    assert (await records.get("key"))[0] == b"2"


async def test_keys_are_apart(records):
    await records.put("a", b"1", 0)
    await records.put("b", b"2", 0)
    assert (await records.get("a"))[0] == b"1"


async def test_keys_are_found_by_pattern_with_their_last_values(records):
    for key in ("d1.t.anna", "d1.t.bo", "d2.t.anna"):
        await records.put(key, key.encode(), 0)
    await records.put("d1.t.anna", b"new")
    assert dict(await records.scan("d1.t.*")) == {"d1.t.anna": b"new", "d1.t.bo": b"d1.t.bo"}
    assert {key for key, _ in await records.scan("*.*.anna")} == {"d1.t.anna", "d2.t.anna"}
    assert await records.scan("d3.*.*") == []


async def test_more_keys_than_one_batch_are_found(records):
    await asyncio.gather(*(records.put(f"d.{number}", b"x", 0) for number in range(1203)))
    assert len(await records.scan("d.*")) == 1203
