"""The gateway on a real broker: HTTP through uvicorn, journals behind their fence, streams, facts from outside, timers."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from libs.bus import Service
from libs.bus.connection import Connection
from libs.contracts.artifact import GitFrame, GitHead, ServeGit
from libs.contracts.envelope import Done
from libs.contracts.inference import DescribeModels, ModelDescription, Models
from libs.contracts.run import ApprovalRequested, Issue, Plan, PlanStep, RunCancelled, RunOpened, RunPlanned
from libs.settings import BusSettings
from libs.testkit.broker import broker, free_port
from services.gateway.__main__ import build as build_gateway
from services.session_store.__main__ import build as build_session_store

GOOD: dict[str, Any] = {"title": "修复 Wrokr", "body": "line 7", "repo": "team/app"}


@pytest.fixture
async def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[BusSettings]:
    monkeypatch.setenv("AGENT_CODER_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("AGENT_CODER_PORT", str(free_port()))
    monkeypatch.setenv("AGENT_CODER_MODELS_CACHE_SECONDS", "0")
    monkeypatch.setenv("AGENT_CODER_HEARTBEAT_SECONDS", "0.2")
    async with broker(tmp_path / "home") as (_, settings):
        yield settings


def inference() -> Service:
    service = Service("inference")

    @service.answer(DescribeModels)
    async def describe(_: DescribeModels, __: Any) -> Models:
        return Models(models=(ModelDescription(name="scripted", scripted=True),))

    return service


def artifact() -> Service:
    service = Service("artifact")

    @service.answer(ServeGit)
    async def git(question: ServeGit, asker: Any) -> Done:
        await asker.frame(GitFrame(head=GitHead(status=200, headers=(("Content-Type", "application/x-git"),))))
        for _ in range(100):
            await asker.frame(GitFrame(data=b"x" * 50_000))
        return Done()

    return service


@pytest.fixture
async def client(settings: BusSettings, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[httpx.AsyncClient]:
    """The gateway with the session store, an inference service and an artifact service that answer one question each."""
    async with contextlib.AsyncExitStack() as running:
        for service in (inference(), artifact(), build_session_store(), build_gateway()):
            await running.enter_async_context(service.running(settings))
        from services.gateway.settings import GatewaySettings

        url = f"http://127.0.0.1:{GatewaySettings().port}"
        token = (settings.home / "token").read_text().strip()
        async with httpx.AsyncClient(base_url=url, headers={"Authorization": f"Bearer {token}"}, timeout=20) as client:
            await eventually(lambda: reachable(client))
            yield client


async def reachable(client: httpx.AsyncClient) -> bool:
    try:
        return (await client.get("/healthz")).status_code == 200
    except httpx.TransportError:
        return False


async def eventually(check: Any, seconds: float = 60) -> None:
    """Ask until the answer is yes."""
    async with asyncio.timeout(seconds):
        while not await check():
            await asyncio.sleep(0.25)  # a user may make 60 requests a minute


@contextlib.asynccontextmanager
async def worker(settings: BusSettings, name: str) -> AsyncIterator[Service]:
    """Another service, to append what is its own to append."""
    async with Service(name).running(settings) as service:
        yield service


def planned(run_id: str) -> RunPlanned:
    plan = Plan(steps=(PlanStep(title="x"),))
    return RunPlanned(run_id=run_id, attempt=1, plan=plan, repository="team/app", base_branch="main", base_commit="0" * 40)


async def solve(client: httpx.AsyncClient, **headers: str) -> httpx.Response:
    return await client.post("/api/issues/42/solve", json=GOOD, headers={k.replace("_", "-"): v for k, v in headers.items()})


async def test_a_run_is_opened_listed_traced_and_cancelled(client: httpx.AsyncClient) -> None:
    accepted = await solve(client)
    assert accepted.status_code == 202
    run_id = accepted.json()["instanceId"]
    assert (await client.get(f"/api/runs/{run_id}")).json()["status"] == "queued"

    async def listed() -> bool:
        return [r["run_id"] for r in (await client.get("/api/runs?q=修复")).json()["runs"]] == [run_id]

    async def traced(name: str) -> bool:
        answer = await client.get(f"/api/runs/{run_id}/trace")
        return answer.status_code == 200 and name in [s["name"] for s in answer.json()["spans"]]

    await eventually(listed)
    await eventually(lambda: traced("POST /api/issues/{id}/solve"))
    assert (await client.post(f"/api/runs/{run_id}/cancel")).status_code == 200
    await eventually(lambda: traced("send run.cancelled"))
    opening = (await client.get(f"/api/runs/{run_id}/trace")).json()["spans"][0]
    assert opening["attributes"] == {"http.request.method": "POST", "http.route": "/api/issues/{id}/solve"}
    stream = await client.get(f"/api/runs/{run_id}/events")
    assert "run.cancelled" in stream.text
    assert stream.text.rstrip().endswith('"status": "cancelled"}')


async def test_the_same_key_at_once_opens_one_run(client: httpx.AsyncClient) -> None:
    answers = await asyncio.gather(*(solve(client, Idempotency_Key="k") for _ in range(20)))
    assert {a.status_code for a in answers} == {202}
    assert len({a.json()["instanceId"] for a in answers}) == 1
    assert sum("idempotency-replayed" not in a.headers for a in answers) == 1


async def test_a_stream_follows_the_journal_and_progress_to_the_end(client: httpx.AsyncClient, settings: BusSettings) -> None:
    run_id = (await solve(client)).json()["instanceId"]
    lines: list[str] = []
    async with worker(settings, "planner") as planner, client.stream("GET", f"/api/runs/{run_id}/events") as stream:
        appended = False
        async for line in stream.aiter_lines():
            lines.append(line)
            if line == ": heartbeat" and not appended:
                appended = True
                last = (await planner.bus.journal.state(run_id)).sequence
                await planner.bus.progress(run_id, "plan", "status", "looking around")
                await planner.bus.journal.append(planned(run_id), follows=last)
            if line.startswith("event: run.planned"):
                cancelled = await client.post(f"/api/runs/{run_id}/cancel")
                assert cancelled.status_code == 200
    events = [line.removeprefix("event: ") for line in lines if line.startswith("event: ")]
    assert [e for e in events if e != "progress"] == ["run.opened", "run.planned", "run.cancelled", "end"]
    assert any("looking around" in line for line in lines)
    ids = [int(line[4:]) for line in lines if line.startswith("id: ")]
    resumed = await client.get(f"/api/runs/{run_id}/events", headers={"Last-Event-ID": str(ids[0])})
    assert [int(line[4:]) for line in resumed.text.splitlines() if line.startswith("id: ")] == ids[1:]


async def test_a_stream_survives_the_loss_of_its_consumer(client: httpx.AsyncClient, settings: BusSettings) -> None:
    run_id = (await solve(client)).json()["instanceId"]
    admin = await Connection.open(settings, "admin")
    got: list[str] = []
    try:
        async with client.stream("GET", f"/api/runs/{run_id}/events") as stream:
            async for line in stream.aiter_lines():
                got.append(line)
                if got.count(": heartbeat") == 1 and line == ": heartbeat":
                    names = (await admin.api("CONSUMER.NAMES.RUN", {}))["consumers"]
                    for name in names:
                        if name.startswith("tail-"):
                            await admin.api(f"CONSUMER.DELETE.RUN.{name}", {})
                    await client.post(f"/api/runs/{run_id}/cancel")
    finally:
        await admin.close()
    assert "event: end" in got
    assert sum(line.startswith("id: ") for line in got) == 2


@pytest.mark.parametrize("mode", ["http", "structured", "binary"])
async def test_a_fact_from_outside_opens_one_run_however_it_comes(client: httpx.AsyncClient, settings: BusSettings, mode: str) -> None:
    data = {"issue": {"id": "7", "title": "修复"}, "repo": "team/app"}
    attributes = {"specversion": "1.0", "id": "e-1", "source": "https://ci.example.org/x", "type": "agent-coder.solve-issue"}
    body, headers = json.dumps({**attributes, "data": data}).encode(), {"content-type": "application/cloudevents+json"}
    sent = await client.post("/api/events", content=body, headers=headers)
    run_id = sent.json()["events"][0]["instanceId"]
    if mode != "http":
        admin = await Connection.open(settings, "admin")
        if mode == "binary":
            body, headers = json.dumps(data).encode(), {f"ce-{k}": v for k, v in attributes.items()}
        await admin.publish("inbound.ci.agent-coder.solve-issue", body, headers, "INBOX")
        await admin.publish("inbound.ci.broken", b"\xff", {}, "INBOX")
        await admin.close()

        async def buried() -> bool:
            return len((await client.get("/api/dead")).json()["letters"]) == 1

        await eventually(buried)

    async def opened() -> bool:
        return (await client.get(f"/api/runs/{run_id}")).status_code == 200

    await eventually(opened)
    page = (await client.get(f"/api/runs/{run_id}/events", headers={"accept": "application/json"})).json()
    assert [e["type"] for e in page["events"]] == ["run.opened"]


async def test_a_dead_fact_is_shown_replayed_and_dies_again(client: httpx.AsyncClient, settings: BusSettings) -> None:
    admin = await Connection.open(settings, "admin")
    await admin.publish("inbound.ci.broken", b"not json", {"x-from": "ci"}, "INBOX")
    await admin.close()

    async def letters(count: int, first: int) -> bool:
        found = (await client.get("/api/dead")).json()["letters"]
        return len(found) == count and found[0]["sequence"] == first

    await eventually(lambda: letters(1, 1))
    assert "not JSON" in (await client.get("/api/dead/1")).json()["reason"]
    assert (await client.post("/api/dead/1/replay")).json()["stream"] == "INBOX"
    await eventually(lambda: letters(1, 2))
    assert (await client.delete("/api/dead/2")).status_code == 204
    assert (await client.get("/api/dead/2")).status_code == 404


async def test_a_question_that_nobody_answers_ends_the_run(client: httpx.AsyncClient, settings: BusSettings) -> None:
    run_id = (await solve(client)).json()["instanceId"]
    async with worker(settings, "planner") as planner:
        journal = planner.bus.journal
        of = (await journal.state(run_id)).sequence
        expires = datetime.now(UTC) + timedelta(seconds=1)
        asked = ApprovalRequested(run_id=run_id, step="plan", of=of, question="Go on?", expires_at=expires)
        sequence = await journal.append(asked, follows=of)
        await planner.bus.timers.set(run_id, "approval", expires, {"of": sequence})

    async def expired() -> bool:
        return (await client.get(f"/api/runs/{run_id}")).json()["status"] == "failed"

    await eventually(expired)
    assert "Go on?" in (await client.get(f"/api/runs/{run_id}")).json()["why"]
    assert (await client.post(f"/api/runs/{run_id}/retry")).json()["step"] == "plan"


async def test_a_journal_with_an_unreadable_end_can_be_cancelled(client: httpx.AsyncClient, settings: BusSettings) -> None:
    run_id = (await solve(client)).json()["instanceId"]
    admin = await Connection.open(settings, "admin")
    await admin.publish(f"run.{run_id}.planned", b"{broken", {}, "RUN")
    await admin.close()
    assert (await client.post(f"/api/runs/{run_id}/cancel")).status_code == 200
    assert (await client.get(f"/api/runs/{run_id}")).json()["status"] == "cancelled"


async def test_a_run_whose_journal_is_gone_is_shown_from_the_read_model(client: httpx.AsyncClient, settings: BusSettings) -> None:
    run_id = (await solve(client)).json()["instanceId"]

    async def listed() -> bool:
        return bool((await client.get("/api/runs?issue=42")).json()["runs"])

    await eventually(listed)
    admin = await Connection.open(settings, "admin")
    await admin.api("STREAM.PURGE.RUN", {"filter": f"run.{run_id}.>"})
    await admin.close()
    assert (await client.get(f"/api/runs/{run_id}")).json()["issue"]["title"] == "修复 Wrokr"
    assert (await client.get(f"/api/runs/{run_id}/events")).status_code == 410


async def test_git_streams_through(client: httpx.AsyncClient) -> None:
    answer = await client.get("/git/team/app.git/info/refs?service=git-upload-pack")
    assert (answer.status_code, len(answer.content)) == (200, 5_000_000)
    assert answer.headers["content-type"] == "application/x-git"


async def test_stopping_ends_open_streams_and_frees_the_port(settings: BusSettings) -> None:
    gateway = build_gateway()
    from services.gateway.settings import GatewaySettings

    url, token = f"http://127.0.0.1:{GatewaySettings().port}", (settings.home / "token").read_text().strip()
    async with httpx.AsyncClient(base_url=url, headers={"Authorization": f"Bearer {token}"}, timeout=20) as client:
        running = gateway.running(settings)
        await running.__aenter__()
        await eventually(lambda: reachable(client))
        run = RunOpened(run_id="r1", issue=Issue(id="1", title="x"), repo="a", opened_at=datetime.now(UTC))
        await gateway.bus.journal.append(run, follows=0)
        async with client.stream("GET", "/api/runs/r1/events") as stream:
            lines = stream.aiter_lines()
            while "run.opened" not in await anext(lines):
                pass
            stopping = asyncio.create_task(running.__aexit__(None, None, None))
            rest = [line async for line in lines]
            await asyncio.wait_for(stopping, 10)
        assert "event: end" not in rest
    async with build_gateway().running(settings) as again, httpx.AsyncClient(base_url=url) as client:
        await eventually(lambda: reachable(client))
        assert RunCancelled.subject
        assert again.bus.connection.client.is_connected
