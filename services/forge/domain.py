"""Decisions about a run when something happened on GitHub. Pure: each makes the event that follows, or None when there is nothing to add.

Every decision finds what it made before, so a delivery that comes again adds nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from libs.bus import Decide
from libs.contracts.fold import Recorded, RunState
from libs.contracts.github import GitHubDelivery
from libs.contracts.run import RunEvent
from libs.contracts.team import (
    TEXT,
    ChecksPassed,
    MergeApproved,
    MergeWithdrawn,
    RunClosed,
    RunCommented,
    RunFollowedUp,
    RunMerged,
)
from services.forge.clients import Review, ReviewComment

CHECKS = frozenset({"check_run", "check_suite", "workflow_run", "status"})
_DECISIVE = frozenset({"APPROVED", "CHANGES_REQUESTED", "DISMISSED"})
_SKEW = timedelta(seconds=2)


@dataclass(frozen=True)
class Word:
    """Words for a run. The same `key` is the same word."""

    by: str
    source: Literal["review", "review_comment", "check", "comment"]
    text: str
    url: str
    key: str


def person(login: str) -> str:
    """How events name a GitHub user; logins know no case."""
    return f"github:{login.lower()}"


def is_bot(login: str, kind: str) -> bool:
    """Whether a program sent it."""
    return kind == "Bot" or login.lower().endswith("[bot]")


def heard(fact: GitHubDelivery, login: str) -> bool:
    """Whether an event counts: what the App (its user is `login`) or another program did does not, except what only tells a state."""
    if fact.event in CHECKS or (fact.event == "pull_request_review" and fact.action == "dismissed"):
        return True
    if fact.event == "pull_request":
        return fact.sender.lower() != login.lower()
    return not is_bot(fact.sender, fact.sender_type)


def open_pull(state: RunState) -> bool:
    """Whether the run has a pull request that somebody may still add to."""
    return state.published is not None and state.merged is None and not state.closed


def hand_over(word: Word) -> Decide:
    """A comment while the run is at work, a follow-up when it is over and its pull request is open."""

    def decide(state: RunState, _: Sequence[Recorded]) -> RunEvent | None:
        known = {c.event.key for c in state.comments} | {f.key for f in state.follow_ups}
        if word.key in known or not word.text.strip():
            return None
        about = {"run_id": state.run_id, "by": word.by, "source": word.source, "url": word.url or None, "key": word.key}
        if not state.ended:
            return RunCommented.model_validate(about | {"text": word.text[:TEXT]})
        return RunFollowedUp.model_validate(about | {"feedback": word.text[:TEXT]}) if open_pull(state) else None

    return decide


def standing(reviews: Sequence[Review], login: str) -> Review | None:
    """The review of a person that counts: the newest one that is more than a comment."""
    theirs = [r for r in reviews if r.login.lower() == login.lower() and r.state in _DECISIVE]
    return theirs[-1] if theirs else None


def weigh(review: Review | None, login: str, *, may_approve: bool) -> Decide:
    """A person's approval as it stands now, for the very commit that was reviewed; nobody approves what they asked for."""
    by = person(login)

    def decide(state: RunState, _: Sequence[Recorded]) -> RunEvent | None:
        given = next((a for a in state.merge_approvals if a.by == by), None)
        if review is None or review.state != "APPROVED" or not may_approve or _asked(state, by):
            return MergeWithdrawn(run_id=state.run_id, by=by) if given else None
        if not open_pull(state) or not review.sha or (given is not None and given.sha == review.sha):
            return None
        return MergeApproved(run_id=state.run_id, by=by, sha=review.sha, url=review.url or None)

    return decide


def _asked(state: RunState, by: str) -> bool:
    return state.opened is not None and state.opened.requested_by == by


def feedback_of(review: Review, comments: Sequence[ReviewComment]) -> str:
    """What a review asks for: its own words, then each comment under the place that it is about."""
    places = (f"{c.path}:{c.line}" if c.line else c.path for c in comments)
    parts = [review.body.strip(), *(f"{place}\n{c.body.strip()}" for place, c in zip(places, comments, strict=True) if c.body.strip())]
    return "\n\n".join(p for p in parts if p)


def passed(sha: str) -> Decide:
    """The checks of a commit are green."""

    def decide(state: RunState, _: Sequence[Recorded]) -> RunEvent | None:
        known = sha in state.checks_passed or not open_pull(state)
        return None if known else ChecksPassed(run_id=state.run_id, sha=sha)

    return decide


def tired(state: RunState) -> bool:
    """Whether checks alone have sent the run to work as often as its policy allows, with no person in between."""
    limit = state.opened.policy.max_attempts if state.opened else 1
    return len(state.follow_ups) >= limit and all(f.source == "check" for f in state.follow_ups[-limit:])


def ended_by_hand(fact: GitHubDelivery) -> Decide:
    """A person merged or closed the pull request."""
    by = person(fact.sender)

    def decide(state: RunState, _: Sequence[Recorded]) -> RunEvent | None:
        if not open_pull(state):
            return None
        if fact.merged and fact.sha:
            return RunMerged(run_id=state.run_id, sha=fact.sha, merge_sha=fact.merge_sha or None, by=(by,))
        return RunClosed(run_id=state.run_id, by=by)

    return decide


def said(history: Sequence[Recorded], kind: type[RunEvent], by: str, since: datetime) -> bool:
    """Whether a person's word of this kind is on the journal since a moment: the delivery was handled before."""
    return any(isinstance(r.event, kind) and getattr(r.event, "by", "") == by and r.at >= since - _SKEW for r in history)
