"""The state of a run: the fold of its events, in stream order. Pure; the only reading of a run's journal that counts."""

from collections.abc import Callable, Iterable
from functools import reduce
from typing import Any, Literal

from pydantic import Field

from libs.contracts import run as events
from libs.contracts import team
from libs.contracts.envelope import Message, Time, Usage
from libs.contracts.work import StepName, WorkEvent

RunStatus = Literal[
    "queued", "planning", "editing", "verifying", "committing", "publishing", "waiting", "finished", "failed", "cancelled", "denied"
]
ENDED: frozenset[RunStatus] = frozenset({"finished", "failed", "cancelled", "denied"})
_ACTIVE: dict[str, RunStatus] = {
    "plan": "planning",
    "edit": "editing",
    "verify": "verifying",
    "commit": "committing",
    "finish": "committing",
    "publish": "publishing",
    "merge": "publishing",
}


class Recorded(Message):
    """An event with its place in the journal."""

    sequence: int
    at: Time
    causation: int | None = None
    event: WorkEvent


class Thought(Message):
    """A `think` record: why something was done, shown to the next attempt."""

    attempt: int
    topic: str
    reasoning: str


class PendingApproval(Message):
    """The question that a run waits for."""

    step: StepName
    of: int
    question: str
    sequence: int
    expires_at: Time


class Failure(Message):
    """A failed try of a step."""

    step: StepName
    of: int
    error: str
    at: Time


class Comment(Message):
    """Words for the run, and where they stand in its journal."""

    sequence: int
    event: team.RunCommented


class RunState(Message):
    """Everything that is known of a run."""

    run_id: str
    status: RunStatus = "queued"
    opened: events.RunOpened | None = None
    created_at: Time | None = None
    updated_at: Time | None = None
    sequence: int = 0
    attempt: int = 0
    planned: events.RunPlanned | None = None
    edited: events.RunEdited | None = None
    verified: events.RunVerified | None = None
    rejections: tuple[events.RunRejected, ...] = ()
    committed: events.RunCommitted | None = None
    published: events.RunPublished | None = None
    finished: events.RunFinished | None = None
    failed: events.RunFailed | None = None
    pending: PendingApproval | None = None
    approvals: tuple[events.RunApproved, ...] = ()
    failures: tuple[Failure, ...] = ()
    thoughts: tuple[Thought, ...] = ()
    follow_ups: tuple[team.RunFollowedUp, ...] = ()
    comments: tuple[Comment, ...] = ()
    notifications: tuple[team.RunNotified, ...] = ()
    replies: tuple[team.ReplyReceived, ...] = ()
    merge_approvals: tuple[team.MergeApproved, ...] = ()
    checks_passed: tuple[str, ...] = Field(default=(), description="the commits that the repository's own checks passed")
    merged: team.RunMerged | None = None
    closed: bool = False
    round_from: int = Field(default=0, description="attempts that were made before the newest follow-up")
    retried_from: int = Field(
        default=0, description="attempts that were made before a person's newest retry of a run that had used them up"
    )
    seen_to: int = Field(default=0, description="sequence of the newest plan: its editing step sees the comments before it")
    usage: Usage = Usage()
    why: str = ""

    @property
    def ended(self) -> bool:
        """Whether nothing more happens unless a person asks for it."""
        return self.status in ENDED

    @property
    def unseen(self) -> tuple[team.RunCommented, ...]:
        """The comments that came too late for the newest plan."""
        return tuple(c.event for c in self.comments if c.sequence > self.seen_to)

    @property
    def round_rejections(self) -> tuple[events.RunRejected, ...]:
        """The rejected attempts since the newest follow-up."""
        return tuple(r for r in self.rejections if r.attempt > self.round_from)

    def approved(self, step: StepName, of: int) -> bool:
        """Whether a person said yes to `step` while it handled the event `of`."""
        return any(a.step == step and a.of == of for a in self.approvals)


