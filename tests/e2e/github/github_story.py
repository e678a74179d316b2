"""An issue on GitHub becomes a merged change: label, run, push, pull request by the bot, change request, follow-up, approval, merge.

Run by tests/clients/github/run, which brings Node 24 and emulate.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from libs.testkit.product import FAST, Product, product
from tests.e2e.github.gate import APP_ID, REPO, SECRET, Gate, github
from tests.faults.story import PLAN, repository

BOT = "agent-coder[bot]"
STATUS = "<!-- agent-coder:status -->"
ASKED = "Please also add mul."
POINTS = [
    "before_append:run.opened",
    "after_append:run.opened",
    "after_effect:pushed",
    "after_effect:pull_made",
    "after_effect:comment_made",
    "before_append:run.published",
    "after_append:run.published",
    "before_append:run.finished",
    "after_append:run.finished",
    "before_append:run.follow_up",
    "after_append:run.follow_up",
    "before_append:run.merge_approved",
    "after_append:run.merge_approved",
    "after_effect:merged",
    "before_append:run.merged",
    "after_append:run.merged",
]


def model(place: Path) -> Path:
    """A scripted model that fixes `add`, and adds `mul` when the prompt asks for it."""

    def edit(old: str, new: str) -> list[dict[str, Any]]:
        calls = [[("edit", {"path": "adder.py", "old": old, "new": new})], [("done", {"summary": "Done, @everybody. Fixes #1000"})]]
        return [{"tool_calls": [{"name": n, "arguments": a} for n, a in turn]} for turn in calls]

    more = {"purpose": "edit", "contains": ASKED}
    rules = [
        {"when": more, "replies": edit("return a + b\n", "return a + b\n\n\ndef mul(a, b):\n    return a * b\n")},
        {"when": {"purpose": "edit"}, "replies": edit("a - b", "a + b")},
        {"when": {"purpose": "plan"}, "replies": [{"content": json.dumps(PLAN)}]},
    ]
    path = place / "model.json"
    path.write_text(json.dumps({"name": "adder", "rules": rules, "price": {"input_usd": 1.0, "output_usd": 1.0}}))
    return path


def settings(place: Path, gate: Gate) -> dict[str, str]:
    """What an administrator sets."""
    return {
        "AGENT_CODER_GITHUB_BASE_URL": gate.url,
        "AGENT_CODER_GITHUB_APP_ID": str(APP_ID),
        "AGENT_CODER_GITHUB_PRIVATE_KEY_FILE": str(place / "app.pem"),
        "AGENT_CODER_GITHUB_WEBHOOK_SECRET": SECRET,
    }


async def until(what: str, running: Product, look: Any, seconds: float = 300) -> Any:
    """What `look` gives once it gives something."""
    try:
        async with asyncio.timeout(seconds):
            while not (found := await look()):
                await asyncio.sleep(0.2)
            return found
    except TimeoutError:
        runs = (await running.client.get("/api/runs")).text
        raise AssertionError(f"never: {what}\n{runs[:4000]}\n{running.log()}") from None


async def pulls(gate: Gate) -> list[dict[str, Any]]:
    return list(await gate.api("owner", "GET", f"/repos/{REPO}/pulls?state=all"))


async def comments(gate: Gate, number: int, words: str = "") -> list[str]:
    found = await gate.api("owner", "GET", f"/repos/{REPO}/issues/{number}/comments")
    return [c["body"] for c in found if words in c["body"]]


async def tell(gate: Gate, running: Product) -> dict[str, Any]:
    """The story from the label to the merge; the run in the end."""
    issue = await gate.api("maintainer", "POST", f"/repos/{REPO}/issues", {"title": "add subtracts", "body": "add(1, 2) is -1."})
    await gate.api("maintainer", "POST", f"/repos/{REPO}/issues/{issue['number']}/labels", {"labels": ["agent-coder"]})
    pull = (await until("a pull request", running, lambda: pulls(gate)))[0]

    async def ready() -> list[str]:
        return await comments(gate, issue["number"], "The pull request is ready")

    await until("the status comment says ready", running, ready)
    review = {"event": "REQUEST_CHANGES", "body": ASKED, "commit_id": pull["head"]["sha"]}
    await gate.api("lead", "POST", f"/repos/{REPO}/pulls/{pull['number']}/reviews", review)

    async def moved() -> str:
        now = (await pulls(gate))[0]["head"]["sha"]
        return "" if now == pull["head"]["sha"] else now

    head = await until("a second commit", running, moved)

    async def over() -> dict[str, Any] | None:
        runs = (await running.client.get("/api/runs")).json()["runs"]
        shown = await running.run(runs[0]["run_id"])
        return shown if shown["status"] == "finished" and shown["commit"]["sha"] == head else None

    await until("the follow-up is over", running, over)
    await gate.api("lead", "POST", f"/repos/{REPO}/pulls/{pull['number']}/reviews", {"event": "APPROVE", "body": "", "commit_id": head})

    async def merged() -> list[str]:
        return await comments(gate, issue["number"], "Merged:")

    await until("the status comment says merged", running, merged)
    return {"issue": issue["number"], "first": pull["head"]["sha"], "head": head}


async def assert_told_once(gate: Gate, running: Product, told: dict[str, Any]) -> None:
    """One run, one pull request by the bot with two commits, one status comment, one merge of what was approved."""
    (pull,) = await pulls(gate)
    assert (pull["user"]["login"], pull["state"], pull["merged"]) == (BOT, "closed", True)
    assert f"Closes #{told['issue']}" in pull["body"]
    assert "@everybody" not in pull["body"]
    assert "Fixes #1000" not in pull["body"]
    assert len(await comments(gate, told["issue"], STATUS)) == 1
    assert gate.git.branches(REPO)["main"] == told["head"]
    assert gate.git.git(REPO, "log", "--format=%s", "main").splitlines()[-1] == "A bug"
    assert gate.git.git(REPO, "rev-list", "--count", "main") == "3"
    assert "def mul" in gate.git.git(REPO, "show", "main:adder.py")
    runs = (await running.client.get("/api/runs")).json()["runs"]
    assert len(runs) == 1
    kinds = [e["type"] for e in await running.events(runs[0]["run_id"])]
    assert [kinds.count(f"run.{k}") for k in ("opened", "follow_up", "published", "merge_approved", "merged")] == [1, 1, 2, 1, 1]
    assert gate.unsent == []


def assert_tokens_stay(gate: Gate, running: Product) -> None:
    """No installation token lies in a file of the home folder: repositories, journals, logs, traces."""
    files = [p.read_bytes() for p in running.home.rglob("*") if p.is_file()]
    for token in gate.minted:
        assert not [1 for data in files if token.encode() in data]


@asynccontextmanager
async def stage(place: Path, *options: str, times: int = 1, **more: str) -> AsyncIterator[tuple[Gate, Product]]:
    """A GitHub, and the product beside it that its webhooks reach."""
    async with github(place, repository(place / "repo"), times) as gate:
        environment = {**FAST, **settings(place, gate), **more}
        async with product(place / "home", f"scripted:{model(place)}", *options, environment=environment) as running:
            gate.hook_url = str(running.client.base_url).rstrip("/")
            yield gate, running


async def test_an_issue_is_solved_reviewed_amended_approved_and_merged(tmp_path: Path):
    async with stage(tmp_path) as (gate, running):
        await assert_told_once(gate, running, await tell(gate, running))
        assert_tokens_stay(gate, running)


async def test_every_webhook_three_times_and_every_delivery_twice_change_nothing(tmp_path: Path):
    async with stage(tmp_path, times=3, AGENT_CODER_DUPLICATE="1", AGENT_CODER_ACK_WAIT_SECONDS="15") as (gate, running):
        await assert_told_once(gate, running, await tell(gate, running))


@pytest.mark.parametrize("half", [0, 1])
async def test_a_forge_killed_at_each_point_makes_nothing_twice(half: int, tmp_path: Path):
    crash = tmp_path / "reached"
    crash.mkdir()
    specs = [f"forge:{point}" for point in POINTS[half::2]]
    faults = {"AGENT_CODER_CRASH_AT": ",".join(specs), "AGENT_CODER_CRASH_DIR": str(crash)}
    async with stage(tmp_path, "--apart", "forge", times=3, **faults) as (gate, running):
        await assert_told_once(gate, running, await tell(gate, running))
    assert sorted(p.name for p in crash.iterdir()) == sorted(specs)
