"""CloudEvents in, over HTTP and over the bus: one run for each event, nothing lost, nothing in the way of others."""

import base64
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from libs.contracts.run import ApprovalRequested, RunApproved, RunFailed, RunPlanned
from services.gateway import cloud_events, handlers
from tests.unit.gateway import stories
from tests.unit.gateway.fake_bus import FakeBus, FakeDelivery

DATA: dict[str, Any] = {"issue": {"id": "7", "title": "修复"}, "repo": "team/app"}
EVENT: dict[str, Any] = {
    "specversion": "1.0",
    "id": "e-1",
    "source": "https://ci.example.org/a.b",
    "type": "agent-coder.solve-issue",
    "data": DATA,
}
BINARY = {"ce-specversion": "1.0", "ce-id": "e-1", "ce-source": "https://ci.example.org/a.b", "ce-type": "agent-coder.solve-issue"}
JSON = {"content-type": "application/json"}
STRUCTURED = {"content-type": "application/cloudevents+json; charset=utf-8"}


async def send(client: httpx.AsyncClient, body: Any, headers: dict[str, str]) -> httpx.Response:
    return await client.post("/api/events", content=body if isinstance(body, bytes) else json.dumps(body), headers=headers)


async def taken_in(bus: FakeBus) -> list[FakeDelivery]:
    """Everything on INBOX, delivered."""
    deliveries = [FakeDelivery(m.subject, m.payload, m.headers) for m in bus.messages["INBOX"]]
    for delivery in deliveries:
        await handlers.take_in(bus, delivery)  # type: ignore[arg-type]  # a fake delivery
    return deliveries


@pytest.mark.parametrize(
    ("body", "headers"),
    [(EVENT, STRUCTURED), (EVENT, JSON), ([EVENT], {"content-type": "application/cloudevents-batch+json"}), (DATA, JSON | BINARY)],
)
async def test_an_event_in_any_mode_is_stored_and_opens_its_run(
    client: httpx.AsyncClient, bus: FakeBus, body: Any, headers: dict[str, str]
) -> None:
    answer = await send(client, body, headers)
    assert answer.status_code == 202
    (accepted,) = answer.json()["events"]
    assert (accepted["id"], accepted["sequence"]) == ("e-1", 1)
    (message,) = bus.messages["INBOX"]
    assert len(message.subject.split(".")) == 3
    (delivery,) = await taken_in(bus)
    assert delivery.settled == "ack"
    opened = (await bus.journal.state(accepted["instanceId"])).opened
    assert opened is not None
    assert (opened.issue.title, opened.origin, opened.requested_by) == ("修复", "event", EVENT["source"])


async def test_the_same_event_twice_opens_one_run(client: httpx.AsyncClient, bus: FakeBus) -> None:
    first, second = await send(client, EVENT, STRUCTURED), await send(client, DATA, JSON | BINARY)
    assert first.json()["events"][0]["instanceId"] == second.json()["events"][0]["instanceId"]
    assert {d.settled for d in await taken_in(bus)} == {"ack"}
    assert len(bus.messages["RUN"]) == 1
    assert not bus.letters.all


async def test_events_of_other_sources_or_ids_are_other_runs(client: httpx.AsyncClient, bus: FakeBus) -> None:
    batch = [EVENT, EVENT | {"id": "e-2"}, EVENT | {"source": "other"}]
    answer = await send(client, batch, {"content-type": "application/cloudevents-batch+json"})
    assert len({e["instanceId"] for e in answer.json()["events"]}) == 3


@pytest.mark.parametrize(
    ("body", "headers", "words"),
    [
        (b"", STRUCTURED, "not JSON"),
        (b"\xff", STRUCTURED, "not JSON"),
        (b"[" * 90_000, STRUCTURED, "not JSON"),
        ({}, STRUCTURED, "event 0: specversion"),
        ("text", JSON, "event 0"),
        ([], JSON, "between 1 and 100"),
        ([EVENT] * 101, JSON, "between 1 and 100"),
        ([EVENT], STRUCTURED, "one event"),
        ([EVENT, EVENT | {"id": ""}], JSON, "event 1: id"),
        (EVENT | {"specversion": "0.3"}, STRUCTURED, "specversion"),
        (EVENT | {"datacontenttype": "text/xml"}, STRUCTURED, "only JSON data"),
        (DATA, JSON | {"ce-specversion": "1.0"}, "id"),
        (b"{broken", JSON | BINARY, "not JSON"),
    ],
)
async def test_what_is_no_event_is_refused_in_words(
    client: httpx.AsyncClient, bus: FakeBus, body: Any, headers: dict[str, str], words: str
) -> None:
    answer = await send(client, body, headers)
    assert answer.status_code == 422
    assert words in answer.json()["detail"]
    assert not bus.messages["INBOX"]