def fold(recorded: Iterable[Recorded], run_id: str) -> RunState:
    """The state after all of `recorded`, which must be one run's events in stream order."""
    return reduce(apply, recorded, RunState(run_id=run_id))


def apply(state: RunState, recorded: Recorded) -> RunState:
    """The state after one more event; an event of an unknown kind moves only the sequence."""
    changes: dict[str, Any] = {"sequence": recorded.sequence, "updated_at": recorded.at}
    handler = _APPLY.get(type(recorded.event))
    if handler is not None:
        changes |= handler(state, recorded)
    return state.model_copy(update=changes)


Change = dict[str, Any]


def _opened(_: RunState, r: Recorded) -> Change:
    return {"opened": r.event, "created_at": r.at, "status": "queued"}


def _step_started(_: RunState, r: Recorded) -> Change:
    assert isinstance(r.event, events.StepStarted)
    return {"status": _ACTIVE[r.event.step]}


def _step_failed(state: RunState, r: Recorded) -> Change:
    e = r.event
    assert isinstance(e, events.StepFailed)
    failure = Failure(step=e.step, of=e.of, error=e.error, at=r.at)
    return {"failures": (*state.failures, failure), "why": e.error}


def _planned(_: RunState, r: Recorded) -> Change:
    assert isinstance(r.event, events.RunPlanned)
    cleared = {"edited": None, "verified": None, "why": "", "seen_to": r.sequence}
    return {"planned": r.event, "attempt": r.event.attempt, "status": "editing", **cleared}


def _edited(_: RunState, r: Recorded) -> Change:
    return {"edited": r.event, "status": "verifying", "why": ""}


def _verified(_: RunState, r: Recorded) -> Change:
    return {"verified": r.event, "status": "committing", "why": ""}


def _rejected(state: RunState, r: Recorded) -> Change:
    e = r.event
    assert isinstance(e, events.RunRejected)
    return {"rejections": (*state.rejections, e), "status": "planning", "why": "; ".join(e.verdict.reasons) or e.verdict.outcome}


def _committed(_: RunState, r: Recorded) -> Change:
    return {"committed": r.event, "status": "publishing", "why": ""}


def _published(_: RunState, r: Recorded) -> Change:
    return {"published": r.event, "closed": False, "why": ""}


def _follow_up(state: RunState, r: Recorded) -> Change:
    assert isinstance(r.event, team.RunFollowedUp)
    cleared = {"finished": None, "failed": None, "pending": None, "failures": ()}
    return {**cleared, "follow_ups": (*state.follow_ups, r.event), "round_from": state.attempt, "status": "planning", "why": ""}


def _commented(state: RunState, r: Recorded) -> Change:
    assert isinstance(r.event, team.RunCommented)
    if any(c.event.key == r.event.key for c in state.comments):
        return {}
    return {"comments": (*state.comments, Comment(sequence=r.sequence, event=r.event))}


def _notified(state: RunState, r: Recorded) -> Change:
    return {"notifications": (*state.notifications, r.event)}


def _reply_received(state: RunState, r: Recorded) -> Change:
    return {"replies": (*state.replies, r.event)}


def _merge_approved(state: RunState, r: Recorded) -> Change:
    e = r.event
    assert isinstance(e, team.MergeApproved)
    others = (a for a in state.merge_approvals if a.by != e.by)
    return {"merge_approvals": (*others, e)}


def _merge_withdrawn(state: RunState, r: Recorded) -> Change:
    e = r.event
    assert isinstance(e, team.MergeWithdrawn)
    return {"merge_approvals": tuple(a for a in state.merge_approvals if a.by != e.by)}


def _checks_passed(state: RunState, r: Recorded) -> Change:
    assert isinstance(r.event, team.ChecksPassed)
    return {"checks_passed": (*(sha for sha in state.checks_passed if sha != r.event.sha), r.event.sha)}


