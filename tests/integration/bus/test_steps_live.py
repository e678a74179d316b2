"""Delivery of steps on a real broker: one result per event, whatever happens to the worker."""

import asyncio
from datetime import UTC, datetime

import pytest

from libs.bus import NeedsHuman, Permanent, Retryable, Service, Step
from libs.bus.connection import Connection
from libs.bus.journal import Journal
from libs.contracts import run as events
from libs.contracts.fold import RunState
from libs.testkit.broker import broker

SHA = "a" * 40


def opened(run_id: str = "r1") -> events.RunOpened:
    return events.RunOpened(run_id=run_id, issue=events.Issue(id="1", title="t"), repo="demo", opened_at=datetime.now(UTC))


def planned(run_id: str = "r1") -> events.RunPlanned:
    plan = events.Plan(steps=(events.PlanStep(title="do it"),))
    return events.RunPlanned(run_id=run_id, attempt=1, plan=plan, repository="demo", base_branch="main", base_commit=SHA)


@pytest.fixture
async def bus(tmp_path):
    async with broker(tmp_path / "home") as (server, settings):
        gateway = await Connection.open(settings, "gateway")
        yield server, settings, Journal(gateway)
        await gateway.close()


async def wait_state(journal: Journal, run_id: str, *statuses: str) -> RunState:
    async with asyncio.timeout(20):
        while True:
            state = await journal.state(run_id)
            if state.status in statuses:
                return state
            await asyncio.sleep(0.02)


def planner(handler, **options) -> Service:
    service = Service("planner")
    service.step("plan", on=(events.RunOpened, events.RunRejected), **options)(handler)
    return service


async def test_a_step_appends_its_result_behind_the_event(bus):
    _, settings, journal = bus

    async def plan(event: events.RunOpened, step: Step) -> events.RunPlanned:
        assert (await step.state()).status == "planning"
        return planned(event.run_id)

    async with planner(plan).running(settings):
        first = await journal.append(opened(), follows=0)
        state = await wait_state(journal, "r1", "editing")
    history = await journal.read("r1")
    assert [type(r.event).__name__ for r in history] == ["RunOpened", "StepStarted", "RunPlanned"]
    assert history[-1].causation == first
    assert state.attempt == 1


async def test_failures_are_recorded_retried_and_end_in_the_dead_letters(bus):
    _, settings, journal = bus
    calls = 0

    async def plan(event: events.RunOpened, step: Step) -> events.RunPlanned:
        nonlocal calls
        calls += 1
        raise Retryable("the upstream is down")

    service = planner(plan, retries=2)
    async with service.running(settings):
        await journal.append(opened(), follows=0)
        state = await wait_state(journal, "r1", "failed")
        letters = await service.bus.dead_letters.list()
    assert calls == 3
    assert len(state.failures) == 2
    assert state.why == "gave up after 3 tries: the upstream is down"
    assert state.failed.dead_letter == letters[0].sequence
    assert letters[0].subject == "run.r1.opened"


async def test_a_permanent_error_fails_the_run_at_once(bus):
    _, settings, journal = bus

    async def plan(event: events.RunOpened, step: Step) -> events.RunPlanned:
        raise Permanent("no such repository")

    async with planner(plan).running(settings):
        await journal.append(opened(), follows=0)
        assert (await wait_state(journal, "r1", "failed")).why == "no such repository"


async def test_a_parked_run_goes_on_after_approval(bus):
    _, settings, journal = bus

    async def plan(event: events.RunOpened, step: Step) -> events.RunPlanned:
        if not (await step.state()).approved("plan", step.sequence):
            raise NeedsHuman("shall I?")
        return planned(event.run_id)

    async with planner(plan).running(settings):
        await journal.append(opened(), follows=0)
        state = await wait_state(journal, "r1", "waiting")
        assert state.pending.question == "shall I?"
        yes = events.RunApproved(run_id="r1", step="plan", of=state.pending.of, by="owner")
        await journal.append(yes, follows=state.sequence)
        await wait_state(journal, "r1", "editing")


async def test_cancel_stops_a_handler_in_the_middle(bus):
    _, settings, journal = bus
    begun, stopped = asyncio.Event(), asyncio.Event()

    async def plan(event: events.RunOpened, step: Step) -> events.RunPlanned:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()
        return planned(event.run_id)

    async with planner(plan).running(settings):
        await journal.append(opened(), follows=0)
        await asyncio.wait_for(begun.wait(), 10)
        state = await journal.state("r1")
        await journal.append(events.RunCancelled(run_id="r1", by="owner"), follows=state.sequence)
        await asyncio.wait_for(stopped.wait(), 10)
    assert (await journal.state("r1")).status == "cancelled"


async def test_a_worker_that_lost_its_lease_is_refused(bus):
    _, settings, journal = bus
    release, late = asyncio.Event(), asyncio.Event()
    begun = asyncio.Event()

    async def slow(event: events.RunOpened, step: Step) -> events.RunPlanned:
        begun.set()
        await release.wait()
        late.set()
        return planned(event.run_id).model_copy(update={"base_branch": "late"})

    async def quick(event: events.RunOpened, step: Step) -> events.RunPlanned:
        return planned(event.run_id)

    deaf = settings.model_copy(update={"ack_wait_seconds": 600.0})  # its heartbeat comes far too late
    async with planner(slow).running(deaf):
        await journal.append(opened(), follows=0)
        await asyncio.wait_for(begun.wait(), 10)
        async with planner(quick).running(settings):
            await wait_state(journal, "r1", "editing")
            release.set()
            await asyncio.wait_for(late.wait(), 10)
    results = [r.event for r in await journal.read("r1") if isinstance(r.event, events.RunPlanned)]
    assert [e.base_branch for e in results] == ["main"]


async def test_a_broken_event_is_buried_and_fails_its_run_alone(bus):
    _, settings, journal = bus

    async def plan(event: events.RunOpened, step: Step) -> events.RunPlanned:
        return planned(event.run_id)

    service = planner(plan)
    async with service.running(settings):
        await journal._connection.publish("run.bad.opened", b'{"run_id":"bad"}', {}, "RUN")
        await wait_state(journal, "bad", "failed")
        await journal.append(opened("good"), follows=0)
        await wait_state(journal, "good", "editing")
        letters = await service.bus.dead_letters.list()
    assert letters[0].error_kind == "schema"
    assert letters[0].payload == b'{"run_id":"bad"}'


async def test_the_editor_may_not_append_published(bus):
    _, settings, journal = bus
    sequence = await journal.append(opened(), follows=0)
    editor = await Connection.open(settings, "editor")
    published = events.RunPublished(run_id="r1", url="https://example.org/1", number=1, sha=SHA)
    with pytest.raises(Retryable):
        await asyncio.wait_for(Journal(editor).append(published, follows=sequence), 15)
    await editor.close()
    assert (await journal.state("r1")).sequence == sequence
