"""What is shown of runs: list, state, diff, trace; and what a person may decide."""

from datetime import UTC, datetime, timedelta

import httpx
import pytest

from libs.bus import NoAnswer
from libs.contracts import decisions
from libs.contracts.artifact import Diff, DiffResult
from libs.contracts.fold import fold
from libs.contracts.run import ApprovalRequested, RunApproved, RunCancelled, RunPublished, RunRetried, StepStarted
from libs.contracts.session import ListRuns, ReadRun, ReadTrace, Trace
from libs.contracts.team import MergeApproved, ReplyReceived, RunCommented, RunFollowedUp, RunMerged, RunNotified
from tests.unit.gateway import stories
from tests.unit.gateway.fake_bus import FakeBus


async def test_a_finished_run_shows_everything_about_it(client: httpx.AsyncClient, bus: FakeBus) -> None:
    for event in stories.whole():
        bus.add(event)
    run = (await client.get("/api/runs/r1")).json()
    assert (run["instanceId"], run["status"], run["attempt"]) == ("r1", "finished", 1)
    assert run["plan"]["steps"][0]["files"] == ["README.md"]
    assert [f["path"] for f in run["changed_files"]] == ["nämé ☃.py"]
    assert run["commands"][0]["exit_code"] == 0
    assert run["commit"]["clone_url"] == "http://server/git/team/app.git"
    assert run["usage"]["cost_usd"] == 0.25
    assert run["thoughts"] == [{"attempt": 1, "topic": "cause", "reasoning": "a typo"}]
    assert run["result"] == {
        "ok": True,
        "attempts": 1,
        "changedFiles": ["nämé ☃.py"],
        "artifactCommit": {"sha": stories.SHA, "ref": "refs/heads/fix/issue-42"},
        "testSummary": "3 passed",
    }
    assert (await client.get(run["links"]["events_url"], headers={"accept": "application/json"})).status_code == 200


async def test_a_failed_run_says_why_and_where_its_dead_letter_is(client: httpx.AsyncClient, bus: FakeBus) -> None:
    stories.failed(bus)
    run = (await client.get("/api/runs/r1")).json()
    assert (run["status"], run["why"], run["dead_letter"]) == ("failed", "the model is gone", 9)
    assert run["result"]["ok"] is False
    assert run["result"]["artifactCommit"] is None


async def test_a_waiting_run_shows_its_question_and_has_no_result(client: httpx.AsyncClient, bus: FakeBus) -> None:
    stories.waiting(bus)
    run = (await client.get("/api/runs/r1")).json()
    assert (run["status"], run["pending"]["question"], run["result"]) == ("waiting", "Is this plan good?", None)


@pytest.mark.parametrize("path", ["", "/events", "/diff", "/trace"])
@pytest.mark.parametrize("run_id", ["nobody", "a.b", "*", "%3E", "x" * 65, "%00"])
async def test_a_run_that_is_not_there_is_404(client: httpx.AsyncClient, path: str, run_id: str) -> None:
    answer = await client.get(f"/api/runs/{run_id}{path}")
    assert answer.status_code == 404
    assert answer.json()["next"] == "GET /api/runs lists the runs"


async def test_without_its_journal_a_run_is_shown_from_the_read_model(client: httpx.AsyncClient, bus: FakeBus) -> None:
    other = FakeBus()
    for event in stories.whole():
        other.add(event)
    bus.answer(ReadRun, fold(await other.journal.read("r1"), "r1"))
    assert (await client.get("/api/runs/r1")).json()["status"] == "finished"
    for gone in (await client.get("/api/runs/r1/events"), await client.post("/api/runs/r1/retry")):
        assert gone.status_code == 410


async def test_the_list_is_asked_with_every_filter(client: httpx.AsyncClient, bus: FakeBus) -> None:
    answer = await client.get("/api/runs?cursor=abc&limit=7&status=waiting&issue=42&repo=team/app&q=修复")
    assert answer.json() == {"runs": [], "next_cursor": None}
    assert bus.asked[-1] == ListRuns(cursor="abc", limit=7, status="waiting", issue_id="42", repo="team/app", text="修复")
    for bad in ("limit=0", "limit=101", "status=busy", "cursor=" + "x" * 201):
        assert (await client.get(f"/api/runs?{bad}")).status_code == 422