def _merged(_: RunState, r: Recorded) -> Change:
    return {"merged": r.event}


def _closed(_: RunState, __: Recorded) -> Change:
    return {"closed": True}


def _approval_requested(_: RunState, r: Recorded) -> Change:
    e = r.event
    assert isinstance(e, events.ApprovalRequested)
    pending = PendingApproval(step=e.step, of=e.of, question=e.question, sequence=r.sequence, expires_at=e.expires_at)
    return {"pending": pending, "status": "waiting", "why": e.question}


def _approved(state: RunState, r: Recorded) -> Change:
    assert isinstance(r.event, events.RunApproved)
    return {"approvals": (*state.approvals, r.event), "pending": None, "status": _ACTIVE[r.event.step], "why": ""}


def _denied(_: RunState, r: Recorded) -> Change:
    e = r.event
    assert isinstance(e, events.RunDenied)
    return {"pending": None, "status": "denied", "why": f"denied by {e.by}" + (f": {e.comment}" if e.comment else "")}


def _retried(state: RunState, r: Recorded) -> Change:
    assert isinstance(r.event, events.RunRetried)
    again: Change = {"retried_from": state.attempt} if state.failed is not None and state.failed.kind == "attempts" else {}
    return {**again, "failed": None, "finished": None, "pending": None, "failures": (), "status": _ACTIVE[r.event.step], "why": ""}


def _failed(_: RunState, r: Recorded) -> Change:
    assert isinstance(r.event, events.RunFailed)
    return {"failed": r.event, "status": "failed", "pending": None, "why": r.event.reason}


def _cancelled(_: RunState, r: Recorded) -> Change:
    e = r.event
    assert isinstance(e, events.RunCancelled)
    return {"status": "cancelled", "pending": None, "why": f"cancelled by {e.by}" + (f": {e.reason}" if e.reason else "")}


def _finished(_: RunState, r: Recorded) -> Change:
    return {"finished": r.event, "status": "finished", "pending": None, "why": ""}


def _model_replied(state: RunState, r: Recorded) -> Change:
    e = r.event
    assert isinstance(e, events.ModelReplied)
    attempt = state.attempt + 1 if e.step == "plan" else max(state.attempt, 1)  # a plan begins the next attempt
    thoughts = tuple(t for c in e.tool_calls if c.name == "think" and (t := _thought(attempt, c.arguments)))
    return {"usage": state.usage + e.usage, "thoughts": (*state.thoughts, *thoughts)}


class _ThinkArguments(Message):
    topic: str
    reasoning: str


def _thought(attempt: int, arguments: str) -> Thought | None:
    try:
        said = _ThinkArguments.model_validate_json(arguments)
    except ValueError:
        return None
    return Thought(attempt=attempt, topic=said.topic, reasoning=said.reasoning)


_APPLY: dict[type[WorkEvent], Callable[[RunState, Recorded], Change]] = {
    events.RunOpened: _opened,
    events.StepStarted: _step_started,
    events.StepFailed: _step_failed,
    events.RunPlanned: _planned,
    events.RunEdited: _edited,
    events.RunVerified: _verified,
    events.RunRejected: _rejected,
    events.RunCommitted: _committed,
    events.RunPublished: _published,
    events.ApprovalRequested: _approval_requested,
    events.RunApproved: _approved,
    events.RunDenied: _denied,
    events.RunRetried: _retried,
    events.RunFailed: _failed,
    events.RunCancelled: _cancelled,
    events.RunFinished: _finished,
    events.ModelReplied: _model_replied,
    team.RunFollowedUp: _follow_up,
    team.RunCommented: _commented,
    team.RunNotified: _notified,
    team.ReplyReceived: _reply_received,
    team.MergeApproved: _merge_approved,
    team.MergeWithdrawn: _merge_withdrawn,
    team.ChecksPassed: _checks_passed,
    team.RunMerged: _merged,
    team.RunClosed: _closed,
}
