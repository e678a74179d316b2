"""Messages that break their schema, put straight onto the bus: dead letters or a failed run, and everybody else goes on."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import nats
import pytest
from nats.aio.client import Client

from tests.e2e_bad_input.hostile import ADDER, Case, Hostile, repository

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(180)]
CASES = {name: Case(policy={"plan_approval": True}) for name in ("broken", "garbage", "bystander")}
SUBJECT = "inbound.outside.agent-coder-solve-issue"
CLOUD = {"content-type": "application/cloudevents+json"}


@asynccontextmanager
async def bus(served: Hostile, user: str) -> AsyncIterator[Client]:
    """A connection with a service's own rights."""
    runtime = json.loads((served.running.home / "runtime.json").read_text())
    password = json.loads((served.running.home / "credentials.json").read_text())[user]
    client = await nats.connect(runtime["nats_url"], user=user, password=password, inbox_prefix=f"_INBOX.{user}")
    try:
        yield client
    finally:
        await client.close()


async def until(ask: Callable[[], Any], wanted: Callable[[Any], bool]) -> Any:
    """Ask until the answer is the wanted one, for 30 seconds at most."""
    async with asyncio.timeout(30):
        while not wanted(found := await ask()):
            await asyncio.sleep(0.1)
        return found


async def letters(served: Hostile) -> list[dict[str, Any]]:
    answer = await served.running.client.get("/api/dead", params={"limit": 100})
    answer.raise_for_status()
    found: list[dict[str, Any]] = answer.json()["letters"]
    return found


def event(number: str, source: str, repo: str) -> dict[str, Any]:
    return {
        "specversion": "1.0",
        "id": number,
        "source": "outside",
        "type": "agent-coder.solve-issue",
        "data": {"issue": {"id": number, "title": source}, "repo": repo},
    }


@pytest.mark.parametrize(("name", "payload"), [("broken", b'{"run_id": 3, "plan": []}'), ("garbage", b"\x00\xff" * 100)])
async def test_an_event_that_breaks_its_schema_fails_its_run_alone(served, name, payload):
    run_id = served.runs[name]
    await served.running.wait(run_id, frozenset({"waiting"}))
    async with bus(served, "planner") as planner:
        await planner.jetstream().publish(f"run.{run_id}.planned", payload)
    shown = await served.running.wait(run_id)
    assert shown["status"] == "failed"
    assert "planned" in shown["why"]
    assert shown["dead_letter"]
    letter = (await served.running.client.get(f"/api/dead/{shown['dead_letter']}")).json()
    assert letter["error_kind"] == "schema"
    trail = await served.running.client.get(f"/api/runs/{run_id}/events")
    assert "event: end" in trail.text
    assert (await served.running.client.get("/api/runs")).status_code == 200
    await served.running.wait(served.runs["bystander"], frozenset({"waiting"}))


async def test_the_gateway_may_not_append_a_plan(served):
    async with bus(served, "gateway") as gateway:
        refused: asyncio.Queue[Exception] = asyncio.Queue()

        async def note(error: Exception) -> None:
            await refused.put(error)

        gateway._error_cb = note
        await gateway.publish(f"run.{served.runs['bystander']}.planned", b"{}")
        async with asyncio.timeout(20):
            assert "permissions violation" in str(await refused.get()).lower()


async def test_rubbish_in_the_inbox_becomes_dead_letters_with_reasons(served):
    before = {letter["sequence"] for letter in await letters(served)}
    good = event("1", "t", "/x")
    rubbish: list[tuple[bytes, dict[str, str]]] = [
        (b"", {}),
        (b"\x00\xff\xfe" * 1000, CLOUD),
        (b"[" * 100_000, CLOUD),
        (b"null", CLOUD),
        (json.dumps({**good, "type": "frob"}).encode(), CLOUD),
        (json.dumps({**good, "data": {"issue": 3}}).encode(), CLOUD),
        (json.dumps({**good, "data": {**good["data"], "policy": {"test_commands": ["\ud800"]}}}).encode(), CLOUD),
        (json.dumps({**good, "data": {**good["data"], "policy": {"max_attempts": -1}}}).encode(), CLOUD),
        (json.dumps({**good, "data": {**good["data"], "repo": "../../etc"}}).encode(), CLOUD),
        (json.dumps({**good, "data": None, "data_base64": "%%%"}).encode(), CLOUD),
        (b"{", {"ce-specversion": "1.0", "ce-id": "%ff", "ce-source": "s", "ce-type": "agent-coder.solve-issue"}),
        (b"x" * 900_000, {"ce-specversion": "1.0"}),
    ]
    async with bus(served, "gateway") as gateway:
        for payload, headers in rubbish:
            await gateway.jetstream().publish(SUBJECT, payload, headers=headers or None)
        with pytest.raises(nats.errors.Error):
            await gateway.jetstream().publish(SUBJECT, b"x" * 9_000_000)
    found = await until(lambda: letters(served), lambda now: len({n["sequence"] for n in now} - before) >= len(rubbish))
    fresh = [letter for letter in found if letter["sequence"] not in before]
    assert len(fresh) == len(rubbish)
    assert all(letter["reason"] and letter["stream"] == "INBOX" for letter in fresh)
    replayed = await served.running.client.post(f"/api/dead/{fresh[0]['sequence']}/replay")
    assert replayed.status_code == 200, replayed.text


async def test_the_same_event_many_times_over_every_door_opens_one_run(served):
    source = str(repository(served.place / "once", ADDER))
    once = event("once", "t", source)
    binary = {"ce-specversion": "1.0", "ce-id": "once", "ce-source": "outside", "ce-type": once["type"], "content-type": "application/json"}
    client = served.running.client
    async with bus(served, "gateway") as gateway:
        for _ in range(5):
            await gateway.jetstream().publish(SUBJECT, json.dumps(once).encode(), headers=CLOUD)
            await gateway.jetstream().publish(SUBJECT, json.dumps(once["data"]).encode(), headers=binary)
    answers = [
        await client.post("/api/events", content=json.dumps(once), headers={"Content-Type": "application/cloudevents+json"})
        for _ in range(3)
    ]
    ids = {answer.json()["events"][0]["instanceId"] for answer in answers}
    assert len(ids) == 1
    await until(lambda: client.get(f"/api/runs/{next(iter(ids))}"), lambda answer: answer.status_code == 200)
    shown = await served.running.wait(next(iter(ids)))
    assert shown["status"] == "finished", shown["why"]
    events = await served.running.events(next(iter(ids)))
    assert sum(e["type"] == "run.opened" for e in events) == 1


async def test_a_bystander_is_solved_in_the_end(served):
    run_id = served.runs["bystander"]
    assert (await served.running.client.post(f"/api/runs/{run_id}/approve", json={})).status_code == 200
    await served.finished("bystander")
