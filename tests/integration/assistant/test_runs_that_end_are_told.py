"""A run that a conversation asked for ends: the person is told once, in the conversation, by a turn without tools."""

import asyncio
import json

from libs.bus.connection import Connection
from libs.bus.topology import ADMIN
from libs.contracts import conversation as c
from libs.contracts.run import RunCancelled
from libs.contracts.turn import AwaitStable
from tests.integration.assistant.test_turns_with_the_store import SESSION, chat
from tests.unit.assistant.chat_world import says

__all__ = ["chat"]
ISSUE = ("solve_issue", json.dumps({"title": "Fix 登录", "repo": "https://example.org/r"}))


async def asked_for(chat) -> str:
    """A run that was asked for in the conversation and consented to; its id."""
    chat.world.replies["chat"] = [says("", ISSUE), says("It runs."), says("The run was cancelled.")]
    await chat.send("Fix it", plan="pro", model="scripted")
    call = (await chat.until("t1", "waiting")).pending[0]
    await chat.word("t1", call.call_id, approved=True)
    await chat.until("t1", "finished")
    output = next(p["output"] for p in (await chat.path())[-1].parts if p["type"] == "tool-solve_issue")
    assert "told when it has ended" in output
    return output.split()[1]


async def cancelled(chat, run_id) -> None:
    _, last = await chat.runs.read_to_end(run_id)
    await chat.runs.append(RunCancelled(run_id=run_id, by="anna", reason="no longer wanted"), follows=last)


async def told(chat, messages: int) -> tuple[c.StoredMessage, ...]:
    async with asyncio.timeout(60):
        while len(path := await chat.path()) < messages:
            await asyncio.sleep(0.02)
    return path


async def heard(chat) -> None:
    """Wait until the assistant is done with the end of a run."""
    admin = await Connection.open(chat.settings, ADMIN)
    async with asyncio.timeout(60):
        while True:
            info = await admin.api("CONSUMER.INFO.RUN.assistant-told", {})
            if info["delivered"]["consumer_seq"] and not info["num_ack_pending"]:
                break
            await asyncio.sleep(0.02)
    await admin.close()


async def test_a_run_that_ended_is_told_in_its_conversation_by_a_turn_without_tools(chat):
    async with chat.assistant():
        run_id = await asked_for(chat)
        await cancelled(chat, run_id)
        *_, news, answer = await told(chat, 4)
    assert (news.role, news.metadata) == ("system", {"run_id": run_id, "status": "cancelled"})
    assert "Fix 登录" in news.parts[0]["text"]
    assert (answer.role, answer.parts[-1]["text"]) == ("assistant", "The run was cancelled.")
    state = await chat.state(answer.id.removeprefix("answer-"))
    assert (state.opened.trigger, state.opened.inline_tools, state.opened.plan, state.opened.model) == ("server", False, "pro", "scripted")
    question = chat.world.questions()[-1]
    assert question.tools == ()
    assert [m.role for m in question.messages[-2:]] == ["system", "user"]


async def test_an_end_that_is_delivered_twice_is_told_once(chat, monkeypatch):
    monkeypatch.setattr("libs.bus.delivery.DUPLICATE", True)
    async with chat.assistant():
        run_id = await asked_for(chat)
        await cancelled(chat, run_id)
        path = await told(chat, 4)
        stable = await chat.ask(AwaitStable(**SESSION, timeout_seconds=30))
    assert stable.stable
    assert [m.role for m in path] == [m.role for m in await chat.path()] == ["user", "assistant", "system", "assistant"]


async def test_a_conversation_that_was_deleted_is_not_made_again(chat):
    async with chat.assistant():
        run_id = await asked_for(chat)
        await chat.ask(c.DeleteSession(**SESSION))
        await cancelled(chat, run_id)
        await heard(chat)
    sessions = (await chat.ask(c.ListSessions())).sessions
    assert [s.session_id for s in sessions] == []
    assert len(chat.world.questions()) == 2
