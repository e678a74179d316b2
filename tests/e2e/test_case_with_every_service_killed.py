"""A real bug is solved although every process dies once on the way: one commit, the hidden tests pass, no completed step twice."""

import asyncio
import os
import signal
from collections import Counter

import httpx

from libs.testkit.cases import assert_solved
from libs.testkit.product import FAST, Product, product

POINTS = (
    "gateway:after_append:run.opened",
    "planner:after_append:run.model_replied",
    "inference:after_effect:q.inference.complete",
    "editor:before_append:run.tool_returned",
    "sandbox:after_effect:q.sandbox.write",
    "verifier:before_append:run.verified",
    "artifact:after_append:run.committed",
)
BY_HAND = ("session_store", "forge", "mailer", "nats")


async def opened(running: Product, issue_id: str, body: dict) -> str:
    """The id of the run, asked for under one key until the gateway is back."""
    async with asyncio.timeout(60):
        while True:
            try:
                return await running.solve(issue_id, body, key="once")
            except (httpx.TransportError, AssertionError):
                await asyncio.sleep(0.2)


async def listed(running: Product, status: str) -> list[str]:
    """The runs of the read model, once it answers and has caught up."""
    async with asyncio.timeout(60):
        while True:
            answer = await running.client.get("/api/runs", params={"status": status})
            if answer.status_code == 200 and answer.json()["runs"]:
                return [run["run_id"] for run in answer.json()["runs"]]
            await asyncio.sleep(0.2)


async def test_a_real_bug_is_solved_with_every_service_killed_once(tmp_path, copy_case):
    case = await copy_case("parse-subseconds", tmp_path / "case")
    reached = tmp_path / "reached"
    reached.mkdir()
    environment = {**FAST, "AGENT_CODER_CRASH_AT": ",".join(POINTS), "AGENT_CODER_CRASH_DIR": str(reached)}
    async with product(tmp_path / "home", f"scripted:{case.script('tool_calls')}", "--split", environment=environment) as running:
        first = running.processes()
        run_id = await opened(running, case.row["issue"]["id"], case.request())
        await running.wait(run_id, frozenset({"editing"}))
        for name in BY_HAND:
            os.kill(first[name], signal.SIGKILL)
        shown = await running.wait(run_id)
        await assert_solved(running, case, run_id, tmp_path / "clone")
        assert await listed(running, "finished") == [run_id]
        events = await running.events(run_id)
        now = running.processes()
    assert {name for name in first if first[name] != now[name]} == set(first) - {"assistant"}  # it has no part in a run
    assert sorted(path.name for path in reached.iterdir()) == sorted(POINTS)
    results = Counter(
        event["type"] for event in events if event["type"].rpartition(".")[2] in ("planned", "edited", "verified", "committed")
    )
    assert results == {"run.planned": 1, "run.edited": 1, "run.verified": 1, "run.committed": 1}
    replies = Counter((e["data"]["step"], e["data"]["call"]) for e in events if e["type"] == "run.model_replied")
    assert set(replies.values()) == {1}
    assert shown["usage"]["calls"] == len(replies)
