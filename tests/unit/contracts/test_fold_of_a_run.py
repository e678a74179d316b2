"""The state of a run is the fold of its events: a pure function, told over whole stories."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from libs.contracts import run as events
from libs.contracts.envelope import BlobRef, Usage
from libs.contracts.fold import ENDED, Recorded, RunState, apply, fold
from libs.contracts.work import StepName, ToolCall

START = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
SHA, TREE, OTHER = "a" * 40, "b" * 40, "c" * 40
RUN = "r1"
CHANGED = (events.ChangedFile(path="nämé ☃.py", status="modified", added_lines=1, deleted_lines=1),)
FAILED = events.Verdict(ok=False, outcome="failed", reasons=("test_a passed before and fails",), feedback="AssertionError")
PASSED = events.Verdict(ok=True, outcome="passed")


def journal(*told: events.RunEvent) -> list[Recorded]:
    """The events as a journal holds them: sequences with gaps, because other runs share the stream."""
    return [
        Recorded.model_construct(sequence=i * 3, at=START + timedelta(seconds=i), causation=None, event=e) for i, e in enumerate(told, 1)
    ]


def state_after(*told: events.RunEvent) -> RunState:
    return fold(journal(*told), RUN)


def opened(**policy) -> events.RunOpened:
    issue = events.Issue(id="1", title="标题变成空")
    return events.RunOpened(run_id=RUN, issue=issue, repo="slugs", opened_at=START, policy=events.Policy(**policy))


def started(step: StepName) -> events.StepStarted:
    return events.StepStarted(run_id=RUN, step=step, of=3, delivery=1, worker="w")


def step_failed(step: StepName, error: str = "the upstream is down") -> events.StepFailed:
    return events.StepFailed(run_id=RUN, step=step, of=3, delivery=1, error=error, retry_in_seconds=1.0)


def planned(attempt: int = 1) -> events.RunPlanned:
    plan = events.Plan(steps=(events.PlanStep(title="do it"),))
    usage = Usage(input_tokens=10, calls=1)
    return events.RunPlanned(run_id=RUN, attempt=attempt, plan=plan, repository="slugs", base_branch="main", base_commit=SHA, usage=usage)


def edited(attempt: int = 1) -> events.RunEdited:
    return events.RunEdited(run_id=RUN, attempt=attempt, commit=OTHER, tree=TREE, changed_files=CHANGED)


def rejected(attempt: int = 1) -> events.RunRejected:
    return events.RunRejected(run_id=RUN, attempt=attempt, commit=OTHER, verdict=FAILED)


def verified(attempt: int = 1) -> events.RunVerified:
    return events.RunVerified(run_id=RUN, attempt=attempt, commit=OTHER, verdict=PASSED, changed_files=CHANGED)


def committed(attempt: int = 1) -> events.RunCommitted:
    return events.RunCommitted(run_id=RUN, attempt=attempt, repository="slugs", branch="fix/issue-1", sha=OTHER, message="fix(1): t")


def finished() -> events.RunFinished:
    return events.RunFinished(run_id=RUN, attempts=1, branch="fix/issue-1", sha=OTHER)


def failed(reason: str = "gave up") -> events.RunFailed:
    return events.RunFailed(run_id=RUN, reason=reason, step="edit", of=9, kind="exhausted", dead_letter=7)


def asked(step: StepName = "verify", of: int = 9) -> events.ApprovalRequested:
    return events.ApprovalRequested(run_id=RUN, step=step, of=of, question="no tests: commit?", expires_at=START + timedelta(days=7))


def approved(step: StepName = "verify", of: int = 9) -> events.RunApproved:
    return events.RunApproved(run_id=RUN, step=step, of=of, by="owner")


def replied(step: StepName, *calls: ToolCall, cost: float = 0.1) -> events.ModelReplied:
    usage = Usage(input_tokens=100, output_tokens=10, cached_tokens=5, cost_usd=cost, calls=1)
    return events.ModelReplied(run_id=RUN, step=step, of=3, call=1, model="m", tool_calls=calls, usage=usage)


def think(topic: str, arguments: str | None = None) -> ToolCall:
    return ToolCall(id="c", name="think", arguments=arguments or f'{{"topic": "{topic}", "reasoning": "因为"}}')


def test_before_the_first_event_nothing_is_known():
    state = fold([], RUN)
    assert (state.run_id, state.sequence, state.status, state.ended) == (RUN, 0, "queued", False)


@pytest.mark.parametrize(
    ("told", "status"),
    [
        ((opened(),), "queued"),
        ((opened(), started("plan")), "planning"),
        ((opened(), planned()), "editing"),
        ((opened(), planned(), edited()), "verifying"),
        ((opened(), planned(), edited(), rejected()), "planning"),
        ((opened(), planned(), edited(), verified()), "committing"),
        ((opened(), planned(), edited(), verified(), committed()), "publishing"),
        ((opened(), planned(), edited(), verified(), committed(), started("finish")), "committing"),
        ((opened(), planned(), edited(), verified(), committed(), finished()), "finished"),
        ((opened(), asked("plan")), "waiting"),
        ((opened(), failed()), "failed"),
        ((opened(), events.RunCancelled(run_id=RUN, by="owner")), "cancelled"),
        ((opened(), asked(), events.RunDenied(run_id=RUN, step="verify", by="owner")), "denied"),
    ],
)
def test_the_status_follows_the_story(told, status):
    state = state_after(*told)
    assert state.status == status
    assert state.ended == (status in ENDED)


def test_a_whole_story_with_a_second_attempt():
    story = journal(opened(), planned(), edited(), rejected(), planned(2), edited(2), verified(2), committed(2), finished())
    state = fold(story, RUN)
    assert state.status == "finished"
    assert state.attempt == 2
    assert [r.attempt for r in state.rejections] == [1]
    assert (state.edited, state.verified, state.committed) == (edited(2), verified(2), committed(2))
    assert (state.created_at, state.updated_at) == (story[0].at, story[-1].at)
    assert state.sequence == story[-1].sequence
    assert state.why == ""


def test_a_new_plan_forgets_the_results_of_the_last_attempt():
    state = state_after(opened(), planned(), edited(), rejected(), planned(2))
    assert (state.edited, state.verified) == (None, None)
    assert state.rejections == (rejected(),)


def test_a_rejection_says_why():
    assert state_after(opened(), planned(), edited(), rejected()).why == "test_a passed before and fails"


def test_an_approval_lets_exactly_its_step_and_event_pass():
    waiting = state_after(opened(), planned(), edited(), asked(of=9))
    assert (waiting.pending.step, waiting.pending.of, waiting.pending.sequence) == ("verify", 9, 12)
    assert waiting.why == "no tests: commit?"
    state = state_after(opened(), planned(), edited(), asked(of=9), approved(of=9))
    assert state.pending is None
    assert state.status == "verifying"
    assert state.approved("verify", 9)
    assert not state.approved("verify", 18)
    assert not state.approved("plan", 9)


def test_a_denial_ends_the_run_and_says_who():
    denied = events.RunDenied(run_id=RUN, step="verify", by="owner", comment="too risky")
    state = state_after(opened(), asked(), denied)
    assert (state.ended, state.pending, state.why) == (True, None, "denied by owner: too risky")


def test_a_retry_after_a_failure_takes_the_run_up_again():
    told = (opened(), planned(), step_failed("edit"), step_failed("edit", "still down"), failed())
    broken = state_after(*told)
    assert [f.error for f in broken.failures] == ["the upstream is down", "still down"]
    assert broken.failed.dead_letter == 7
    again = state_after(*told, events.RunRetried(run_id=RUN, step="edit", of=6, by="owner"))
    assert (again.status, again.failed, again.failures, again.why, again.ended) == ("editing", None, (), "", False)
    assert state_after(*told, events.RunRetried(run_id=RUN, step="edit", of=6, by="owner"), edited(), verified()).status == "committing"


def test_a_retry_counts_attempts_anew_only_when_they_were_used_up_and_forgets_no_objection():
    spent = events.RunFailed(run_id=RUN, reason="No change passed", step="plan", of=4, kind="attempts")
    again = events.RunRetried(run_id=RUN, step="plan", of=4, by="owner")
    told = (opened(), planned(), edited(), rejected())
    state = state_after(*told, spent, again)
    assert (state.retried_from, state.round_from, [r.attempt for r in state.round_rejections]) == (1, 0, [1])
    assert state_after(*told, failed(), again).retried_from == 0


def test_a_failed_try_shows_why_until_the_step_succeeds():
    assert state_after(opened(), started("plan"), step_failed("plan")).why == "the upstream is down"
    assert state_after(opened(), started("plan"), step_failed("plan"), planned()).why == ""


def test_usage_is_the_sum_of_the_recorded_replies_and_nothing_else():
    state = state_after(opened(), replied("plan"), planned(), replied("edit", cost=0.2), replied("edit", cost=0.3), edited())
    assert state.usage == Usage(input_tokens=300, output_tokens=30, cached_tokens=15, cost_usd=0.6, calls=3)


def test_thoughts_are_kept_with_the_attempt_that_they_belong_to():
    state = state_after(
        opened(),
        replied("plan", think("first plan")),
        planned(),
        replied("edit", think("first edit"), ToolCall(id="d", name="read", arguments="{}")),
        edited(),
        rejected(),
        replied("plan", think("second plan")),
        planned(2),
        replied("edit", think("second edit")),
    )
    assert [(t.attempt, t.topic) for t in state.thoughts] == [(1, "first plan"), (1, "first edit"), (2, "second plan"), (2, "second edit")]


@pytest.mark.parametrize("arguments", ["", "{", "null", '{"topic": 1}', '{"topic": "x"}', '["topic"]'])
def test_a_malformed_thought_is_left_out_and_paid_for(arguments):
    state = state_after(opened(), replied("edit", think("x", arguments or " ")))
    assert state.thoughts == ()
    assert state.usage.calls == 1


def test_an_event_of_an_unknown_kind_moves_only_the_place():
    class RunDreamt(events.RunEvent):
        pass

    before, after = state_after(opened(), planned()), state_after(opened(), planned(), RunDreamt(run_id=RUN))
    assert after.sequence == 9
    assert after == before.model_copy(update={"sequence": 9, "updated_at": after.updated_at})


def test_the_fold_leaves_its_input_alone():
    state = state_after(opened())
    copy = state.model_copy(deep=True)
    apply(state, journal(opened(), failed())[1])
    assert state == copy


@pytest.mark.parametrize("time", ["2026-01-02T03:04:05", datetime(2026, 1, 2)])
def test_a_time_without_a_zone_is_refused(time):
    with pytest.raises(ValidationError, match="use UTC"):
        events.RunOpened(run_id=RUN, issue=events.Issue(id="1", title="t"), repo="slugs", opened_at=time)


@pytest.mark.parametrize("run_id", ["", "a.b", "*", ">", "a b", "修复", "x" * 65, "a\n"])
def test_a_run_id_that_is_no_subject_token_is_refused(run_id):
    with pytest.raises(ValidationError):
        events.RunCancelled(run_id=run_id, by="owner")


def test_bytes_and_references_come_back_from_json():
    reply = events.ModelReplied(
        run_id=RUN, step="edit", of=3, call=1, model="m", overflow=BlobRef(sha256="0" * 64, size=70_000), content="好"
    )
    assert events.ModelReplied.model_validate_json(reply.model_dump_json(exclude_none=True)) == reply


STORIES = st.lists(
    st.sampled_from(
        [
            opened(),
            started("plan"),
            step_failed("edit"),
            planned(),
            planned(2),
            edited(),
            rejected(),
            verified(),
            committed(),
            finished(),
            failed(),
            asked(),
            approved(),
            replied("edit", think("x")),
            events.RunRetried(run_id=RUN, step="edit", of=6, by="owner"),
            events.RunCancelled(run_id=RUN, by="owner"),
            events.ToolStarted(run_id=RUN, step="edit", of=3, call_id="c", tool="exec"),
        ]
    ),
    max_size=25,
)


@given(STORIES, st.data())
def test_a_fold_may_be_taken_up_anywhere(told, data):
    story = journal(*told)
    cut = data.draw(st.integers(0, len(story)))
    state = fold(story[:cut], RUN)
    for recorded in story[cut:]:
        state = apply(state, recorded)
    assert state == fold(story, RUN)


@given(STORIES)
def test_a_waiting_run_has_a_question_an_ended_one_has_none_and_a_state_survives_the_wire(told):
    state = state_after(*told)
    assert state.status != "waiting" or state.pending is not None
    assert not state.ended or state.pending is None
    assert RunState.model_validate_json(state.model_dump_json(exclude_none=True)) == state
