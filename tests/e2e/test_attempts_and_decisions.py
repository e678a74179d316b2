"""More than one attempt, a branch that exists, and a person's word: each has its clear outcome on the run."""

import asyncio
from collections import Counter

import psutil
import pytest
import pytest_asyncio

from libs.testkit.product import product
from tests.e2e.scenes import BREAK, DONE, FIX, Scene, Stage, say, set_stage
from tests.faults.story import repository

pytestmark = pytest.mark.asyncio(loop_scope="module")
ENDLESS = "sleep 86399.25"
NEXT_PLAN = {"summary": "Keep add(0, 0) at 0.", "steps": [{"title": "Add without division", "files": ["adder.py"]}]}
THOUGHT = ("think", {"topic": "division", "reasoning": "It looked cleverer."})
NOTE = ("write", {"path": "NOTE.md", "content": "Another change.\n"})
SCENES = {
    "second attempt": Scene(
        [say(THOUGHT, BREAK), say(DONE)], feedback="ZeroDivisionError", plan_after_feedback=NEXT_PLAN, after_feedback=[say(FIX), say(DONE)]
    ),
    "never passes": Scene([say(BREAK), say(DONE)]),
    "changes nothing": Scene([say(DONE)], policy={"max_attempts": 1}),
    "good": Scene([say(FIX), say(DONE)]),
    "other": Scene([say(FIX, NOTE), say(DONE)]),
    "endless": Scene([say(FIX), say(("exec", {"command": ENDLESS})), say(DONE)]),
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stage(tmp_path_factory):
    place = tmp_path_factory.mktemp("stage")
    model = set_stage(place, SCENES)
    async with product(place / "home", model) as running:
        yield Stage(running, place, SCENES)


async def kinds(stage, run_id) -> Counter:
    return Counter(event["type"] for event in await stage.running.events(run_id))


async def test_a_rejected_attempt_is_planned_anew_with_the_feedback_and_its_thoughts(stage):
    shown = await stage.finished("second attempt")
    assert shown["attempt"] == 2
    assert shown["result"]["attempts"] == 2
    assert shown["plan"]["summary"] == NEXT_PLAN["summary"]
    (rejected,) = shown["rejections"]
    assert rejected["verdict"]["outcome"] == "failed"
    assert any("test_nothing" in name for name in rejected["verdict"]["newly_failing"])
    assert "ZeroDivisionError" in rejected["verdict"]["feedback"]
    assert [(thought["attempt"], thought["topic"]) for thought in shown["thoughts"]] == [(1, "division")]
    assert stage.git(shown, "log", "--format=%s", shown["commit"]["branch"])[1:] == ["A bug"]


async def test_three_rejected_attempts_fail_the_run_with_the_last_reasons(stage):
    shown = await stage.ended("never passes")
    assert (shown["status"], len(shown["rejections"]), shown["commit"]) == ("failed", 3, None)
    assert "No change passed after 3 attempts" in shown["why"]
    assert "test_nothing" in shown["why"]
    assert "A retry makes as many again" in shown["why"]
    assert (await kinds(stage, shown["instanceId"]))["run.edited"] == 3


async def test_an_attempt_without_a_change_is_rejected_by_name(stage):
    shown = await stage.ended("changes nothing")
    assert shown["status"] == "failed"
    assert shown["rejections"][0]["verdict"]["outcome"] == "no_change"
    assert "nothing was changed" in shown["why"]


async def test_the_same_issue_again_continues_its_branch_or_takes_another_as_the_policy_says(stage):
    repo = repository(stage.place / "again")
    runs = [
        await stage.running.wait(await stage.open(name, "again", repo, on_existing_branch=policy))
        for name, policy in (("good", "continue"), ("other", "continue"), ("good", "continue"), ("good", "suffix"))
    ]
    assert [shown["status"] for shown in runs] == ["finished"] * 4, [shown["why"] for shown in runs]
    assert [shown["commit"]["branch"] for shown in runs] == ["fix/issue-again"] * 3 + ["fix/issue-again-2"]
    titles = stage.git(runs[0], "log", "--format=%s", "fix/issue-again")
    assert [title.partition(" ")[0] for title in titles] == ["fix(again):", "fix(again):", "A"]
    assert stage.git(runs[0], "ls-tree", "--name-only", "fix/issue-again") == ["NOTE.md", "adder.py", "test_adder.py"]
    assert stage.git(runs[0], "ls-tree", "--name-only", "fix/issue-again-2") == ["adder.py", "test_adder.py"]


async def test_a_plan_waits_for_a_person_and_goes_on_after_yes(stage):
    run_id = await stage.open("good", "approved", plan_approval=True)
    waiting = await stage.running.wait(run_id, frozenset({"waiting"}))
    assert waiting["pending"]["step"] == "edit"
    assert "Shall this plan be carried out" in waiting["pending"]["question"]
    assert "Fix add" in waiting["pending"]["question"]
    assert (await kinds(stage, run_id))["run.tool_returned"] == 0
    assert (await stage.decide(run_id, "approve"))["type"] == "run.approved"
    shown = await stage.running.wait(run_id)
    assert (shown["status"], shown["pending"]) == ("finished", None)
    again = await stage.running.client.post(f"/api/runs/{run_id}/approve")
    assert (again.status_code, again.json()["code"]) == (409, "run-ended")


async def test_a_denied_plan_ends_the_run_and_nothing_is_edited(stage):
    run_id = await stage.open("good", "denied", plan_approval=True)
    await stage.running.wait(run_id, frozenset({"waiting"}))
    await stage.decide(run_id, "deny")
    shown = await stage.running.wait(run_id)
    assert (shown["status"], shown["why"], shown["commit"]) == ("denied", "denied by local: by the suite", None)
    assert (await kinds(stage, run_id))["run.edited"] == 0


async def test_a_run_cancelled_in_the_middle_of_an_edit_stops_its_command_and_ends_there(stage):
    run_id = await stage.open("endless")
    async with asyncio.timeout(60):
        while not endless():
            await asyncio.sleep(0.05)
    await stage.decide(run_id, "cancel")
    shown = await stage.running.wait(run_id)
    assert (shown["status"], shown["why"]) == ("cancelled", "cancelled by local: by the suite")
    async with asyncio.timeout(20):  # less than a sandbox gives to an asker who may come back
        while endless():
            await asyncio.sleep(0.05)
    await stage.finished("good")
    events = [event["type"] for event in await stage.running.events(run_id)]
    assert events[-1] == "run.cancelled"
    assert "run.edited" not in events


def endless() -> list[psutil.Process]:
    return [p for p in psutil.process_iter(["cmdline"]) if p.info["cmdline"] == ENDLESS.split()]


async def test_a_finished_run_is_verified_again_and_keeps_its_one_commit(stage):
    shown = await stage.finished("good", issue_id="again verified")
    run_id = shown["instanceId"]
    before = await kinds(stage, run_id)
    assert (await stage.decide(run_id, "retry", **{"from": "verify"}))["step"] == "verify"
    async with asyncio.timeout(60):
        while (await kinds(stage, run_id))["run.finished"] < 2:
            await asyncio.sleep(0.1)
    again = await stage.running.run(run_id)
    assert again["commit"] == shown["commit"]
    assert again["usage"] == shown["usage"]
    after = await kinds(stage, run_id)
    assert {kind: after[kind] - before[kind] for kind in ("run.model_replied", "run.edited", "run.verified")} == {
        "run.model_replied": 0,
        "run.edited": 0,
        "run.verified": 1,
    }
    assert len(stage.git(again, "log", "--format=%s", again["commit"]["branch"])) == 2


async def test_a_retry_of_a_step_that_was_never_reached_is_refused_with_what_to_do(stage):
    shown = await stage.ended("changes nothing")
    answer = await stage.running.client.post(f"/api/runs/{shown['instanceId']}/retry", params={"from": "commit"})
    assert (answer.status_code, answer.json()["code"]) == (409, "step-not-reached")
    assert "retry from an earlier step" in answer.json()["next"]