@pytest.mark.parametrize(
    ("payload", "headers", "words"),
    [
        (b"", {}, "not JSON"),
        (b"\xff\xfe", {}, "not JSON"),
        ({"hello": 1}, {}, "specversion"),
        (EVENT | {"type": "com.example.unknown"}, {}, "com.example.unknown"),
        (EVENT | {"data": None}, {}, "data"),
        (EVENT | {"data": {"issue": {"id": "7", "title": ""}, "repo": "x"}}, {}, "title"),
        (EVENT | {"data": {"issue": {"id": "7", "title": " "}, "repo": "x"}}, {}, "issue.title must not be empty"),
        (EVENT | {"data": DATA | {"repo": "ext::sh -c id"}}, {}, "repo must be a URL"),
        (EVENT | {"data": DATA | {"base": "-x"}}, {}, "base"),
        (EVENT | {"data": DATA | {"policy": {"max_attempts": 99}}}, {}, "max_attempts"),
        (EVENT | {"data": None, "data_base64": "%%%"}, {}, "base64"),
        (b"not json", BINARY, "not JSON"),
        (DATA, {"ce-specversion": "1.0"}, "id"),
    ],
)
async def test_what_cannot_be_understood_goes_to_the_dead_letters_and_the_next_one_is_served(
    bus: FakeBus, payload: Any, headers: dict[str, str], words: str
) -> None:
    broken, good = FakeDelivery("inbound.a.b", payload, headers), FakeDelivery("inbound.a.b", EVENT)
    for delivery in (broken, good):
        await handlers.take_in(bus, delivery)  # type: ignore[arg-type]  # a fake delivery
        assert delivery.settled == "ack"
    ((letter, kept),) = bus.letters.all.values()
    assert words in letter.reason
    assert (letter.payload, kept, letter.error_kind) == (broken.payload, headers, "schema")
    assert len(bus.messages["RUN"]) == 1


@pytest.mark.parametrize(
    ("payload", "headers"),
    [
        (EVENT, {}),
        (EVENT, {"content-type": "application/cloudevents+json"}),
        (EVENT | {"data": json.dumps(DATA)}, {}),
        (EVENT | {"data": None, "data_base64": base64.b64encode(json.dumps(DATA).encode()).decode()}, {}),
        (DATA, BINARY),
        (DATA, {k.upper(): v for k, v in BINARY.items()} | {"Content-Type": "application/json"}),
        (DATA, BINARY | {"ce-source": "https://ci.example.org/%61.b"}),
    ],
)
async def test_an_event_from_the_bus_is_the_same_in_every_mode(bus: FakeBus, payload: Any, headers: dict[str, str]) -> None:
    await handlers.take_in(bus, FakeDelivery("inbound.ci.solve", payload, headers))  # type: ignore[arg-type]  # a fake delivery
    expected = cloud_events.run_id_of(cloud_events.checked(EVENT))
    assert expected is not None
    assert bus.events_of(expected) == ["opened"]
    assert not bus.letters.all


def timer(of: int | None, run_id: str = "r1") -> FakeDelivery:
    return FakeDelivery(f"due.{run_id}.approval", {"id": run_id, "name": "approval", "of": of}, stream="TIMERS")


async def test_a_question_that_nobody_answered_ends_the_run(bus: FakeBus) -> None:
    delivery = timer(stories.waiting(bus, hours=-1))
    await handlers.expire(bus, delivery)  # type: ignore[arg-type]  # a fake delivery
    state = await bus.journal.state("r1")
    assert (delivery.settled, state.status) == ("ack", "failed")
    assert state.failed is not None
    assert (state.failed.kind, state.failed.step, state.failed.of) == ("expired", "edit", 2)
    again = timer(3)
    await handlers.expire(bus, again)  # type: ignore[arg-type]  # a fake delivery
    assert (again.settled, bus.events_of("r1").count("failed")) == ("ack", 1)


async def test_a_late_timer_changes_nothing(bus: FakeBus) -> None:
    question = stories.waiting(bus, hours=-1)
    bus.add(RunApproved(run_id="r1", step="edit", of=2, by="kim"))
    before = bus.events_of("r1")
    for delivery in (timer(question), timer(3, "nobody"), FakeDelivery("due.x.approval", b"nonsense")):
        await handlers.expire(bus, delivery)  # type: ignore[arg-type]  # a fake delivery
        assert delivery.settled == "ack"
    assert bus.events_of("r1") == before


