"""Turns on a real broker, with the assistant's own user; the session store and the model answer from memory."""

import asyncio
import json
from contextlib import AsyncExitStack

import pytest

from libs.bus import Refusal
from libs.bus.connection import Connection
from libs.bus.kv import Kv
from libs.bus.steps import StepRunner
from libs.bus.subjects import conversation_key
from libs.contracts import turn as events
from libs.testkit.broker import broker
from tests.integration.assistant.chat_live import Chat, serving
from tests.unit.assistant.chat_world import MODELS, STORE, World, opened, says, user


@pytest.fixture
async def chat(tmp_path):
    world = World(says("Hello there."))
    async with AsyncExitStack() as stack:
        _, settings = await stack.enter_async_context(broker(tmp_path / "home"))
        for name, questions in (("session_store", STORE), ("inference", MODELS)):
            await stack.enter_async_context(serving(name, questions, world.ask).running(settings))
        connection = await Connection.open(settings, "gateway")
        stack.push_async_callback(connection.close)
        yield Chat(connection, world, settings, tmp_path)


async def test_a_message_is_admitted_answered_shown_and_stored(chat):
    async with chat.assistant():
        await chat.send("Hi")
        state = await chat.until("t1", "finished")
        frames = await chat.chunks()
    kinds = [frame["chunk"]["type"] for frame in frames]
    assert kinds == ["start", "start-step", "text-start", "text-delta", "text-delta", "text-end", "finish-step", "finish"]
    assert "".join(f["chunk"].get("delta", "") for f in frames) == "Hello there."
    assert {f["token"] for f in frames} == {frames[0]["token"]}
    assert [f["n"] for f in frames] == list(range(1, 9))
    answer = chat.world.message(state.finished.message_id)
    assert answer.parent_id == "m-t1"
    assert answer.parts[-1] == {"type": "text", "text": "Hello there.", "state": "done"}
    assert chat.world.usage.calls == 1
    assert [type(r.event).__name__ for r in await chat.turns.read("t1")] == [
        "TurnOpened",
        "TurnAdmitted",
        "TurnStepStarted",
        "TurnModelReplied",
        "TurnFinished",
    ]
    question = chat.world.questions()[0]
    assert (question.account, question.tenant, question.user) == ("turn:t1", "local", "local")


LOCATE = events.ClientTool(name="locate", description="where the person is", parameters={"type": "object", "properties": {}})
SOLVE = ("solve_issue", '{"title": "Fix it", "repo": "https://example.org/x.git"}')


def scripted(world, *replies):
    world.replies["chat"] = list(replies)


async def test_own_tools_run_and_their_results_go_back_to_the_model(chat):
    scripted(
        chat.world, says("", ("current_time", "{}"), ("load_skill", '{"name": "code-review"}')), says("", ("nonsense", "{}")), says("Done.")
    )
    async with chat.assistant():
        await chat.send("What time is it?")
        state = await chat.until("t1", "finished")
    outputs = [part for part in chat.world.message(state.finished.message_id).parts if part["type"].startswith("tool-")]
    assert [part["state"] for part in outputs] == ["output-available", "output-available", "output-error"]
    assert "# Code review" in outputs[1]["output"]
    system = chat.world.questions()[0].messages[0].content
    assert "code-review:" in system
    assert "# Code review" not in system


async def test_a_call_that_needs_consent_waits_over_a_restart_and_runs_once_allowed(chat):
    scripted(chat.world, says("I start a run.", SOLVE), says("It runs."))
    async with chat.assistant():
        await chat.send("Fix it")
        state = await chat.until("t1", "waiting")
    call = state.pending[0]
    assert (call.tool, call.waits_for, json.loads(call.arguments)["title"]) == ("solve_issue", "approval", "Fix it")
    part = chat.world.message("answer-t1").parts[-1]
    assert (part["state"], part["input"]["title"]) == ("approval-requested", "Fix it")
    async with chat.assistant():
        await chat.word("t1", call.call_id, approved=True)
        state = await chat.until("t1", "finished")
        frames = await chat.chunks()
    asked = [f["chunk"] for f in frames if f["chunk"]["type"] == "tool-approval-request"]
    assert asked == [{"type": "tool-approval-request", "approvalId": call.call_id, "toolCallId": call.call_id}]
    parts = chat.world.message("answer-t1").parts
    run_id = parts[2]["output"].split()[1]
    run = (await chat.runs.state(run_id)).opened
    assert (run.origin, run.requested_by, run.issue.title) == ("chat", "local", "Fix it")
    assert parts[-1]["text"] == "It runs."
    assert len(chat.world.questions()) == 2
    assert chat.world.usage.calls == 2


