"""The assistant as a process that is killed (SIGKILL) at every named place of a turn, each once, and started again."""

import asyncio
import json
import os
import sys
from contextlib import AsyncExitStack

import pytest

from libs.bus.connection import Connection
from libs.contracts import conversation as c
from libs.contracts.turn import TurnModelReplied
from libs.testkit.broker import broker
from libs.testkit.product import FAST
from services.session_store.__main__ import build as build_store
from tests.integration.assistant.chat_live import serving
from tests.integration.assistant.test_turns_with_the_store import Stored
from tests.unit.assistant.chat_world import MODELS, World, says

TURN = [f"turn.{event}" for event in ("admitted", "step_started", "model_replied", "tool_started", "tool_returned", "paused", "finished")]
PLACES = [f"assistant:{when}:{event}" for event in (*TURN, "run.opened") for when in ("before_append", "after_append")]
pytestmark = pytest.mark.timeout(170)


class Process:
    """`python -m services.assistant`, started again whenever it dies."""

    def __init__(self, settings, tmp_path, places):
        (tmp_path / "crashes").mkdir()
        self.crashes, self.deaths = tmp_path / "crashes", 0
        self.environment = os.environ | {
            "AGENT_CODER_HOME": str(settings.home),
            "AGENT_CODER_NATS_URL": settings.nats_url,
            **FAST,
            "AGENT_CODER_CRASH_AT": ",".join(places),
            "AGENT_CODER_CRASH_DIR": str(self.crashes),
        }

    async def run(self):
        while True:
            process = await asyncio.create_subprocess_exec(sys.executable, "-m", "services.assistant", env=self.environment)
            try:
                await process.wait()
                self.deaths += 1
            finally:
                if process.returncode is None:
                    process.terminate()
                    await process.wait()


async def test_a_turn_is_answered_once_whatever_place_its_worker_is_killed_at(tmp_path, monkeypatch):
    monkeypatch.setenv("AGENT_CODER_HOME", str(tmp_path / "home"))
    issue = json.dumps({"title": "Fix it", "repo": "https://example.org/x.git"})
    world = World(says("Let me see.", ("current_time", "{}"), ("solve_issue", issue)), says("It runs."), says("Again."))
    async with AsyncExitStack() as stack:
        _, settings = await stack.enter_async_context(broker(tmp_path / "home"))
        await stack.enter_async_context(serving("inference", MODELS, world.ask).running(settings))
        await stack.enter_async_context(build_store().running(settings))
        connection = await Connection.open(settings, "gateway")
        stack.push_async_callback(connection.close)
        chat = Stored(connection, world, settings, tmp_path)
        process = Process(settings, tmp_path, PLACES)
        running = asyncio.create_task(process.run())
        try:
            async with asyncio.timeout(150):
                await chat.send("Fix it")
                while (state := await chat.state()).status != "waiting":
                    await asyncio.sleep(0.1)
                await chat.word("t1", state.pending[0].call_id, approved=True)
                while (state := await chat.state()).status != "finished" or process.deaths < len(PLACES):
                    await asyncio.sleep(0.1)  # the last one dies when the end can be read already
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
        history = await chat.turns.read("t1")
        answer = (await chat.path())[-1]
        session = await chat.ask(c.ReadSession(session_id="s1"))
        run = await chat.runs.state(answer.parts[3]["output"].split()[1])
    assert process.deaths == len(list(process.crashes.iterdir())) == len(PLACES)
    assert [r.event.call for r in history if isinstance(r.event, TurnModelReplied)] == [1, 2]
    assert [q.request_id for q in world.questions()] == ["t1-2-1", "t1-2-2"]
    assert (session.messages, session.usage.calls) == (2, 2)
    assert answer.parts[-1]["text"] == "It runs."
    assert run.opened.issue.title == "Fix it"
