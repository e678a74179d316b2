"""What mails say, made of states: which events are news, the words, and that nothing of others becomes markup."""

from datetime import UTC, datetime
from html.parser import HTMLParser

import pytest

from libs.contracts import run as events
from libs.contracts import team
from libs.contracts.envelope import Usage
from libs.contracts.fold import Recorded, RunState, fold
from services.mailer import letters, templates
from services.mailer.letters import Topic, Ways
from services.mailer.notify import recipients

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
SHA = "a" * 40
WAYS = Ways("https://coder.example.org/", "https://coder.example.org/yes", "https://coder.example.org/no", "https://coder.example.org/off")
EVIL = '<img src="https://evil.example/x.png" onerror=alert(1)> & "quotes" 修复'


def opened(**fields) -> events.RunOpened:
    whole = {"issue": events.Issue(id="7", title="parse fails"), "repo": "demo", "opened_at": NOW, **fields}
    return events.RunOpened(run_id="R1", **whole)


def state_after(*happened: events.RunEvent) -> RunState:
    return fold([Recorded(sequence=n, at=NOW, event=e) for n, e in enumerate(happened, 1)], "R1")


def verified(**fields) -> events.RunVerified:
    changed = tuple(events.ChangedFile(path=f"src/f{n}.py", status="modified") for n in range(30))
    ran = events.CommandRun(command="pytest -q", phase="test", outcome="exited", exit_code=0, passed=12, failed=0)
    verdict = events.Verdict(ok=True, outcome="passed")
    return events.RunVerified(run_id="R1", attempt=1, commit=SHA, verdict=verdict, commands=(ran,), changed_files=changed, **fields)


PUBLISHED = events.RunPublished(run_id="R1", url="https://github.test/a/b/pull/3", number=3, sha=SHA)
FINISHED = events.RunFinished(run_id="R1", attempts=1, branch="fix/issue-7", sha=SHA)
FOLLOW_UP = team.RunFollowedUp(run_id="R1", by="reviewer", source="review", feedback="more", key="k")
ASKED = events.ApprovalRequested(run_id="R1", step="verify", of=2, question="Go on?", expires_at=datetime(2026, 4, 1, 9, 30, tzinfo=UTC))
FAILED = events.RunFailed(run_id="R1", reason="no model", step="plan")
MERGED = team.RunMerged(run_id="R1", sha=SHA, by=("reviewer",))


def topic(*happened: events.RunEvent, later: tuple[events.RunEvent, ...] = ()) -> Topic | None:
    return letters.topic(happened[-1], len(happened), state_after(*happened), state_after(*happened, *later))


def test_what_is_news():
    assert topic(opened(), PUBLISHED) == Topic("pr_ready", "0")
    assert topic(opened(), PUBLISHED, FINISHED) is None
    assert topic(opened(), PUBLISHED, FINISHED, FOLLOW_UP, PUBLISHED) == Topic("pr_ready", "1")
    assert topic(opened(), FINISHED) == Topic("finished", "0")
    assert topic(opened(), FAILED) == Topic("failed", "2")
    assert topic(opened(), PUBLISHED, MERGED) == Topic("merged", "")
    assert topic(opened(), ASKED) == Topic("needs_decision", "2")
    assert topic(opened(), ASKED, later=(events.RunApproved(run_id="R1", step="verify", of=2, by="operator"),)) is None
    assert topic(opened(), FOLLOW_UP) is None


def test_who_is_told():
    assert recipients(state_after(opened())) == ()
    assert recipients(state_after(opened(reporter_email="Dev@Example.org", requested_by="mail:dev@example.org"))) == ("dev@example.org",)
    both = opened(reporter_email="boss@example.org", requested_by="mail:dev@example.org")
    assert recipients(state_after(both)) == ("boss@example.org", "dev@example.org")
    assert recipients(state_after(opened(requested_by="github:dev"))) == ()


def test_a_pull_request_with_what_was_done_how_it_was_verified_and_what_it_cost():
    reply = events.ModelReplied(run_id="R1", step="edit", of=1, call=1, model="m", usage=Usage(cost_usd=0.125, calls=3))
    draft = PUBLISHED.model_copy(update={"draft": True})
    told = letters.letter(draft, state_after(opened(), reply, verified(), draft), WAYS)
    text = templates.as_text(told)
    assert told.subject == "[agent-coder] PR ready: parse fails"
    for expected in (
        "\n\nhttps://github.test/a/b/pull/3\n\n",
        "It is a draft until",
        "| modified src/f0.py\n",
        "| and 10 more",
        "| pytest -q → exit code 0 (12 passed)",
        "Cost: $0.1250, 3 model calls, 1 attempt(s)",
        "Reply to this mail to comment on the pull request",
        "No more of these mails: https://coder.example.org/off",
    ):
        assert expected in text