async def test_a_denial_reaches_the_model_as_such(chat):
    scripted(chat.world, says("", SOLVE), says("As you wish."))
    async with chat.assistant():
        await chat.send("Fix it")
        call = (await chat.until("t1", "waiting")).pending[0]
        await chat.word("t1", call.call_id, approved=False, error="too early")
        await chat.until("t1", "finished")
    told = chat.world.questions()[1].messages[-1]
    assert told.role == "tool"
    assert "did not allow" in told.content
    assert "too early" in told.content
    assert chat.world.message("answer-t1").parts[1]["state"] == "output-denied"


async def test_client_tools_are_answered_by_the_client_each_once_and_the_turn_goes_on(chat):
    scripted(chat.world, says("", ("locate", "{}"), ("locate", '{"again": 1}'), ("current_time", "{}")), says("You are at home."))
    async with chat.assistant():
        await chat.send("Where am I?", client_tools=(LOCATE,))
        state = await chat.until("t1", "waiting")
        assert [p.waits_for for p in state.pending] == ["client", "client"]
        await chat.word("t1", state.pending[0].call_id, output='{"lat": 1}')
        await chat.word("t1", state.pending[1].call_id, error="no signal")
        await chat.until("t1", "finished")
    parts = chat.world.message("answer-t1").parts
    assert [part.get("state") for part in parts[1:4]] == ["output-available", "output-error", "output-available"]
    assert parts[1]["output"] == {"lat": 1}
    assert [m.content for m in chat.world.questions()[1].messages[-3:-1]] == ['{"lat": 1}', "no signal"]
    assert len(chat.world.questions()) == 2


async def test_an_answer_that_does_not_go_on_is_kept_and_told_to_the_model_with_the_next_message(chat):
    scripted(chat.world, says("", ("locate", '{"n": 1}'), ("locate", '{"n": 2}')), says("You are at home."))
    async with chat.assistant():
        await chat.send("Where?", client_tools=(LOCATE,))
        first, second = (await chat.until("t1", "waiting")).pending
        await chat.word("t1", first.call_id, output="a town")
        await chat.word("t1", second.call_id, output="a house", goes_on=False)
        state = await chat.until("t1", "finished")
        assert (state.finished.finish_reason, len(chat.world.questions())) == ("tool-calls", 1)
        await chat.send("So?", "t2")
        await chat.until("t2", "finished")
    assert [part["output"] for part in chat.world.message("answer-t1").parts[1:]] == ["a town", "a house"]
    assert [m.content for m in chat.world.questions()[1].messages[-3:]] == ["a town", "a house", "So?"]


async def test_answers_that_come_at_the_same_moment_make_the_turn_go_on_once(chat):
    calls = [("locate", f'{{"n": {n}}}') for n in range(6)]
    scripted(chat.world, says("", *calls), says("All known."))
    async with chat.assistant():
        await chat.send("Where?", client_tools=(LOCATE,))
        state = await chat.until("t1", "waiting")
        await asyncio.gather(*(chat.word("t1", call.call_id, output=call.call_id) for call in state.pending))
        async with asyncio.timeout(60):
            await chat.until("t1", "finished")
    assert len(chat.world.questions()) == 2
    parts = chat.world.message("answer-t1").parts
    assert [part["output"] for part in parts[1:7]] == [call.call_id for call in state.pending]


async def test_a_cancelled_turn_stops_the_model_and_keeps_what_was_written(chat):
    scripted(chat.world, says("One two HOLD three"), says("Next."))
    async with chat.assistant():
        await chat.send("Tell me")
        async with asyncio.timeout(60):
            await chat.world.held.wait()
        await chat.append("t1", events.TurnCancelled(turn_id="t1", by="local"))
        async with asyncio.timeout(60):
            await chat.world.cancelled.wait()
        frames = await chat.chunks(last="abort")
        await chat.send("Go on", "t2")
        await chat.until("t2", "finished")
    assert "".join(f["chunk"].get("delta", "") for f in frames) == "One two HOLD"
    message = chat.world.message("answer-t1")
    assert message.metadata["aborted"] is True
    assert message.parts[-1]["text"] == "One two HOLD"
    assert [m.content for m in chat.world.questions()[1].messages[1:]] == ["Tell me", "One two HOLD", "Go on"]