async def test_the_diff_comes_as_text_or_json_of_the_commit_or_the_newest_edit(client: httpx.AsyncClient, bus: FakeBus) -> None:
    bus.answer(Diff, DiffResult(diff="--- a\n+++ b\n", changed_files=stories.FILES, truncated=True))
    story = stories.whole()
    for event in story[:2]:
        bus.add(event)
    assert (await client.get("/api/runs/r1/diff")).status_code == 409
    for event in story[2:4]:
        bus.add(event)
    text = await client.get("/api/runs/r1/diff")
    assert text.headers["content-type"].startswith("text/x-diff")
    assert text.headers["X-Truncated"] == "true"
    assert text.text == "--- a\n+++ b\n"
    assert bus.asked[-1] == Diff(repository="team/app", base=stories.BASE, head="2" * 40)
    for event in story[4:]:
        bus.add(event)
    parts = (await client.get("/api/runs/r1/diff", headers={"accept": "application/json"})).json()
    assert (parts["head"], parts["changed_files"][0]["path"], parts["truncated"]) == (stories.SHA, "nämé ☃.py", True)


async def test_the_trace_is_the_one_that_the_run_was_opened_in(client: httpx.AsyncClient, bus: FakeBus) -> None:
    bus.add(stories.opened())
    bus.answer(ReadTrace, Trace(trace_id="a" * 32, spans=()))
    assert (await client.get("/api/runs/r1/trace")).json() == {"trace_id": "a" * 32, "spans": []}
    bus.answer(ReadTrace, NoAnswer("gone"))
    assert (await client.get("/api/runs/r1/trace")).status_code == 503
    bus.trace = None
    assert (await client.get("/api/runs/r1/trace")).json()["code"] == "no-trace"


async def test_cancel_stops_a_run_once(client: httpx.AsyncClient, bus: FakeBus) -> None:
    bus.add(stories.opened())
    first = await client.post("/api/runs/r1/cancel", json={"comment": "不需要了", "by": "kim"})
    assert first.json() == {"instanceId": "r1", "sequence": 2, "type": "run.cancelled", "step": None}
    assert (await bus.journal.state("r1")).why == "cancelled by kim: 不需要了"
    second = await client.post("/api/runs/r1/cancel")
    assert (second.status_code, second.json()["code"]) == (409, "run-ended")


async def test_a_decision_belongs_to_the_trace_of_its_run(client: httpx.AsyncClient, bus: FakeBus) -> None:
    stories.waiting(bus)
    await client.post("/api/runs/r1/approve", headers={"traceparent": f"00-{'c' * 32}-{'d' * 16}-01"})
    assert ("send run.approved", {"traceparent": f"00-{'a' * 32}-{'b' * 16}-01"}) in bus.spans


@pytest.mark.parametrize(("word", "status"), [("approve", "editing"), ("deny", "denied")])
async def test_a_question_is_answered_once(client: httpx.AsyncClient, bus: FakeBus, word: str, status: str) -> None:
    bus.add(stories.opened("r0"))
    none = await client.post(f"/api/runs/r0/{word}")
    assert (none.status_code, none.json()["code"]) == (409, "nothing-to-decide")
    stories.waiting(bus)
    answer = await client.post(f"/api/runs/r1/{word}", json={"comment": "ok"})
    assert (answer.status_code, answer.json()["step"]) == (200, "edit")
    assert (await bus.journal.state("r1")).status == status
    assert (await client.post(f"/api/runs/r1/{word}")).status_code == 409


async def test_an_approval_names_the_event_that_the_step_was_handling(client: httpx.AsyncClient, bus: FakeBus) -> None:
    stories.waiting(bus)
    await client.post("/api/runs/r1/approve")
    approved = (await bus.journal.read("r1"))[-1].event
    assert isinstance(approved, RunApproved)
    assert (approved.step, approved.of) == ("edit", 2)


async def test_a_decision_is_made_again_on_what_came_in_between(client: httpx.AsyncClient, bus: FakeBus) -> None:
    bus.add(stories.opened())
    bus.journal.intruders = [StepStarted(run_id="r1", step="plan", of=1, delivery=1, worker="w")]
    assert (await client.post("/api/runs/r1/cancel")).json()["sequence"] == 3
    stories.waiting(bus, "r2")
    bus.journal.intruders = [RunCancelled(run_id="r2", by="somebody else")]
    late = await client.post("/api/runs/r2/approve")
    assert (late.status_code, late.json()["code"]) == (409, "run-ended")


async def test_a_journal_that_ends_with_something_unreadable_can_be_cancelled(client: httpx.AsyncClient, bus: FakeBus) -> None:
    bus.add(stories.opened())
    bus.store("RUN", "run.r1.planned", b"{broken")
    bus.store("RUN", "run.r1.from_the_future", b"{}")
    assert (await client.post("/api/runs/r1/cancel")).status_code == 200


