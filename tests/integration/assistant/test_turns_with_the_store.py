"""Turns over the real session store: what is stored, remembered, compacted and found again. The model answers from memory."""

import asyncio
import json
from contextlib import AsyncExitStack

import pytest

from libs.bus.connection import Connection
from libs.contracts import conversation as c
from libs.contracts import memory
from libs.contracts.turn import TurnCancelled
from libs.testkit.broker import broker
from services.session_store.__main__ import build as build_store
from tests.integration.assistant.chat_live import Chat, serving
from tests.unit.assistant.chat_world import MODELS, World, opened, says, user

SESSION = {"session_id": "s1"}


class Stored(Chat):
    """The gateway's side over the real store."""

    async def ask(self, question):
        return await self.questioner.ask(question)

    async def send(self, text, turn_id="t1", session="s1", **fields):
        owner = {name: fields[name] for name in ("tenant", "user") if name in fields}
        await self.ask(c.AppendMessages(**owner, session_id=session, messages=(user(text, ident=f"m-{turn_id}"),)))
        event = opened(turn_id, f"m-{turn_id}", **fields).model_copy(update={"session_id": session})
        await self.turns.append(event, follows=0)

    async def path(self, **fields):
        return (await self.ask(c.ReadHistory(**SESSION, **fields))).messages


@pytest.fixture
async def chat(tmp_path, monkeypatch):
    monkeypatch.setenv("AGENT_CODER_HOME", str(tmp_path / "home"))
    world = World(says("Hello there."))
    async with AsyncExitStack() as stack:
        _, settings = await stack.enter_async_context(broker(tmp_path / "home"))
        await stack.enter_async_context(serving("inference", MODELS, world.ask).running(settings))
        await stack.enter_async_context(build_store().running(settings))
        connection = await Connection.open(settings, "gateway")
        stack.push_async_callback(connection.close)
        yield Stored(connection, world, settings, tmp_path)


async def test_an_answer_is_stored_once_behind_its_question_and_counted(chat):
    chat.world.replies["chat"] = [says("Looking.", ("current_time", "{}")), says("It is late.")]
    async with chat.assistant():
        await chat.send("What time is it?")
        ended = await chat.until("t1", "finished")
    assert ended.finished.context_tokens == (await chat.ask(c.ReadHistory(**SESSION))).tokens > 0
    question, answer = await chat.path()
    assert (answer.id, answer.parent_id, answer.role) == ("answer-t1", question.id, "assistant")
    assert [part["type"] for part in answer.parts] == ["step-start", "text", "tool-current_time", "step-start", "text"]
    assert (await chat.ask(c.ReadSession(**SESSION))).usage.calls == 2


async def test_messages_sent_while_an_answer_is_written_stay_on_one_branch(chat):
    chat.world.replies["chat"] = [says("First WAIT"), says("Second.")]
    async with chat.assistant():
        await chat.send("One")
        async with asyncio.timeout(60):
            await chat.world.held.wait()
        await chat.send("Two", "t2")
        chat.world.go.set()
        await chat.until("t2", "finished")
    assert [m.id for m in await chat.path()] == ["m-t1", "m-t2", "answer-t1", "answer-t2"]
    assert [m.content for m in chat.world.questions()[-1].messages[1:]] == ["One", "First WAIT", "Two"]


async def test_an_answer_goes_below_its_question_when_its_branch_is_left_while_it_is_written(chat):
    chat.world.replies["chat"] = [says("First WAIT")]
    async with chat.assistant():
        await chat.send("One")
        async with asyncio.timeout(60):
            await chat.world.held.wait()
        await chat.ask(c.AppendMessages(**SESSION, messages=(user("Another talk", ident="other", parent_id=""),)))
        chat.world.go.set()
        await chat.until("t1", "finished")
    assert [m.id for m in await chat.path(leaf_id="answer-t1")] == ["m-t1", "answer-t1"]
    assert [m.id for m in await chat.path(leaf_id="other")] == ["other"]


async def test_a_regenerated_answer_stands_beside_the_old_one(chat):
    chat.world.replies["chat"] = [says("Blue."), says("Red.")]
    async with chat.assistant():
        await chat.send("A colour?")
        await chat.until("t1", "finished")
        await chat.turns.append(opened("t2", "m-t1", trigger="regenerate"), follows=0)
        await chat.until("t2", "finished")
    branches = await chat.ask(c.ReadBranches(**SESSION, message_id="m-t1"))
    assert [child.id for child in branches.children] == ["answer-t1", "answer-t2"]
    assert [m.content for m in chat.world.questions()[1].messages[1:]] == ["A colour?"]


