"""What a link of a mail says after its question was answered, in whichever way."""

from datetime import UTC, datetime, timedelta

import pytest

from libs.contracts import run as events
from libs.contracts import team
from libs.contracts.fold import Recorded, fold
from services.mailer.decisions import Link, asked, outcome

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
LINK = Link(action="approve", run_id="R1", recipient="dev@example.org", step="verify", of=1, asked=2, expires_at=NOW + timedelta(days=7))
OPENED = events.RunOpened(run_id="R1", issue=events.Issue(id="7", title="t"), repo="demo", opened_at=NOW)


def question(of: int = 1) -> events.ApprovalRequested:
    return events.ApprovalRequested(run_id="R1", step="verify", of=of, question=f"question {of}", expires_at=LINK.expires_at)


def approved(by: str) -> events.RunApproved:
    return events.RunApproved(run_id="R1", step="verify", of=1, by=by)


def said(*later: events.RunEvent, now: datetime = NOW) -> str | None:
    history = [Recorded(sequence=n, at=NOW, event=e) for n, e in enumerate((OPENED, question(), *later), 1)]
    assert asked(LINK, history) == "question 1"
    return outcome(LINK, fold(history, "R1"), history, now)


def test_it_waits():
    assert said() is None


def test_its_time_is_over():
    assert said(now=LINK.expires_at) == "the time to answer is over"


@pytest.mark.parametrize(
    ("later", "words"),
    [
        ((approved("mail:dev@example.org"),), "approved by you on 2026-03-01 at 12:00 UTC"),
        ((approved("operator"),), "approved by operator on "),
        ((approved("operator"), question(3)), "approved by operator on "),
        ((events.RunDenied(run_id="R1", step="verify", by="mail:dev@example.org"),), "denied by you on "),
        ((events.RunCancelled(run_id="R1", by="operator"),), "the run was cancelled by operator on "),
        ((events.RunFailed(run_id="R1", reason="late", kind="expired"),), "nobody answered in time, so the run ended on "),
        ((events.RunFailed(run_id="R1", reason="no disk"),), "the run failed (no disk) on "),
        ((events.RunRetried(run_id="R1", step="verify", of=1, by="operator"),), "operator sent the run to work again on "),
        (
            (team.RunFollowedUp(run_id="R1", by="reviewer", source="review", feedback="x", key="k"),),
            "reviewer sent the run to work again on ",
        ),
        ((question(3),), "the run went on without an answer; it is waiting now"),
    ],
)
def test_what_came_of_it(later, words):
    assert (said(*later) or "").startswith(words)