@pytest.mark.parametrize(("query", "step", "of"), [("", "edit", 2), ("?from=plan", "plan", 1), ("?from=edit", "edit", 2)])
async def test_retry_sends_a_step_back_to_the_newest_event_that_it_handles(
    client: httpx.AsyncClient, bus: FakeBus, query: str, step: str, of: int
) -> None:
    stories.failed(bus)
    answer = await client.post(f"/api/runs/r1/retry{query}")
    assert answer.status_code == 200
    retried = (await bus.journal.read("r1"))[-1].event
    assert isinstance(retried, RunRetried)
    assert (retried.step, retried.of) == (step, of)


async def test_retry_is_refused_while_work_goes_on_or_was_never_begun(client: httpx.AsyncClient, bus: FakeBus) -> None:
    bus.add(stories.opened())
    assert (await client.post("/api/runs/r1/retry")).json()["code"] == "at-work"
    stories.waiting(bus, "r2")
    assert (await client.post("/api/runs/r2/retry")).json()["code"] == "waiting"
    stories.failed(bus, "r3")
    assert (await client.post("/api/runs/r3/retry?from=verify")).json()["code"] == "step-not-reached"
    assert (await client.post("/api/runs/r3/retry?from=dance")).status_code == 422


async def test_a_run_that_is_out_with_the_team_shows_what_came_of_it(client: httpx.AsyncClient, bus: FakeBus) -> None:
    *before, finished = stories.whole()
    sha = stories.SHA
    published = RunPublished(run_id="r1", url="https://example.org/pull/7", number=7, sha=sha)
    said = RunCommented(run_id="r1", by="dev", source="comment", text="为什么?", key="c1")
    told = RunNotified(run_id="r1", kind="pr_ready", of=7, recipient="dev@example.org", message_id="<1@example.org>", outcome="sent")
    reply = ReplyReceived(run_id="r1", sender="dev@example.org", message_id="<2@example.org>", action="comment", text="nice")
    asked = RunFollowedUp(run_id="r1", by="reviewer", source="review", feedback="rename it")
    for event in (*before, published, said, said, finished, told, reply, asked):
        bus.add(event)
    run = (await client.get("/api/runs/r1")).json()
    assert (run["status"], run["pull_request_url"], run["published"]["number"]) == ("planning", "https://example.org/pull/7", 7)
    assert ([c["text"] for c in run["comments"]], run["follow_ups"][0]["feedback"]) == (["为什么?"], "rename it")
    assert (run["notifications"][0]["outcome"], run["replies"][0]["action"], run["merged"]) == ("sent", "comment", None)
    assert (await client.post("/api/runs/r1/retry")).json()["code"] == "at-work"

    assert (await client.post("/api/runs/r1/cancel")).status_code == 200
    retried = (await client.post("/api/runs/r1/retry")).json()
    assert (retried["type"], retried["step"]) == ("run.retried", "plan")
    assert (await bus.journal.state("r1")).status == "planning"

    for event in (MergeApproved(run_id="r1", by="reviewer", sha=sha), RunMerged(run_id="r1", sha=sha, by=("reviewer",))):
        bus.add(event)
    run = (await client.get("/api/runs/r1")).json()
    assert (run["merge_approvals"][0]["by"], run["merged"]["sha"]) == ("reviewer", sha)


async def test_a_run_that_was_followed_up_can_be_approved_and_denied(client: httpx.AsyncClient, bus: FakeBus) -> None:
    for event in (*stories.whole(), RunFollowedUp(run_id="r1", by="reviewer", source="review", feedback="more")):
        bus.add(event)
    of = bus.add(stories.planned(attempt=2))
    expires = datetime.now(UTC) + timedelta(hours=1)
    bus.add(ApprovalRequested(run_id="r1", step="edit", of=of, question="Is this plan good?", expires_at=expires))
    approved = await client.post("/api/runs/r1/approve")
    assert (approved.json()["type"], (await bus.journal.state("r1")).approvals[-1].of) == ("run.approved", of)
    bus.add(ApprovalRequested(run_id="r1", step="edit", of=of, question="Really?", expires_at=expires))
    assert (await client.post("/api/runs/r1/deny")).json()["type"] == "run.denied"
    assert (await bus.journal.state("r1")).status == "denied"


async def test_a_decision_refuses_what_it_does_not_know(client: httpx.AsyncClient, bus: FakeBus) -> None:
    bus.add(stories.opened())
    answer = await client.post("/api/runs/r1/cancel", json={"reason": "x"})
    assert (answer.status_code, answer.json()["errors"]) == (422, [{"field": "reason", "message": "unknown field"}])
    assert bus.events_of("r1") == ["opened"]


def test_a_step_is_sent_back_only_to_events_that_it_handles() -> None:
    assert set(decisions.HANDLES) == {"plan", "edit", "verify", "commit", "publish", "finish", "merge"}
