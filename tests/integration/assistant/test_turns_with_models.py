"""Turns over the real inference service and the real session store: streams, failures, cancellation, a worker that is lost."""

import asyncio
import json
from contextlib import AsyncExitStack

import pytest

from libs.bus.connection import Connection
from libs.contracts import conversation as c
from libs.contracts import turn as events
from libs.contracts.inference import ReadAccount, ReadUsage
from libs.testkit.broker import broker
from services.inference.__main__ import build as build_inference
from services.inference.settings import InferenceSettings
from services.session_store.__main__ import build as build_store
from tests.integration.assistant.test_turns_with_the_store import Stored

NOTES = {"when": {"purpose": "memory"}, "replies": [{"content": '{"items": []}'}]}


def rule(*replies, **when):
    return {"when": {"purpose": "chat", **when}, "replies": list(replies)}


@pytest.fixture
async def start(tmp_path, monkeypatch):
    monkeypatch.setenv("AGENT_CODER_HOME", str(tmp_path / "home"))
    async with AsyncExitStack() as stack:
        _, settings = await stack.enter_async_context(broker(tmp_path / "home"))

        async def started(*rules):
            script = tmp_path / "demo.json"
            script.write_text(json.dumps({"rules": [*rules, NOTES]}))
            defaults = {name: field.get_default(call_default_factory=True) for name, field in InferenceSettings.model_fields.items()}
            chosen = defaults | {"home": settings.home, "backoff_seconds": 0.01, "model": f"scripted:{script}"}
            await stack.enter_async_context(build_inference(InferenceSettings.model_construct(**chosen)).running(settings))
            await stack.enter_async_context(build_store().running(settings))
            connection = await Connection.open(settings, "gateway")
            stack.push_async_callback(connection.close)
            return Stored(connection, None, settings, tmp_path)

        yield started


def text(frames):
    return "".join(f["chunk"].get("delta", "") for f in frames if f["chunk"]["type"] == "text-delta")


async def test_text_and_reasoning_stream_and_are_stored(start):
    chat = await start(rule({"content": "绿茶 is green tea.", "reasoning": "They ask about tea."}))
    async with chat.assistant():
        await chat.send("What is 绿茶?")
        await chat.until("t1", "finished")
        frames = await chat.chunks()
    kinds = [f["chunk"]["type"] for f in frames]
    assert text(frames) == "绿茶 is green tea."
    assert kinds.count("text-start") == kinds.count("text-end") == kinds.count("reasoning-start") == kinds.count("reasoning-end") == 1
    answer = (await chat.path())[-1]
    assert [part["type"] for part in answer.parts] == ["step-start", "reasoning", "text"]


async def test_money_is_counted_on_the_turn_and_the_user(start):
    chat = await start(rule({"content": "Hi.", "usage": {"input_tokens": 7, "output_tokens": 3}}))
    async with chat.assistant(memory=False):
        await chat.send("Hi", user="ann", tenant="acme")
        await chat.until("t1", "finished")
    account = await chat.ask(ReadAccount(account="turn:t1"))
    assert (account.spent.calls, account.spent.input_tokens) == (1, 7)
    assert (await chat.ask(ReadUsage(tenant="acme", user="ann"))).total.calls == 1


async def test_a_provider_that_fails_is_quoted_and_the_conversation_stays_usable(start):
    chat = await start(
        rule({"content": "Better."}, contains="Again"), rule({"error": {"status": 400, "message": "the provider is confused"}})
    )
    async with chat.assistant():
        await chat.send("Hi")
        state = await chat.until("t1", "failed")
        frames = await chat.chunks(last="error")
        await chat.send("Again", "t2")
        await chat.until("t2", "finished")
    assert "the provider is confused" in state.failed.reason
    assert frames[-1]["chunk"]["errorText"] == state.failed.reason


async def test_a_stream_that_drops_is_told_as_it_is_and_what_came_is_kept_or_repeated(start):
    chat = await start(rule({"content": "Half of a", "dropped": True}))
    async with chat.assistant():
        await chat.send("Hi")
        state = await chat.until("t1", "failed", "finished")
        await chat.send("Again", "t2")
        await chat.until("t2", "failed", "finished")
    assert state.status == "failed"
    assert "lost in mid-reply" in state.failed.reason
    kept = next(m for m in await chat.path(leaf_id="answer-t1") if m.id == "answer-t1")
    assert kept.parts[-1]["text"].startswith("Half of a")
    assert kept.metadata["error"] == state.failed.reason


async def test_cancelling_ends_the_call_of_the_provider(start):
    chat = await start(rule({"content": "Never.", "delay_seconds": 60}))
    async with chat.assistant():
        await chat.send("Hi")
        async with asyncio.timeout(60):
            while (await chat.ask(ReadAccount(account="turn:t1"))).reserved_usd == 0 and (await chat.state()).status != "running":
                await asyncio.sleep(0.02)
        await chat.append("t1", events.TurnCancelled(turn_id="t1", by="local"))
        async with asyncio.timeout(60):
            while not (await chat.ask(events.AwaitStable(session_id="s1", timeout_seconds=1))).stable:
                pass
    assert [m.id for m in await chat.path()] == ["m-t1"]


async def test_a_turn_whose_worker_stops_in_mid_reply_is_answered_once_by_the_next(start):
    chat = await start(rule({"content": "It took a while.", "delay_seconds": 3}))
    async with chat.assistant():
        await chat.send("Hi")
        await chat.until("t1", "running")
        async with asyncio.timeout(60):
            while not any(r.event.type == "turn.step_started" for r in await chat.turns.read("t1")):
                await asyncio.sleep(0.02)
    async with chat.assistant():
        await chat.until("t1", "finished")
        frames = await chat.chunks()
    newest = max(f["token"] for f in frames)
    assert text([f for f in frames if f["token"] == newest]) == "It took a while."
    assert (await chat.ask(c.ReadSession(session_id="s1"))).messages == 2
