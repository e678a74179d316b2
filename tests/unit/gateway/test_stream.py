"""Following a run: nothing left out, nothing twice, a clean end, no client that holds the server."""

import asyncio
import json
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from libs.contracts.live import Progress
from libs.contracts.run import RunCancelled, RunRetried
from tests.unit.gateway import stories
from tests.unit.gateway.conftest import TOKEN
from tests.unit.gateway.fake_bus import FakeBus


def parsed(text: str) -> list[dict[str, str]]:
    """Server-sent events as dicts; comments as `{"comment": …}`."""
    found = []
    for block in text.split("\n\n"):
        if block.startswith(":"):
            found.append({"comment": block[1:].strip()})
        elif block:
            found.append(dict(line.split(": ", 1) for line in block.split("\n")))
    return found


def ids(text: str) -> list[int]:
    return [int(e["id"]) for e in parsed(text) if "id" in e]


class Reader:
    """One GET straight through ASGI: reads while the server writes, and can stop reading."""

    def __init__(self, app: FastAPI, path: str, headers: dict[str, str] | None = None) -> None:
        self.body = b""
        self.news = asyncio.Event()
        self.may_read = asyncio.Event()
        self.may_read.set()
        self.gone = asyncio.Event()
        head = {"authorization": f"Bearer {TOKEN}"} | (headers or {})
        self._scope: dict[str, Any] = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": "GET",
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "root_path": "",
            "headers": [(k.encode(), v.encode()) for k, v in head.items()],
            "server": ("server", 80),
            "client": ("client", 1),
        }
        self._sent_request = False
        self.task = asyncio.create_task(app(self._scope, self._receive, self._send))

    async def _receive(self) -> dict[str, Any]:
        if not self._sent_request:
            self._sent_request = True
            return {"type": "http.request", "body": b"", "more_body": False}
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        await self.may_read.wait()
        self.body += message.get("body", b"")
        self.news.set()

    async def until(self, text: str) -> None:
        """Wait until `text` was received."""
        async with asyncio.timeout(60):
            while text.encode() not in self.body:
                self.news.clear()
                await self.news.wait()


async def test_a_finished_run_is_its_journal_and_an_end(client: httpx.AsyncClient, bus: FakeBus) -> None:
    for event in stories.whole():
        bus.add(event)
    answer = await client.get("/api/runs/r1/events")
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.headers["cache-control"] == "no-store"
    events = parsed(answer.text)
    assert events[0] == {"retry": "2000"}
    assert [e["event"] for e in events[1:]][:2] == ["run.opened", "run.planned"]
    assert ids(answer.text) == list(range(1, 8))
    assert events[-1]["event"] == "end"
    assert json.loads(events[-1]["data"]) == {"run_id": "r1", "status": "finished"}
    assert json.loads(events[1]["data"])["data"]["issue"]["title"] == "修复 Wrokr"


async def test_a_reader_goes_on_where_it_was(client: httpx.AsyncClient, bus: FakeBus) -> None:
    for event in stories.whole():
        bus.add(event)
    resumed = await client.get("/api/runs/r1/events", headers={"Last-Event-ID": "4"})
    asked = await client.get("/api/runs/r1/events?after=5")
    at_end = await client.get("/api/runs/r1/events?after=7")
    assert (ids(resumed.text), ids(asked.text), ids(at_end.text)) == ([5, 6, 7], [6, 7], [])
    assert parsed(at_end.text)[-1]["event"] == "end"
    assert (await client.get("/api/runs/r1/events", headers={"Last-Event-ID": "x"})).status_code == 422


async def test_a_run_under_way_is_followed_to_its_end_with_progress_and_heartbeats(app: FastAPI, bus: FakeBus) -> None:
    story = stories.whole()
    bus.add(story[0])
    reader = Reader(app, "/api/runs/r1/events")
    await reader.until("heartbeat")
    frame = Progress(id="r1", step="plan", kind="model", text="thinking…", at=datetime.now(UTC))
    bus.store("LIVE", "live.r1.progress", frame.model_dump_json().encode())
    bus.store("LIVE", "live.r1.progress", b"broken")
    bus.store("LIVE", "live.r2.progress", frame.model_dump_json().encode())
    await reader.until("thinking…")
    bus.add(stories.opened("r2"))
    for event in story[1:]:
        bus.add(event)
    await asyncio.wait_for(reader.task, 10)
    text = reader.body.decode()
    assert [e["event"] for e in parsed(text) if "id" in e] == [e.type for e in story]
    assert [e for e in parsed(text) if e.get("event") == "progress" and "id" in e] == []
    assert text.count("event: progress") == 1
    assert bus.tails == 0


