"""Views, timers, dead letters and buckets on a real broker."""

import asyncio
import contextlib
import json
from datetime import UTC, datetime, timedelta

import pytest

from libs.bus import Delivery, Fenced, Kv, Retryable, Service
from libs.bus.connection import Connection
from libs.bus.journal import Journal
from libs.contracts import run as events
from libs.testkit.broker import broker, until


@pytest.fixture
async def bus(tmp_path):
    async with broker(tmp_path / "home") as (server, settings):
        gateway = await Connection.open(settings, "gateway")
        yield server, settings, Journal(gateway)
        await gateway.close()


def opened(run_id: str) -> events.RunOpened:
    return events.RunOpened(run_id=run_id, issue=events.Issue(id="1", title="修复登录"), repo="demo", opened_at=datetime.now(UTC))


async def test_a_view_sees_every_event_in_order_and_a_failed_batch_again(bus):
    _, settings, journal = bus
    service, seen, failures = Service("session_store"), [], 0

    @service.view("runs", "RUN", batch=10)
    async def project(batch):
        nonlocal failures
        if failures == 0:
            failures += 1
            raise OSError("disk full")
        seen.extend(r.event.run_id for r in batch)

    for i in range(25):
        await journal.append(opened(f"r{i}"), follows=0)
    async with service.running(settings):
        await until(lambda: len(set(seen)) == 25)
    assert failures == 1


async def test_a_timer_fires_on_the_due_subject(bus):
    _, settings, _ = bus
    service, fired = Service("gateway"), []

    @service.consume("approvals")
    async def due(delivery: Delivery) -> None:
        fired.append((delivery.subject, json.loads(delivery.payload)))
        await delivery.ack()

    async with service.running(settings):
        await service.bus.timers.set("r1", "approval", datetime.now(UTC) + timedelta(seconds=1), {"of": 7})
        await until(lambda: fired)
    assert fired == [("due.r1.approval", {"id": "r1", "name": "approval", "of": 7})]


async def test_dead_letters_are_listed_shown_and_removed(bus):
    _, settings, _ = bus
    service, buried = Service("gateway"), asyncio.Event()

    @service.consume("inbox")
    async def inbox(delivery: Delivery) -> None:
        await service.bus.dead_letters.bury(delivery, "坏消息: not JSON", "schema")
        await delivery.term()
        buried.set()

    async with service.running(settings):
        await service.bus.connection.publish("inbound.ci.broken", b"\xff{", {"ce-id": "1"}, "INBOX")
        await asyncio.wait_for(buried.wait(), 10)
        letter = (await service.bus.dead_letters.list())[0]
        assert letter.reason == "坏消息: not JSON"
        assert letter.payload == b"\xff{"
        assert (await service.bus.dead_letters.show(letter.sequence)) == letter
        assert (await service.bus.dead_letters.original_headers(letter.sequence))["ce-id"] == "1"
        assert await service.bus.dead_letters.remove(letter.sequence)
        assert await service.bus.dead_letters.show(letter.sequence) is None


async def test_a_bucket_compares_before_it_sets(bus):
    _, settings, _ = bus
    inference = await Connection.open(settings, "inference")
    kv = Kv(inference, "BUDGET")
    assert await kv.get("a") is None
    first = await kv.put("a", b"1", 0)
    with pytest.raises(Fenced):
        await kv.put("a", b"2", 0)
    await kv.put("a", b"2", first)
    assert (await kv.get("a"))[0] == b"2"
    await inference.close()


async def test_a_restart_of_the_server_loses_nothing(bus):
    server, settings, journal = bus
    service, seen = Service("session_store"), []

    @service.view("runs", "RUN")
    async def project(batch):
        seen.extend(r.event.run_id for r in batch)

    async with service.running(settings):
        await journal.append(opened("before"), follows=0)
        await until(lambda: "before" in seen)
        server.process.kill()
        await server.process.wait()
        await server.start_process()
        async with asyncio.timeout(30):
            while True:
                with contextlib.suppress(Retryable):
                    await journal.append(opened("after"), follows=0)
                    break
        await until(lambda: "after" in seen, 30)
    assert [r.event.run_id for r in await journal.read("before")] == ["before"]
