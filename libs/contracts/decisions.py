"""A person's word about a run, whichever way it comes in: each function makes the event of it, or says why it is not possible now. Pure."""

from collections.abc import Sequence
from datetime import datetime, timedelta

from libs.contracts.fold import Recorded, RunState
from libs.contracts.run import (
    RunApproved,
    RunCancelled,
    RunCommitted,
    RunDenied,
    RunEdited,
    RunEvent,
    RunFailed,
    RunOpened,
    RunPlanned,
    RunPublished,
    RunRejected,
    RunRetried,
    RunVerified,
)
from libs.contracts.team import ChecksPassed, MergeApproved, RunFollowedUp
from libs.contracts.work import StepName

HANDLES: dict[StepName, tuple[type[RunEvent], ...]] = {
    "plan": (RunOpened, RunRejected, RunFollowedUp),
    "edit": (RunPlanned,),
    "verify": (RunEdited,),
    "commit": (RunVerified,),
    "publish": (RunCommitted,),
    "finish": (RunPublished,),
    "merge": (MergeApproved, ChecksPassed),
}
_CLOCK_SKEW = timedelta(seconds=2)
History = Sequence[Recorded]


class NotPossible(Exception):
    """The run is not where this word means something. `code` is for programs, `advice` says what to do instead."""

    def __init__(self, code: str, detail: str, advice: str) -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail
        self.advice = advice


def _over(state: RunState) -> NotPossible:
    return NotPossible("run-ended", f"the run is {state.status} already", "POST …/retry sends a step to work again")


def _nothing_asked(state: RunState) -> NotPossible:
    if state.ended:
        return _over(state)
    return NotPossible("nothing-to-decide", f"the run is {state.status}: it waits for nobody's word", "GET the run shows what it does")


def cancel(state: RunState, by: str, reason: str = "") -> RunCancelled:
    """A person stops the run. Raises NotPossible when it has ended."""
    if state.ended:
        raise _over(state)
    return RunCancelled(run_id=state.run_id, by=by, reason=reason)


def approve(state: RunState, by: str, comment: str = "") -> RunApproved:
    """A person says yes to the open question. Raises NotPossible when there is none."""
    if state.pending is None:
        raise _nothing_asked(state)
    return RunApproved(run_id=state.run_id, step=state.pending.step, of=state.pending.of, by=by, comment=comment)


def deny(state: RunState, by: str, comment: str = "") -> RunDenied:
    """A person says no to the open question. Raises NotPossible when there is none."""
    if state.pending is None:
        raise _nothing_asked(state)
    return RunDenied(run_id=state.run_id, step=state.pending.step, by=by, comment=comment)


def expire(state: RunState, now: datetime) -> RunFailed | None:
    """The end of a run whose question nobody answered in time; None when none is open, or a later one that still has time."""
    if state.ended or state.pending is None or state.pending.expires_at > now + _CLOCK_SKEW:
        return None
    reason = f"nobody answered in time: {state.pending.question[:500]} — retry the step to ask again"
    return RunFailed(run_id=state.run_id, reason=reason, step=state.pending.step, kind="expired", of=state.pending.of)


def retry(state: RunState, history: History, step: StepName | None, by: str, now: datetime, stuck_after: timedelta) -> RunRetried:
    """Send a step (by default the one that failed) to work again on the newest event that it handles. Raises NotPossible."""
    if state.pending is not None:
        raise NotPossible("waiting", f"the run waits for an answer: {state.pending.question[:500]}", "POST …/approve or …/deny first")
    silent = now - state.updated_at if state.updated_at else timedelta()
    if not state.ended and silent < stuck_after:
        raise NotPossible("at-work", f"the run is {state.status}, its last event is {silent.total_seconds():.0f} s old", "cancel it first")
    wanted = step or _failed_step(state)
    handled = next((r for r in reversed(history) if isinstance(r.event, HANDLES[wanted])), None)
    if handled is None:
        raise NotPossible("step-not-reached", f"the run never came to the step {wanted}", "retry from an earlier step, the first is plan")
    return RunRetried(run_id=state.run_id, step=wanted, of=handled.sequence, by=by)


def _failed_step(state: RunState) -> StepName:
    if state.failed is not None and state.failed.step is not None:
        return state.failed.step
    return state.failures[-1].step if state.failures else "plan"
