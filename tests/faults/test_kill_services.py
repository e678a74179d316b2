"""kill -9 of each service at named points, of NATS, a frozen worker, everything twice: the run ends once, with one commit."""

import asyncio
import os
import signal
import sys

import httpx
import pytest

from libs.testkit.product import FAST, product
from tests.faults.story import assert_solved_once, repository, request, script

POINTS = [
    {
        "planner": ["before_append:run.planned", "after_append:run.planned", "after_append:run.model_replied"],
        "verifier": ["after_append:run.step_started", "before_append:run.verified", "after_append:run.verified"],
    },
    {
        "editor": ["before_append:run.model_replied", "after_append:run.model_replied", "before_append:run.tool_returned"],
        "forge": ["before_append:run.finished", "after_append:run.finished"],
    },
    {
        "editor": ["after_append:run.tool_started", "before_append:run.edited", "after_append:run.edited"],
        "artifact": ["before_append:run.committed", "after_append:run.committed"],
    },
    {
        "artifact": ["before_work:q.artifact.import", "after_effect:q.artifact.store_bundle"],
        "sandbox": ["mid_stream:q.sandbox.execute", "after_effect:q.sandbox.snapshot"],
    },
    {
        "inference": ["before_work:q.inference.complete", "after_effect:q.inference.complete"],
        "sandbox": ["before_work:q.sandbox.execute", "after_effect:q.sandbox.execute", "after_effect:q.sandbox.write"],
    },
]


@pytest.mark.parametrize("points", POINTS, ids=["-".join(points) for points in POINTS])
async def test_services_killed_at_named_points_lose_nothing(points, tmp_path):
    crash = tmp_path / "reached"
    crash.mkdir()
    specs = [f"{service}:{point}" for service, places in points.items() for point in places]
    apart = [word for service in points for word in ("--apart", service)]
    environment = {**FAST, "AGENT_CODER_CRASH_AT": ",".join(specs), "AGENT_CODER_CRASH_DIR": str(crash)}
    repo = repository(tmp_path / "repo")
    async with product(tmp_path / "home", f"scripted:{script(tmp_path)}", *apart, environment=environment) as running:
        run_id = await running.solve("7", request(repo))
        await running.wait(run_id)
        await assert_solved_once(running, run_id, repo)
    assert sorted(p.name for p in crash.iterdir()) == sorted(specs)


async def test_a_gateway_killed_after_it_opened_a_run_opens_it_once(tmp_path):
    crash = tmp_path / "reached"
    crash.mkdir()
    environment = {**FAST, "AGENT_CODER_CRASH_AT": "gateway:after_append:run.opened", "AGENT_CODER_CRASH_DIR": str(crash)}
    repo = repository(tmp_path / "repo")
    async with product(tmp_path / "home", f"scripted:{script(tmp_path)}", "--apart", "gateway", environment=environment) as running:
        with pytest.raises(httpx.TransportError):
            await running.solve("7", request(repo), key="once")
        async with asyncio.timeout(30):
            while True:
                try:
                    run_id = await running.solve("7", request(repo), key="once")
                    break
                except (httpx.TransportError, AssertionError):
                    await asyncio.sleep(0.2)
        await running.wait(run_id)
        await assert_solved_once(running, run_id, repo)
        listed = (await running.client.get("/api/runs")).json()
    assert [r["run_id"] for r in listed["runs"]] == [run_id]
    assert list(crash.iterdir())


async def test_nats_and_the_read_model_killed_in_the_middle(tmp_path):
    repo = repository(tmp_path / "repo")
    async with product(tmp_path / "home", f"scripted:{script(tmp_path)}", "--apart", "session_store", environment=FAST) as running:
        run_id = await running.solve("7", request(repo))
        await running.wait(run_id, frozenset({"editing", "verifying", "committing", "finished"}))
        processes = running.processes()
        os.kill(processes["session_store"], signal.SIGKILL)
        os.kill(processes["nats"], signal.SIGKILL)
        await running.wait(run_id)
        await assert_solved_once(running, run_id, repo)
        async with asyncio.timeout(60):
            while True:
                answer = await running.client.get("/api/runs", params={"status": "finished"})
                if answer.status_code == 200 and answer.json()["runs"]:
                    break
                await asyncio.sleep(0.2)


async def test_a_worker_frozen_past_its_lease_is_replaced_and_its_late_result_dropped(tmp_path):
    repo = repository(tmp_path / "repo")
    async with product(tmp_path / "home", f"scripted:{script(tmp_path)}", "--apart", "editor", environment=FAST) as running:
        frozen = running.processes()["editor"]
        run_id = await running.solve("7", request(repo))
        await running.wait(run_id, frozenset({"editing"}))
        os.kill(frozen, signal.SIGSTOP)
        environment = {**os.environ, **FAST, "AGENT_CODER_HOME": str(running.home), "AGENT_CODER_NATS_URL": _nats_url(running)}
        second = await asyncio.create_subprocess_exec(sys.executable, "-m", "services.editor", env=environment)
        try:
            await running.wait(run_id)
            os.kill(frozen, signal.SIGCONT)
            again = await running.solve("7", request(repo) | {"title": "add subtracts again"})
            await running.wait(again)
            await assert_solved_once(running, run_id, repo)
        finally:
            os.kill(frozen, signal.SIGCONT)
            second.terminate()
            await second.wait()


async def test_everything_delivered_and_asked_twice_is_done_once(tmp_path):
    repo = repository(tmp_path / "repo")
    environment = {**FAST, "AGENT_CODER_DUPLICATE": "1"}
    async with product(tmp_path / "home", f"scripted:{script(tmp_path)}", environment=environment) as running:
        run_id = await running.solve("7", request(repo))
        await running.wait(run_id)
        await assert_solved_once(running, run_id, repo)


def _nats_url(running) -> str:
    import json

    return json.loads((running.home / "runtime.json").read_text())["nats_url"]
