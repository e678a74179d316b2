"""A run's story: what is told, with which times, in which words."""

import os
import time

import pytest

from services.cli.render import run_words
from services.cli.story import chapters, for_programs, in_words
from tests.unit.cli.test_cli_words import COMMIT, RUN, text

SHA = "d" * 40
VERDICT = {"ok": True, "outcome": "passed"}


@pytest.fixture(autouse=True)
def utc():
    before = os.environ.get("TZ")
    os.environ["TZ"] = "UTC"
    time.tzset()
    yield
    os.environ.pop("TZ") if before is None else os.environ.update(TZ=before)
    time.tzset()


def event(sequence, at, name, causation=None, /, **data):
    return {"sequence": sequence, "at": f"2026-01-{at}Z", "type": f"run.{name}", "causation": causation, "data": data}


STORY = [
    event(
        1,
        "01T10:00:00",
        "opened",
        run_id="01ABC",
        issue={"id": "m-7", "title": "解析 1.5h"},
        repo="https://example.org/app.git",
        origin="mail",
        requested_by="mail:dev@example.org",
    ),
    event(2, "01T10:00:01", "step_started", 1, step="plan", of=1, delivery=1),
    event(3, "01T10:00:02", "model_replied", 1, step="plan", usage={}),
    event(4, "01T10:00:03.500", "planned", 1, attempt=1, base_branch="main", base_commit=SHA, plan={"steps": [{"title": "fix it"}]}),
    event(5, "01T10:00:04", "step_started", 4, step="edit", of=4, delivery=1),
    event(6, "01T10:02:09", "edited", 4, changed_files=[{"path": "a.py", "status": "modified"}]),
    event(7, "01T10:02:10", "verified", 6, verdict=VERDICT, commands=[]),
    event(8, "01T10:02:11", "committed", 7, sha=SHA, branch="fix/issue-m-7", message="fix(m-7): …"),
    event(9, "01T10:02:14", "published", 8, url="https://example.org/pull/7", number=7, sha=SHA, branch="fix/issue-m-7", draft=True),
    event(10, "01T10:02:14", "finished", 9, attempts=1, usage={}),
    event(11, "01T10:02:16", "notified", 9, kind="pr_ready", recipient="dev@example.org", outcome="sent", of=9, message_id="<1@x>"),
    event(
        12,
        "02T09:00:00",
        "reply_received",
        sender="dev@example.org",
        action="comment",
        text="很好，\x1b[2J但是",
        attachments=[{"name": "日志.txt"}],
        message_id="<2@x>",
    ),
    event(13, "02T09:30:00", "follow_up", by="reviewer", source="review", feedback="rename it", url="https://example.org/pull/7#r1"),
    event(14, "02T09:40:00", "merge_approved", by="reviewer", sha=SHA),
    event(15, "02T09:40:02", "merged", 14, sha=SHA, merge_sha="e" * 40, method="squash", by=["reviewer"]),
    event(16, "02T09:40:03", "notified", 15, kind="merged", recipient="dev@example.org", outcome="refused", detail="550 no", of=15),
]


def test_the_whole_story_with_days_times_and_durations():
    said = text(in_words(chapters(STORY)))
    assert said.splitlines() == [
        "2026-01-01",
        "10:00:00  issue m-7: 解析 1.5h",
        "          run 01ABC in https://example.org/app.git, asked by mail by dev@example.org",
        "10:00:03  plan on main dddddddddd  (2.5 s)",
        "            1. fix it",
        "10:02:09  edited: 1 file(s)  (2 min 5 s)",
        "            M a.py",
        "10:02:10  verified: passed  (1.0 s)",
        "10:02:11  committed dddddddddd on fix/issue-m-7: fix(m-7): …  (1.0 s)",
        "10:02:14  draft pull request: https://example.org/pull/7  (3.0 s)",
        "            dddddddddd on fix/issue-m-7",
        "10:02:14  finished after 1 attempt(s)  (0.0 ms)",
        "            0 tokens in, 0 out",
        "10:02:16  mail to dev@example.org: PR ready  (2.0 s)",
        "2026-01-02",
        "09:00:00  dev@example.org answered by mail (comment)",
        "            很好，但是",
        "            with 日志.txt",
        "09:30:00  reviewer asks for more (review)",
        "            rename it",
        "            https://example.org/pull/7#r1",
        "09:40:00  reviewer approved dddddddddd for the merge",
        "09:40:02  merged dddddddddd (squash, as eeeeeeeeee) by reviewer  (2.0 s)",
        "09:40:03  no mail to (refused) dev@example.org: merged: 550 no  (1.0 s)",
    ]


def test_programs_get_the_same_without_colours_and_indents():
    told = for_programs(chapters(STORY))
    assert [chapter["type"] for chapter in told[:3]] == ["run.opened", "run.planned", "run.edited"]
    assert (told[1]["at"], told[1]["seconds"]) == ("2026-01-01T10:00:03.500Z", 2.5)
    assert told[-2]["lines"] == ["merged dddddddddd (squash, as eeeeeeeeee) by reviewer"]


def test_an_open_question_is_told_once_with_the_two_answers():
    asked = {"run_id": "01ABC", "step": "edit", "question": "Shall it?\nIt is large."}
    story = in_words(chapters([STORY[0], event(2, "01T10:00:01", "approval_requested", 1, **asked)]))
    said = text(run_words(RUN | {"status": "waiting", "pending": asked}, story))
    assert said.count("It is large.") == said.count("agent-coder approve 01ABC") == 1


def test_a_pull_request_says_whether_it_is_merged():
    run = RUN | {"status": "finished", "commit": COMMIT, "pull_request_url": "https://example.org/pull/7"}
    assert "pull/7 (open)" in text(run_words(run))
    assert "pull/7 (merged)" in text(run_words(run | {"merged": {"sha": SHA}}))