async def test_a_cancellation_whose_hint_was_lost_is_met_at_the_next_record_and_keeps_what_was_written(chat, monkeypatch):
    monkeypatch.setattr(StepRunner, "cancel", lambda self, run_id: None)
    scripted(chat.world, says("One WAIT two"), says("Next."))
    async with chat.assistant():
        await chat.send("Tell me")
        async with asyncio.timeout(60):
            await chat.world.held.wait()
        await chat.append("t1", events.TurnCancelled(turn_id="t1", by="local"))
        chat.world.go.set()
        await chat.chunks(last="abort")
        await chat.send("Go on", "t2")
        await chat.until("t2", "finished")
    message = chat.world.message("answer-t1")
    assert (message.metadata["aborted"], message.parts[-1]["text"]) == (True, "One WAIT two")
    assert (await chat.state()).status == "cancelled"


async def test_a_turn_whose_worker_stops_is_finished_by_the_next_without_a_second_call(chat):
    scripted(chat.world, says("", ("current_time", "{}")), says("HOLD on"), says("Never."))
    async with chat.assistant():
        await chat.send("Hi")
        async with asyncio.timeout(60):
            await chat.world.held.wait()
    assert (await chat.state()).status == "running"
    held = chat.world.questions()[1]
    chat.world.answered[held.request_id] = says("It is late.")
    async with chat.assistant():
        await chat.until("t1", "finished")
        frames = await chat.chunks()
    assert [q.request_id for q in chat.world.questions()] == ["t1-2-1", held.request_id]
    assert "aborted" not in chat.world.message("answer-t1").metadata
    newest = max(f["token"] for f in frames)
    assert [f["chunk"]["type"] for f in frames if f["token"] == newest][:2] == ["start", "start-step"]


@pytest.mark.parametrize(
    ("refusal", "kind"),
    [(Refusal("upstream", "503: overloaded", retryable=True), "permanent"), (Refusal("budget_exceeded", "$1 of $1"), "limit")],
)
async def test_a_refusal_of_the_model_fails_the_turn_in_its_own_words_and_the_conversation_goes_on(chat, refusal, kind):
    scripted(chat.world, refusal, says("Better."))
    async with chat.assistant():
        await chat.send("Hi")
        state = await chat.until("t1", "failed")
        frames = await chat.chunks(last="error")
        await chat.send("Again", "t2")
        await chat.until("t2", "finished")
    assert (state.failed.reason, state.failed.kind, state.failed.message_id) == (refusal.detail, kind, None)
    assert frames[-1]["chunk"] == {"type": "error", "errorText": refusal.detail}


async def test_without_a_model_the_turn_says_what_to_set_and_can_be_tried_again(chat):
    models, chat.world.models = chat.world.models, ()
    async with chat.assistant():
        await chat.send("Hi")
        state = await chat.until("t1", "failed")
        assert state.failed.reason == "Set MODEL."
        chat.world.models = models
        await chat.append("t1", events.TurnRetried(turn_id="t1", step="turn", of=state.admitted_sequence, by="local"))
        await chat.until("t1", "finished")


async def test_an_unknown_agent_fails_the_turn_with_the_known_ones(chat):
    async with chat.assistant():
        await chat.send("Hi", agent="nobody")
        state = await chat.until("t1", "failed")
    assert "assistant" in state.failed.reason


async def test_messages_sent_meanwhile_are_answered_in_order_behind_the_earlier_answers(chat):
    scripted(chat.world, says("First WAIT"), says("Second."), says("Third."))
    async with chat.assistant():
        await chat.send("One")
        async with asyncio.timeout(60):
            await chat.world.held.wait()
        await chat.send("Two", "t2")
        await chat.send("Three", "t3")
        assert (await chat.state("t3")).status == "queued"
        chat.world.go.set()
        await chat.until("t3", "finished")
    second, third = ([m.content for m in q.messages[1:]] for q in chat.world.questions()[1:])
    assert second == ["One", "First WAIT", "Two"]
    assert third == ["One", "First WAIT", "Two", "Second.", "Three"]
    path = [m.id for m in chat.world.path("s1", chat.world.leaves["s1"])]
    assert path == ["m-t1", "m-t2", "m-t3", "answer-t1", "answer-t2", "answer-t3"]


