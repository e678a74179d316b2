"""What comes from outside of a step, with the services' own users: decided behind the fence, published once, in the run's trace."""

import pytest
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from libs.bus import NoJournal, Service
from libs.contracts import decisions
from libs.contracts.github import GitHubDelivery
from libs.contracts.mail import OutgoingMail
from libs.contracts.run import RunCancelled, RunEvent
from libs.contracts.team import RunCommented
from libs.telemetry import extract
from libs.testkit.broker import broker
from tests.integration.bus.test_steps_live import opened

NOW = "2026-01-01T00:00:00Z"


@pytest.fixture
async def forge(tmp_path):
    async with broker(tmp_path / "home") as (_, settings), Service("forge").running(settings) as service:
        yield service.bus


@pytest.fixture
async def mailer(tmp_path):
    async with broker(tmp_path / "home") as (_, settings), Service("mailer").running(settings) as service:
        yield service.bus


def said(key: str = "c1") -> RunCommented:
    return RunCommented(run_id="r1", by="reviewer", source="comment", text="why?", key=key)


async def test_a_word_is_decided_again_when_something_came_in_between(forge):
    await forge.journal.append(opened(), follows=0)
    seen: list[int] = []

    async def interfere() -> None:
        await forge.journal.append(said("other"), follows=seen[0])

    def decide(state, history) -> RunEvent:
        seen.append(state.sequence)
        return decisions.cancel(state, by="reviewer")

    original = forge.journal.append

    async def contended(event, **options) -> int:
        if isinstance(event, RunCancelled) and len(seen) == 1:
            await interfere()
        return await original(event, **options)

    forge.journal.append = contended
    sequence, event = await forge.decide("r1", decide)
    assert len(seen) == 2
    assert sequence == seen[1] + 1
    assert isinstance(event, RunCancelled)
    assert (await forge.journal.state("r1")).status == "cancelled"
    with pytest.raises(decisions.NotPossible, match="cancelled already"):
        await forge.decide("r1", decide)


async def test_a_word_that_changes_nothing_appends_nothing_and_one_for_nobody_says_so(forge):
    await forge.journal.append(opened(), follows=0)
    assert await forge.decide("r1", lambda state, history: None) is None
    assert len(await forge.journal.read("r1")) == 1
    with pytest.raises(NoJournal, match="r2"):
        await forge.decide("r2", lambda state, history: said())


async def test_a_word_from_outside_is_sent_in_the_trace_that_the_run_was_opened_in(forge):
    spans = InMemorySpanExporter()
    forge.telemetry._provider.add_span_processor(SimpleSpanProcessor(spans))
    with forge.telemetry.span("open") as opening:
        await forge.journal.append(opened(), follows=0)
    with forge.telemetry.span("webhook"):
        await forge.decide("r1", lambda state, history: said(), cause={"traceparent": f"00-{'1' * 32}-{'2' * 16}-01"})
    sent = next(s for s in spans.get_finished_spans() if s.name == "send run.commented")
    assert sent.get_span_context().trace_id == opening.get_span_context().trace_id
    assert f"{sent.links[0].context.trace_id:032x}" == "1" * 32
    assert extract(await forge.journal.opening("r1")).span_id == opening.get_span_context().span_id
    assert await forge.journal.opening("r2") == {}


async def test_a_hook_is_a_fact_once(forge):
    delivery = GitHubDelivery(delivery="d-1", event="ping", received_at=NOW)
    assert await forge.publish_once("HOOKS", "hook.github.d-1", delivery)
    assert not await forge.publish_once("HOOKS", "hook.github.d-1", delivery)
    assert await forge.publish_once("HOOKS", "hook.github.d-2", delivery)


async def test_a_mail_is_put_on_its_way_once(mailer):
    mail = OutgoingMail(
        id="m-1",
        run_id="r1",
        of=1,
        kind="failed",
        recipient="dev@example.org",
        message_id="<r1.1@example.org>",
        subject="s",
        text="t",
        html="<p>t</p>",
        made_at=NOW,
    )
    assert await mailer.publish_once("MAIL", "mail.out.m-1", mail)
    assert not await mailer.publish_once("MAIL", "mail.out.m-1", mail)
