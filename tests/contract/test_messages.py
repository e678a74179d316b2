"""What holds for every message: one owner, one subject, and readers of another age."""

import json
import re

import pytest

from deploy.generate import PROTO
from libs.bus.subjects import matches
from libs.bus.topology import CONSUMERS, SERVICES, STREAMS, permissions, step_subjects
from libs.contracts import run, team, turn
from libs.contracts.envelope import Event, Message, Question
from libs.contracts.generate.catalogue import catalogue
from libs.contracts.registry import EVENTS, KINDS, QUESTIONS, work_event

STEPS = {
    "planner-plan": ("plan", (run.RunOpened, run.RunRejected, team.RunFollowedUp)),
    "editor-edit": ("edit", (run.RunPlanned,)),
    "verifier-verify": ("verify", (run.RunEdited,)),
    "artifact-commit": ("commit", (run.RunVerified,)),
    "forge-publish": ("publish", (run.RunCommitted,)),
    "forge-finish": ("finish", (run.RunPublished,)),
    "forge-merge": ("merge", (team.MergeApproved, team.ChecksPassed)),
    "assistant-turn": ("turn", (turn.TurnAdmitted,)),
}


def subclasses(base):
    for child in base.__subclasses__():
        yield child
        yield from subclasses(child)


def sent(event: type[Event]) -> Event:
    return event.model_validate_json((PROTO / "golden" / f"{event.type}.v{event.version}.json").read_bytes())


def test_a_subject_has_one_class_and_a_class_one_subject():
    subjects = [m.subject for m in (*EVENTS, *QUESTIONS)]
    assert len(set(subjects)) == len(subjects)
    assert len({e.type for e in EVENTS}) == len(EVENTS)
    concrete = {c for c in (*subclasses(Event), *subclasses(Question)) if c.__module__.startswith("libs.") and "subject" in vars(c)}
    assert concrete == {*EVENTS, *QUESTIONS}


@pytest.mark.parametrize("event", EVENTS, ids=lambda e: e.type)
def test_an_event_is_read_from_its_subject_by_its_class(event):
    subject = sent(event).subject_of()
    assert re.fullmatch(event.work + r"\.[A-Za-z0-9_-]+\.[a-z_]+(\.[a-z]+)?", subject)
    assert work_event(subject) is event
    assert [n for n, s in STREAMS.items() if any(matches(w, subject) for w in s["subjects"])] == [KINDS[event.work].stream]


@pytest.mark.parametrize("event", EVENTS, ids=lambda e: e.type)
def test_exactly_an_events_producers_may_append_it(event):
    subject = sent(event).subject_of()
    assert set(event.producers) <= set(SERVICES)
    assert {s for s in SERVICES if any(matches(p, subject) for p in permissions(s).publish)} == set(event.producers)


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda q: q.subject)
def test_a_question_has_one_owner_that_alone_hears_it_and_askers_that_alone_ask_it(question):
    owner = question.subject.split(".")[1]
    assert {s for s in SERVICES if any(matches(p, question.subject) for p in permissions(s).subscribe)} == {owner}
    assert {s for s in SERVICES if any(matches(p, question.subject) for p in permissions(s).publish)} == set(question.askers)
    assert set(question.askers) <= set(SERVICES)


@pytest.mark.parametrize("service", SERVICES)
def test_a_service_reads_no_inbox_and_no_consumer_of_another(service):
    allowed = permissions(service)
    others = [s for s in SERVICES if s != service]
    assert not [s for s in others if any(matches(p, f"_INBOX.{s}.x.y") for p in allowed.subscribe)]
    for consumer in CONSUMERS:
        if consumer.service != service:
            subject = f"$JS.API.CONSUMER.MSG.NEXT.{consumer.stream}.{consumer.durable}"
            assert service == "gateway" or not any(matches(p, subject) for p in allowed.publish)


@pytest.mark.parametrize("durable", STEPS)
def test_a_step_hears_all_its_events_and_a_persons_word(durable):
    step, events = STEPS[durable]
    consumer = next(c for c in CONSUMERS if c.durable == durable)
    assert set(consumer.subjects) == set(step_subjects(step, events))
    words = {"run": (run.RunApproved, run.RunRetried), "turn": (turn.TurnAnswered, turn.TurnRetried)}
    for word in words[events[0].work]:
        spoken = sent(word).model_copy(update={"step": step})
        assert any(matches(s, spoken.subject_of()) for s in consumer.subjects)


def test_every_consumer_reads_a_declared_stream_of_a_known_service():
    assert {c.service for c in CONSUMERS} <= set(SERVICES)
    assert {c.stream for c in CONSUMERS} <= set(STREAMS)
    assert len({c.durable for c in CONSUMERS}) == len(CONSUMERS)


def fillable(message: type[Message]) -> list[str]:
    return [n for n, f in message.model_fields.items() if not f.is_required()]


@pytest.mark.parametrize("name", catalogue())
def test_a_reader_ignores_what_a_newer_writer_adds(name):
    message = catalogue()[name]
    said = json.loads((PROTO / "golden" / f"{name}.json").read_text())
    assert message.model_validate(said | {"added_later": {"x": [1]}}) == message.model_validate(said)


@pytest.mark.parametrize("name", [n for n, m in catalogue().items() if fillable(m)])
def test_a_reader_fills_what_an_older_writer_did_not_know(name):
    message = catalogue()[name]
    said = json.loads((PROTO / "golden" / f"{name}.json").read_text())
    read = message.model_validate({k: v for k, v in said.items() if k not in fillable(message)})
    defaults = {n: message.model_fields[n].get_default(call_default_factory=True) for n in fillable(message)}
    assert {n: getattr(read, n) for n in fillable(message)} == defaults


@pytest.mark.parametrize("message", sorted(subclasses(Message), key=lambda m: m.__qualname__), ids=lambda m: m.__qualname__)
def test_a_field_that_may_be_null_may_be_left_out(message):
    nullable = [n for n, f in message.model_fields.items() if type(None) in getattr(f.annotation, "__args__", ())]
    assert [n for n in nullable if message.model_fields[n].is_required()] == []


@pytest.mark.parametrize("name", catalogue())
def test_a_message_is_frozen_and_tolerant(name):
    assert catalogue()[name].model_config["frozen"]
    assert catalogue()[name].model_config["extra"] == "ignore"