def test_a_change_that_a_person_approved_without_tests_is_not_called_verified():
    ran = events.CommandRun(command="pytest -q", phase="test", outcome="exited", exit_code=1, passed=0, failed=1)
    verdict = events.Verdict(ok=True, outcome="no_tests", reasons=("no test passes", "a person approved the change"))
    happened = (opened(), verified().model_copy(update={"verdict": verdict, "commands": (ran,)}), FINISHED)
    text = templates.as_text(letters.letter(FINISHED, state_after(*happened), WAYS))
    assert (
        "Not verified: no test passes; a person approved the change\n\nWhat the tests say:\n\n| pytest -q → exit code 1 (1 failed)" in text
    )
    assert "Verified with" not in text


def test_commands_are_never_broken_over_two_lines():
    branch, run = f"fix/issue-{'9' * 60}", "01M8MSDZP6N50RHTJE0PCGFQBC"
    told = FINISHED.model_copy(update={"branch": branch, "run_id": run})
    lines = templates.as_text(letters.letter(told, state_after(opened(), told), WAYS)).splitlines()
    assert f"  git clone --branch {branch} https://coder.example.org/git/.git" in lines
    assert f"  agent-coder fetch {run}" in lines


def test_a_question_with_both_links_and_its_end():
    told = letters.letter(ASKED, state_after(opened(), ASKED), WAYS)
    text = templates.as_text(told)
    assert "| Go on?" in text
    assert "Approve:\n  https://coder.example.org/yes" in text
    assert "Deny:\n  https://coder.example.org/no" in text
    assert "2026-04-01 at 09:30 UTC" in text


def test_a_failure_says_why_and_what_to_do():
    text = templates.as_text(letters.letter(FAILED, state_after(opened(), FAILED), WAYS))
    assert "at the step plan" in text
    assert "| no model" in text
    assert "agent-coder retry R1" in text
    spent = FAILED.model_copy(update={"kind": "attempts"})  # planning the next attempt ended it, which is not where it went wrong
    assert "It ended, because:" in templates.as_text(letters.letter(spent, state_after(opened(), spent), WAYS))


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag, attrs):
        self.seen.append((tag, dict(attrs)))


@pytest.mark.parametrize(
    "happened",
    [
        (opened(issue=events.Issue(id="7", title=EVIL)), FAILED.model_copy(update={"reason": EVIL})),
        (opened(issue=events.Issue(id="7", title=EVIL)), ASKED.model_copy(update={"question": EVIL})),
        (opened(issue=events.Issue(id="7", title=EVIL)), PUBLISHED.model_copy(update={"url": f"https://x/{EVIL}"})),
        (opened(issue=events.Issue(id="7", title=EVIL)), FINISHED.model_copy(update={"branch": EVIL})),
        (opened(issue=events.Issue(id="7", title=EVIL)), MERGED.model_copy(update={"by": (EVIL,)})),
    ],
)
def test_words_of_others_are_no_markup_and_nothing_is_loaded(happened):
    told = letters.letter(happened[-1], state_after(*happened), WAYS)
    parser = Tags()
    parser.feed(templates.as_html(told))
    assert not [tag for tag, _ in parser.seen if tag in ("img", "script", "link", "iframe", "object")]
    assert all(set(attributes) <= {"style", "charset", "href"} for _, attributes in parser.seen)
    assert all(str(a["href"]).startswith(("https://", "http://")) for _, a in parser.seen if "href" in a)
    assert "修复" in templates.as_text(told)
    assert "\n" not in told.subject


def test_withheld_words_leave_the_links():
    told = letters.withheld(letters.letter(ASKED, state_after(opened(), ASKED), WAYS), "GitHub Token in the text, line 5")
    text = templates.as_text(told)
    assert "Go on?" not in text
    assert "parse fails" not in text + told.subject
    assert "line 5" in text
    assert "https://coder.example.org/yes" in text


def test_long_words_are_cut():
    long = FAILED.model_copy(update={"reason": "错" * 100_000})
    told = letters.letter(long, state_after(opened(issue=events.Issue(id="7", title="t" * 1000)), long), WAYS)
    assert len(templates.as_text(told)) < 6000
    assert len(told.subject) < 200
