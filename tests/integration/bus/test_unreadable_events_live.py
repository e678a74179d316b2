"""Events that this version cannot read stand in a journal: steps and the fold go on behind them."""

import asyncio
from datetime import UTC, datetime

import pytest

from libs.bus import Service, Step
from libs.bus.connection import Connection
from libs.bus.journal import Journal
from libs.contracts import run as events
from libs.testkit.broker import broker

UNREADABLE = [("run.r1.dreamt", b'{"run_id": "r1"}'), ("run.r1.published", b'{"run_id": "r1"}')]


@pytest.fixture
async def bus(tmp_path):
    async with broker(tmp_path / "home") as (_, settings):
        admin = await Connection.open(settings, "admin")
        yield settings, admin
        await admin.close()


def opened() -> events.RunOpened:
    return events.RunOpened(run_id="r1", issue=events.Issue(id="1", title="t"), repo="demo", opened_at=datetime.now(UTC))


def planned() -> events.RunPlanned:
    plan = events.Plan(steps=(events.PlanStep(title="do it"),))
    return events.RunPlanned(run_id="r1", attempt=1, plan=plan, repository="demo", base_branch="main", base_commit="a" * 40)


@pytest.mark.parametrize(("subject", "payload"), UNREADABLE)
async def test_a_step_appends_its_result_behind_an_event_that_it_cannot_read(bus, subject, payload):
    settings, admin = bus
    journal = Journal(admin)

    async def plan(event: events.RunOpened, step: Step) -> events.RunPlanned:
        await admin.publish(subject, payload, {}, "RUN")
        return planned()

    service = Service("planner")
    service.step("plan", on=(events.RunOpened,))(plan)
    async with service.running(settings):
        await journal.append(opened(), follows=0)
        async with asyncio.timeout(20):
            while (await journal.state("r1")).status != "editing":
                await asyncio.sleep(0.02)


@pytest.mark.parametrize(("subject", "payload"), UNREADABLE)
async def test_the_state_names_the_place_behind_an_event_that_it_cannot_read(bus, subject, payload):
    _, admin = bus
    journal = Journal(admin)
    await journal.append(opened(), follows=0)
    last = await admin.publish(subject, payload, {}, "RUN")
    state = await journal.state("r1")
    assert state.sequence == last
    assert state.opened is not None
    await journal.append(events.RunCancelled(run_id="r1", by="owner"), follows=state.sequence)
    assert (await journal.state("r1")).status == "cancelled"


async def test_a_run_that_does_not_exist_has_no_place(bus):
    _, admin = bus
    assert (await Journal(admin).state("nobody")).sequence == 0