async def test_a_timer_of_an_earlier_question_leaves_the_newer_one_open(bus: FakeBus) -> None:
    stories.waiting(bus)
    bus.add(RunApproved(run_id="r1", step="edit", of=2, by="kim"))
    expires = datetime.now(UTC) + timedelta(days=1)
    bus.add(ApprovalRequested(run_id="r1", step="edit", of=2, question="And this?", expires_at=expires))
    await handlers.expire(bus, timer(3))  # type: ignore[arg-type]  # a fake delivery
    assert (await bus.journal.state("r1")).status == "waiting"


def advisory(sequence: int, stream: str = "RUN") -> FakeDelivery:
    body = {"stream": stream, "consumer": "editor-edit", "stream_seq": sequence, "deliveries": 20}
    return FakeDelivery("$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.RUN.editor-edit", body, stream="ADVISORIES")


async def test_what_the_server_gave_up_is_a_dead_letter_and_the_end_of_its_run(bus: FakeBus) -> None:
    bus.add(stories.opened())
    of = bus.add(stories.planned())
    await handlers.mourn(bus, advisory(of))  # type: ignore[arg-type]  # a fake delivery
    ((letter, _),) = bus.letters.all.values()
    assert (letter.error_kind, letter.consumer, letter.stream_sequence) == ("advisory", "editor-edit", of)
    assert RunPlanned.model_validate_json(letter.payload).attempt == 1
    state = await bus.journal.state("r1")
    assert state.failed is not None
    assert (state.failed.kind, state.failed.dead_letter) == ("exhausted", 1)


async def test_an_advisory_about_a_step_that_did_finish_ends_nothing(bus: FakeBus) -> None:
    bus.add(stories.opened())
    of = bus.add(stories.planned())
    bus.add(stories.edited(), causation=of)
    for delivery in (advisory(of), advisory(999), advisory(1, "KV_BUDGET"), FakeDelivery("$JS.EVENT", b"nonsense")):
        await handlers.mourn(bus, delivery)  # type: ignore[arg-type]  # a fake delivery
        assert delivery.settled == "ack"
    assert bus.events_of("r1") == ["opened", "planned", "edited"]


async def test_dead_letters_are_listed_shown_and_removed(client: httpx.AsyncClient, bus: FakeBus) -> None:
    for number in range(3):
        await handlers.take_in(bus, FakeDelivery("inbound.a.b", f"broken {number}".encode()))  # type: ignore[arg-type]  # a fake delivery
    page = (await client.get("/api/dead?limit=2")).json()
    assert ([letter["sequence"] for letter in page["letters"]], page["next_after"]) == ([1, 2], 2)
    shown = (await client.get("/api/dead/3")).json()
    assert base64.b64decode(shown["payload"]) == b"broken 2"
    assert (await client.delete("/api/dead/3")).status_code == 204
    for gone in (await client.get("/api/dead/3"), await client.delete("/api/dead/3"), await client.post("/api/dead/3/replay")):
        assert (gone.status_code, gone.json()["next"]) == (404, "GET /api/dead lists them")
    assert (await client.get("/api/dead/x")).status_code == 422


async def test_a_dead_fact_from_outside_is_put_back_as_it_came(client: httpx.AsyncClient, bus: FakeBus) -> None:
    await handlers.take_in(bus, FakeDelivery("inbound.a.b", b"broken", BINARY))  # type: ignore[arg-type]  # a fake delivery
    assert (await client.post("/api/dead/1/replay")).json() == {"sequence": 1, "stream": "INBOX"}
    (back,) = bus.messages["INBOX"]
    assert (back.subject, back.payload, back.headers) == ("inbound.a.b", b"broken", BINARY)
    assert not bus.letters.all


async def test_a_dead_step_is_sent_back_to_the_event_that_it_died_on(client: httpx.AsyncClient, bus: FakeBus) -> None:
    bus.add(stories.opened())
    of = bus.add(stories.planned())
    await handlers.mourn(bus, advisory(of))  # type: ignore[arg-type]  # a fake delivery
    assert (await client.post("/api/dead/1/replay")).json()["stream"] == "RUN"
    state = await bus.journal.state("r1")
    assert (state.status, bus.events_of("r1")[-1]) == ("editing", "retried.edit")
    assert not bus.letters.all


async def test_a_letter_of_a_run_that_is_at_work_again_is_not_replayed(client: httpx.AsyncClient, bus: FakeBus) -> None:
    bus.add(stories.opened())
    of = bus.add(stories.planned())
    await handlers.mourn(bus, advisory(of))  # type: ignore[arg-type]  # a fake delivery
    await client.post("/api/runs/r1/retry?from=edit")
    assert (await client.post("/api/dead/1/replay")).json()["code"] == "at-work"
    bus.add(RunFailed(run_id="r1", reason="again", step="edit"))
    await handlers.mourn(bus, advisory(3, "KV_BUDGET"))  # type: ignore[arg-type]  # a fake delivery
    assert (await client.post("/api/dead/2/replay")).json()["code"] == "not-replayable"
