"""More is asked for after a run is over: another attempt on the same branch, once, whatever dies on the way or is delivered twice."""

import json
from collections import Counter

import pytest

from libs.bus.connection import Connection
from libs.bus.journal import Journal
from libs.contracts.team import RunCommented, RunFollowedUp
from libs.settings import BusSettings
from libs.testkit.product import FAST, product
from tests.faults.story import PLAN, assert_solved_once, git, repository, request, script

ASKED, SAID = "Say why in a comment.", "用中文写"
POINTS = (
    "planner:before_append:run.planned",
    "planner:after_append:run.planned",
    "editor:before_append:run.edited",
    "verifier:after_append:run.verified",
    "artifact:before_append:run.committed",
    "artifact:after_append:run.committed",
    "forge:before_append:run.finished",
)
APART = [word for service in dict.fromkeys(point.partition(":")[0] for point in POINTS) for word in ("--apart", service)]
CRASHES = {"AGENT_CODER_CRASH_AT": ",".join(POINTS)}


def script_of_two_rounds(place):
    """The story's model, which does what the follow-up asks when its prompt holds the request and the comment."""
    told = json.loads(script(place).read_text())
    replies = [
        [("edit", {"path": "adder.py", "old": "a + b", "new": "a + b  # 求和"})],
        [("done", {"summary": "It says why."})],
    ]
    again = [{"tool_calls": [{"name": n, "arguments": a} for n, a in turn]} for turn in replies]
    told["rules"][:0] = [
        {"when": {"purpose": "plan", "contains": [ASKED, SAID, "fix/issue-7"]}, "replies": [{"content": json.dumps(PLAN)}]},
        {"when": {"purpose": "edit", "contains": [ASKED, SAID]}, "replies": again},
    ]
    path = place / "two-rounds.json"
    path.write_text(json.dumps(told))
    return f"scripted:{path}"


async def ask_for_more(running, run_id):
    """What the forge does with a comment and a review."""
    url = json.loads((running.home / "runtime.json").read_text())["nats_url"]
    connection = await Connection.open(BusSettings(home=running.home, nats_url=url), "forge")
    journal = Journal(connection)
    for event in (
        RunCommented(run_id=run_id, by="dev", source="comment", text=SAID, key="c1"),
        RunFollowedUp(run_id=run_id, by="reviewer", source="review", feedback=ASKED),
    ):
        await journal.append(event, follows=(await journal.state(run_id)).sequence)
    await connection.close()


@pytest.mark.parametrize("faults", [CRASHES, {"AGENT_CODER_DUPLICATE": "1"}], ids=["killed at each step", "everything twice"])
async def test_a_follow_up_after_a_restart_is_one_more_commit_on_the_branch(faults, tmp_path):
    reached = tmp_path / "reached"
    reached.mkdir()
    repo, model = repository(tmp_path / "repo"), script_of_two_rounds(tmp_path)
    async with product(tmp_path / "home", model, environment=FAST) as running:
        run_id = await running.solve("7", request(repo, max_attempts=1, on_existing_branch="suffix"))
        await running.wait(run_id)
        first = (await running.run(run_id))["commit"]["sha"]
        await assert_solved_once(running, run_id, repo)

    environment = {**FAST, **faults, "AGENT_CODER_CRASH_DIR": str(reached)}
    async with product(tmp_path / "home", model, *APART, environment=environment) as running:
        await ask_for_more(running, run_id)
        shown = await running.wait(run_id)
        assert (shown["status"], shown["attempt"]) == ("finished", 2), f"{shown['why']}\n{running.log()}"
        assert (shown["commit"]["branch"], shown["follow_ups"][0]["by"]) == ("fix/issue-7", "reviewer")
        stored = shown["commit"]["repository"], shown["commit"]["branch"]
        assert git(running, stored[0], "log", "--format=%s", stored[1]) == ["fix(7): add subtracts", "fix(7): add subtracts", "A bug"]
        assert git(running, stored[0], "rev-parse", f"{stored[1]}~1") == [first]
        assert git(running, stored[0], "show", f"{stored[1]}:adder.py") == ["def add(a, b):", "    return a + b  # 求和"]
        kinds = Counter(event["type"] for event in await running.events(run_id))
        twice = ("run.planned", "run.edited", "run.verified", "run.committed", "run.finished")
        assert {kind: kinds[kind] for kind in twice} == dict.fromkeys(twice, 2), kinds
    assert sorted(p.name for p in reached.iterdir()) == (sorted(POINTS) if faults is CRASHES else [])


async def test_a_follow_up_can_be_cancelled_and_then_sent_to_work_again(tmp_path):
    repo, model = repository(tmp_path / "repo"), script_of_two_rounds(tmp_path)
    async with product(tmp_path / "home", model, environment=FAST) as running:
        run_id = await running.solve("7", request(repo, max_attempts=1))
        await running.wait(run_id)
        await ask_for_more(running, run_id)
        await running.client.post(f"/api/runs/{run_id}/cancel")
        shown = await running.wait(run_id)
        if shown["status"] == "cancelled":
            assert (await running.client.post(f"/api/runs/{run_id}/retry", params={"from": "plan"})).status_code == 200
            shown = await running.wait(run_id)
        assert (shown["status"], shown["attempt"]) == ("finished", 2), f"{shown['why']}\n{running.log()}"
        log = git(running, shown["commit"]["repository"], "log", "--format=%s", "fix/issue-7")
        assert log == ["fix(7): add subtracts", "fix(7): add subtracts", "A bug"]