async def test_the_newest_of_several_waiting_turns_answers_for_all(chat):
    scripted(chat.world, says("", ("locate", "{}")), says("First."), says("All."))
    async with chat.assistant():
        await chat.send("One", client_tools=(LOCATE,))
        call = (await chat.until("t1", "waiting")).pending[0]
        for name in ("t2", "t3"):
            await chat.send(name, name, concurrency="merge")
        superseded = (await chat.until("t2", "superseded")).superseded
        await chat.word("t1", call.call_id, output="here")
        await chat.until("t3", "finished")
    assert (superseded.policy, superseded.by) == ("merge", "t3")
    assert [m.content for m in chat.world.questions()[-1].messages[-2:]] == ["t2", "t3"]


async def test_a_debounced_turn_is_admitted_by_the_servers_timer(chat):
    scripted(chat.world, says("", ("locate", "{}")), says("First."), says("Late."))
    async with chat.assistant():
        await chat.send("One", client_tools=(LOCATE,))
        call = (await chat.until("t1", "waiting")).pending[0]
        await chat.send("Two", "t2", concurrency="debounce", debounce_milliseconds=1500)
        await chat.word("t1", call.call_id, output="here")
        first = await chat.until("t1", "finished")
        await chat.until("t2", "finished")
    history = await chat.turns.read("t2")
    waited = next(r.at for r in history if isinstance(r.event, events.TurnAdmitted)) - history[0].at
    assert waited.total_seconds() > 1.0
    assert first.finished is not None


async def test_a_conversation_is_stable_when_nothing_is_under_way(chat):
    scripted(chat.world, says("", ("locate", "{}")), says("Done."))
    async with chat.assistant():
        await chat.send("One", client_tools=(LOCATE,), repository="https://example.org/x.git")
        call = (await chat.until("t1", "waiting")).pending[0]
        busy = await chat.questioner.ask(events.AwaitStable(session_id="s1", timeout_seconds=0))
        waits = asyncio.create_task(chat.questioner.ask(events.AwaitStable(session_id="s1", timeout_seconds=20)))
        await chat.word("t1", call.call_id, output="here")
        free = await waits
        other = await chat.questioner.ask(events.AwaitStable(session_id="s1", user="bob", timeout_seconds=0))
        agents = await chat.questioner.ask(events.DescribeAgents())
    assert (busy.stable, busy.active) == (False, "t1")
    assert (free.stable, free.repository) == (True, "https://example.org/x.git")
    assert (other.stable, other.repository) == (True, None)
    assert agents.agents[0].name == "assistant"


async def test_the_record_of_a_deleted_conversation_goes_unless_something_is_under_way(chat):
    admin, key = await Connection.open(chat.settings, "admin"), conversation_key("local", "local", "s1")
    bucket = Kv(admin, "CONVERSATIONS")
    scripted(chat.world, says("", ("locate", "{}")), says("Done."))
    async with AsyncExitStack() as stack:
        stack.push_async_callback(admin.close)
        await stack.enter_async_context(chat.assistant())
        await chat.send("One", client_tools=(LOCATE,), repository="https://example.org/x.git")
        call = (await chat.until("t1", "waiting")).pending[0]
        await chat.questioner.ask(events.ForgetConversation(session_id="s1"))
        assert await bucket.get(key)
        await chat.word("t1", call.call_id, output="here")
        await chat.until("t1", "finished")
        await chat.questioner.ask(events.AwaitStable(session_id="s1"))
        await chat.questioner.ask(events.ForgetConversation(session_id="s1"))
        assert await bucket.get(key) is None
        free = await chat.questioner.ask(events.AwaitStable(session_id="s1", timeout_seconds=0))
        assert (free.stable, free.repository) == (True, None)
        await chat.send("Two", "t2")
        await chat.until("t2", "finished")


async def test_a_fact_is_remembered_after_a_turn_and_told_as_data_in_another_session(chat):
    chat.world.replies["memory"] = [says('```json\n{"items": [{"content": "Ann deploys on Fridays.", "topic": "deploy day"}]}\n```')]
    async with chat.assistant():
        await chat.send("I deploy on Fridays")
        async with asyncio.timeout(60):
            while not chat.world.remembered:
                await asyncio.sleep(0.02)
        chat.world.put(user("When do I deploy?", "n1"), session="s2")
        await chat.turns.append(opened("t2", "n1").model_copy(update={"session_id": "s2"}), follows=0)
        await chat.until("t2", "finished")
    assert chat.world.remembered[0].topic == "deploy day"
    told = chat.world.questions()[1].messages[1]
    assert '<untrusted_data source="memory">\nAnn deploys on Fridays.' in told.content
    assert len(chat.world.questions("memory")) <= 2