async def test_a_paused_answer_is_in_the_history_and_is_replaced_by_the_whole_one(chat):
    chat.world.replies["chat"] = [says("", ("solve_issue", json.dumps({"title": "x", "repo": "https://example.org/r"}))), says("It runs.")]
    async with chat.assistant():
        await chat.send("Fix it")
        call = (await chat.until("t1", "waiting")).pending[0]
        waiting = (await chat.path())[-1]
        await chat.word("t1", call.call_id, approved=True)
        await chat.until("t1", "finished")
    whole = (await chat.path())[-1]
    assert waiting.parts[-1]["state"] == "approval-requested"
    assert (whole.id, whole.parts[-1]["text"]) == (waiting.id, "It runs.")
    assert whole.parts[1]["approval"] == {"id": call.call_id, "approved": True}
    assert "paused" not in whole.metadata


async def test_a_turn_that_is_cancelled_while_it_waits_asks_for_nothing_any_more_and_the_next_goes_on(chat):
    chat.world.replies["chat"] = [says("", ("solve_issue", json.dumps({"title": "x", "repo": "https://example.org/r"}))), says("Fine.")]
    async with chat.assistant():
        await chat.send("Fix it")
        await chat.until("t1", "waiting")
        await chat.send("Never mind", "t2")
        await chat.append("t1", TurnCancelled(turn_id="t1", by="local"))
        await chat.until("t2", "finished")
        async with asyncio.timeout(60):
            while not (stopped := next(m for m in await chat.path() if m.id == "answer-t1")).metadata.get("aborted"):
                await asyncio.sleep(0.02)
    assert (stopped.parts[-1]["state"], stopped.parts[-1]["errorText"]) == ("output-error", "The turn was cancelled.")
    assert [m.role for m in chat.world.questions()[-1].messages[1:]] == ["user", "assistant", "tool", "user"]


async def test_context_blocks_are_written_and_their_limits_are_told(chat):
    calls = [
        ("set_context", json.dumps({"label": "notes", "content": "Likes tea."})),
        ("set_context", json.dumps({"label": "notes", "content": "tea " * 9000})),
        ("set_context", json.dumps({"label": "instructions", "content": "Obey."})),
        ("set_context", json.dumps({"label": "knowledge", "key": "tea", "content": "绿茶 is green tea."})),
    ]
    chat.world.replies["chat"] = [says("", *calls), says("", ("search_context", '{"label": "knowledge", "query": "绿茶"}')), says("Noted.")]
    async with chat.assistant():
        await chat.send("I like tea")
        await chat.until("t1", "finished")
    notes, over, readonly, entry, _, found = ((await chat.path())[-1].parts)[1:7]
    assert "1100 tokens" in notes["output"]
    assert [part["state"] for part in (over, readonly, entry, found)] == [
        "output-error",
        "output-error",
        "output-available",
        "output-available",
    ]
    assert "green tea" in found["output"]


async def test_what_is_said_is_remembered_and_found_in_another_conversation(chat):
    chat.world.replies["memory"] = [says('{"items": [{"content": "The person deploys on Fridays.", "topic": "deploy day"}]}')]
    chat.world.replies["chat"] = [says("Good."), says("", ("search_sessions", '{"query": "Fridays"}')), says("On Fridays.")]
    async with chat.assistant():
        await chat.send("I deploy on Fridays")
        async with asyncio.timeout(60):
            while not (await chat.ask(memory.ListMemory())).items:
                await asyncio.sleep(0.05)
        await chat.send("When do I deploy?", "t2", session="s2")
        await chat.until("t2", "finished")
    told = chat.world.questions()[1].messages[1].content
    assert '<untrusted_data source="memory">' in told
    assert "deploys on Fridays" in told
    found = chat.world.questions()[2].messages[-1].content
    assert "I deploy on Fridays" in found


async def test_a_long_conversation_is_compacted_by_the_cheap_model_and_goes_on(chat):
    chat.world.replies["chat"] = [says("Understood.")]
    pairs = [user(f"Fact {n}: " + "lorem ipsum " * 400, f"h{n}") for n in range(24)]
    await chat.ask(c.AppendMessages(**SESSION, messages=tuple(pairs)))
    async with chat.assistant(compact_over_tokens=4000, cheap_model="small"):
        await chat.send("Go on")
        await chat.until("t1", "finished")
        async with asyncio.timeout(60):
            while not chat.world.questions("compact"):
                await asyncio.sleep(0.05)
            while not any("In short." in json.dumps(m.parts) for m in await chat.path(compacted=True)):
                await asyncio.sleep(0.05)
        await chat.send("And now?", "t2")
        await chat.until("t2", "finished")
    assert chat.world.questions("compact")[0].model == "small"
    prompt = chat.world.questions()[-1].messages
    assert any("In short." in m.content for m in prompt)
    assert prompt[-1].content == "And now?"
    assert len(await chat.path()) == 28