async def test_a_run_that_was_sent_back_is_followed_past_its_first_end(app: FastAPI, bus: FakeBus) -> None:
    stories.failed(bus)
    bus.add(RunRetried(run_id="r1", step="edit", of=2, by="x"))
    reader = Reader(app, "/api/runs/r1/events")
    await reader.until("run.retried")
    assert b"event: end" not in reader.body
    bus.add(RunCancelled(run_id="r1", by="x"))
    await asyncio.wait_for(reader.task, 10)
    assert ids(reader.body.decode()) == [1, 2, 3, 4, 5]


async def test_a_reader_that_leaves_leaves_nothing_behind(app: FastAPI, bus: FakeBus) -> None:
    bus.add(stories.opened())
    reader = Reader(app, "/api/runs/r1/events")
    await reader.until("heartbeat")
    reader.gone.set()
    await asyncio.wait_for(reader.task, 10)
    assert bus.tails == 0


async def test_a_server_that_stops_ends_its_streams(app: FastAPI, bus: FakeBus) -> None:
    bus.add(stories.opened())
    reader = Reader(app, "/api/runs/r1/events")
    await reader.until("run.opened")
    app.state.gateway.stopping.set()
    await asyncio.wait_for(reader.task, 10)
    assert b"event: end" not in reader.body
    assert bus.tails == 0


async def test_a_reader_that_takes_nothing_is_dropped(bus: FakeBus, app: FastAPI) -> None:
    gateway = app.state.gateway
    object.__setattr__(gateway, "settings", gateway.settings.model_copy(update={"send_timeout_seconds": 0.05}))
    bus.add(stories.opened())
    reader = Reader(app, "/api/runs/r1/events")
    await reader.until("run.opened")
    reader.may_read.clear()
    await asyncio.wait_for(reader.task, 10)
    assert bus.tails == 0


async def test_a_slow_reader_loses_progress_but_no_event(app: FastAPI, bus: FakeBus) -> None:
    bus.add(stories.opened())
    reader = Reader(app, "/api/runs/r1/events")
    await reader.until("heartbeat")
    reader.may_read.clear()
    frame = Progress(id="r1", step="edit", kind="output", text="line", at=datetime.now(UTC)).model_dump_json().encode()
    for _ in range(2000):
        bus.store("LIVE", "live.r1.progress", frame)
    for attempt in range(400):
        bus.add(stories.planned(attempt=attempt % 9 + 1))
    bus.add(RunCancelled(run_id="r1", by="x"))
    await asyncio.sleep(0)
    reader.may_read.set()
    await asyncio.wait_for(reader.task, 20)
    assert ids(reader.body.decode()) == list(range(1, 403))
    assert reader.body.count(b"event: progress") < 2000


async def test_an_unreadable_event_is_passed_over(client: httpx.AsyncClient, bus: FakeBus) -> None:
    bus.add(stories.opened())
    bus.store("RUN", "run.r1.planned", b"{broken")
    bus.store("RUN", "run.r1.from_the_future", b"{}")
    bus.add(RunCancelled(run_id="r1", by="x"))
    assert ids((await client.get("/api/runs/r1/events")).text) == [1, 4]


@pytest.mark.parametrize(("query", "got", "more"), [("", 7, None), ("?limit=3", 3, 3), ("?limit=3&after=3", 3, 6), ("?after=6", 1, None)])
async def test_the_journal_comes_in_pages_as_json(client: httpx.AsyncClient, bus: FakeBus, query: str, got: int, more: int | None) -> None:
    for event in stories.whole():
        bus.add(event)
    page = (await client.get(f"/api/runs/r1/events{query}", headers={"accept": "application/json"})).json()
    assert (len(page["events"]), page["next_after"], page["ended"]) == (got, more, True)
