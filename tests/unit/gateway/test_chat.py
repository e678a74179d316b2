"""Chat over HTTP: streams as the AI SDK wants them, refusals with a status, resume, stop, answers."""

import asyncio
import json
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from libs.bus import Refusal
from libs.contracts.conversation import AppendMessages
from libs.contracts.inference import DescribeModels, Models
from libs.contracts.turn import (
    ForgetConversation,
    PendingCall,
    TurnAdmitted,
    TurnFailed,
    TurnFinished,
    TurnOpened,
    TurnPaused,
    TurnSuperseded,
)
from services.gateway.chat.rooms import Room
from services.gateway.chat.turns import turn_id_of
from services.gateway.identity.caller import OWNER
from tests.unit.gateway.conftest import TOKEN
from tests.unit.gateway.conversation import Conversations, text_chunks
from tests.unit.gateway.fake_bus import FakeBus

ENDED = [{"type": "text-end", "id": "text-1"}, {"type": "finish-step"}, {"type": "finish"}]


@pytest.fixture
def store(bus: FakeBus) -> Conversations:
    return Conversations(bus)


def chunks(answer: httpx.Response) -> list[Any]:
    lines = [line.removeprefix("data: ") for line in answer.text.split("\n\n") if line.startswith("data: ")]
    assert lines.pop() == "[DONE]"
    return [json.loads(line) for line in lines]


def text_of(found: list[Any]) -> str:
    return "".join(c["delta"] for c in found if c["type"] == "text-delta")


def ui(text: str, message_id: str = "m1", role: str = "user") -> dict[str, Any]:
    return {"id": message_id, "role": role, "parts": [{"type": "text", "text": text}]}


async def opened(bus: FakeBus) -> TurnOpened:
    async with asyncio.timeout(60):
        while not bus.messages["TURN"]:
            await asyncio.sleep(0.01)
    return TurnOpened.model_validate_json(bus.messages["TURN"][0].payload)


async def test_a_message_is_answered_as_a_ui_message_stream(client: httpx.AsyncClient, bus: FakeBus, store: Conversations) -> None:
    store.answer_with("Hel", "lo 你好")
    answer = await client.post("/api/chat", json={"id": "c1", "messages": [ui("old", "m0"), ui("Hi")], "trigger": "submit-message"})
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-vercel-ai-ui-message-stream"] == "v1"
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.headers["x-session-id"] == "c1"
    found = chunks(answer)
    assert [c["type"] for c in found] == [
        "start", "start-step", "text-start", "text-delta", "text-delta", "text-end", "finish-step", "finish",
    ]  # fmt: skip
    assert text_of(found) == "Hello 你好"
    assert set(store.messages["local", "local", "c1"]) == {"m1", found[0]["messageId"]}


async def test_what_a_message_brings_at_once_is_one_write_and_the_end_waits_for_nothing_but_the_journal(
    app: FastAPI, bus: FakeBus, store: Conversations
) -> None:
    writes: list[bytes] = []
    body = json.dumps({"id": "c", "messages": [ui("Hi")]}).encode()
    gone = asyncio.Event()
    coming: list[dict[str, Any]] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> dict[str, Any]:
        if not coming:
            await gone.wait()
        return coming.pop() if coming else {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        if message.get("body") and not message["body"].startswith(b": heartbeat"):
            writes.append(message["body"])

    headers = [(b"authorization", f"Bearer {TOKEN}".encode()), (b"content-type", b"application/json"), (b"host", b"server")]
    scope = {"type": "http", "method": "POST", "path": "/api/chat", "raw_path": b"/api/chat", "query_string": b"", "headers": headers}
    scope |= {"asgi": {"version": "3.0"}, "http_version": "1.1", "scheme": "http", "server": ("server", 80), "client": ("127.0.0.1", 1)}
    asking = asyncio.create_task(app(scope, receive, send))
    turn = await opened(bus)
    say = store.delivery(turn.turn_id)
    moments = [text_chunks(turn.turn_id, "one ")[:4], [{"type": "text-delta", "id": "text-1", "delta": "two"}, *ENDED]]
    for number, moment in enumerate(moments, 1):
        say(*moment)
        async with asyncio.timeout(60):
            while len(writes) < number:
                await asyncio.sleep(0)
    bus.add(TurnFinished(turn_id=turn.turn_id, message_id="m"))
    await asking
    said = [b"".join(b"data: " + json.dumps(c, separators=(",", ":")).encode() + b"\n\n" for c in m) for m in moments]
    end = said[1][said[1].index(b'data: {"type":"finish"}') :]
    assert writes == [said[0], said[1].removesuffix(end), end + b"data: [DONE]\n\n"]


async def test_frames_that_an_older_version_stored_are_told_too(client: httpx.AsyncClient, bus: FakeBus, store: Conversations) -> None:
    asking = asyncio.create_task(client.post("/api/chat", json={"id": "c", "messages": [ui("Hi")]}))
    turn = await opened(bus)
    token = bus.store("TURN", f"turn.{turn.turn_id}.step_started", b"{}")
    told = [*text_chunks(turn.turn_id, "one ", "two"), {"type": "finish"}]
    for number, chunk in enumerate(told, 1):
        bus.store("LIVE", f"live.{turn.turn_id}.part", json.dumps({"n": number, "token": token, "chunk": chunk}).encode())
    bus.add(TurnFinished(turn_id=turn.turn_id, message_id="m"))
    assert chunks(await asking) == told


async def test_a_reader_knows_a_frame_before_which_something_is_missing(
    client: httpx.AsyncClient, bus: FakeBus, store: Conversations
) -> None:
    asking = asyncio.create_task(client.post("/api/chat", json={"id": "c", "messages": [ui("Hi")]}))
    turn = await opened(bus)
    older, newer = (bus.store("TURN", f"turn.{turn.turn_id}.step_started", b"{}") for _ in range(2))
    delta = {"type": "data-note", "data": "x"}
    places = [(older, 2), (older, 3), (older, 6), (newer, 2), (newer, 4), (newer, 3), (newer, 1), (older, 8)]
    for token, number in places:
        bus.store("LIVE", f"live.{turn.turn_id}.part", json.dumps({"n": number, "token": token, "chunks": [delta, delta]}).encode())
    bus.store("LIVE", f"live.{turn.turn_id}.part", b"no frame")
    bus.store("LIVE", f"live.{turn.turn_id}.part", json.dumps({"n": 6, "token": newer, "chunks": [{"type": "abort"}]}).encode())
    bus.add(TurnFinished(turn_id=turn.turn_id, message_id="m"))
    await asking
    assert bus.continued == [False, True, False, False, True, True, True, False, False, True]


async def test_the_short_form_makes_a_session_and_a_terminal_gets_text(client: httpx.AsyncClient, store: Conversations) -> None:
    store.answer_with("one ", "two")
    answer = await client.post("/api/chat", json={"message": "Hi"}, headers={"Accept": "text/plain"})
    assert answer.text == "one two\n"
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    assert ("local", "local", answer.headers["x-session-id"]) in store.messages


async def test_a_request_that_comes_again_is_the_same_turn(client: httpx.AsyncClient, bus: FakeBus, store: Conversations) -> None:
    store.answer_with("once")
    body = {"id": "c1", "messages": [ui("Hi")]}
    first, second = [await client.post("/api/chat", json=body) for _ in range(2)]
    assert first.headers["x-turn-id"] == second.headers["x-turn-id"] == turn_id_of("local", "local", "c1", "m1", "submit", "")
    assert text_of(chunks(second)) == "once"
    assert len([m for m in bus.messages["TURN"] if m.subject.endswith(".opened")]) == 1


async def test_another_answer_is_another_turn_below_the_same_message(client: httpx.AsyncClient, bus: FakeBus, store: Conversations) -> None:
    store.answer_with("answer")
    await client.post("/api/chat", json={"id": "c1", "messages": [ui("Hi")]})
    again = await client.post("/api/chat", json={"id": "c1", "messages": [ui("Hi")], "trigger": "regenerate-message"})
    assert text_of(chunks(again)) == "answer"
    events = [TurnOpened.model_validate_json(m.payload) for m in bus.messages["TURN"] if m.subject.endswith(".opened")]
    assert [e.trigger for e in events] == ["submit", "regenerate"]
    assert {e.parent_id for e in events} == {"m1"}
    assert events[0].turn_id != events[1].turn_id


async def test_an_edited_message_becomes_a_branch(client: httpx.AsyncClient, bus: FakeBus, store: Conversations) -> None:
    store.answer_with("answer")
    await client.post("/api/chat", json={"id": "c1", "messages": [ui("first", "m0")]})
    await client.post("/api/chat", json={"id": "c1", "messages": [ui("Hi", "m1")]})
    await client.post("/api/chat", json={"id": "c1", "messages": [ui("Hi there", "m1")], "messageId": "m1"})
    tree = store.messages["local", "local", "c1"]
    edited = next(m for m in tree.values() if m.id.startswith("m1~"))
    assert edited.parent_id == tree["m1"].parent_id is not None


@pytest.mark.parametrize("path", ["/api/chat", "/agents/assistant/c1"])
async def test_a_model_that_is_not_configured_is_refused_before_a_turn_is_opened(
    client: httpx.AsyncClient, bus: FakeBus, store: Conversations, path: str
) -> None:
    answer = await client.post(path, json={"message": "Hi", "model": "none"})
    assert (answer.status_code, answer.json()["code"]) == (422, "unknown-model")
    assert not [m for m in bus.messages["TURN"] if m.subject.endswith(".opened")]


async def test_the_user_comes_from_the_token_alone(client: httpx.AsyncClient, bus: FakeBus, store: Conversations) -> None:
    store.answer_with("x")
    body = {"message": "Hi", "user": "somebody", "tenant": "acme", "plan": "enterprise"}
    assert (await client.post("/api/chat?user=somebody", json=body)).status_code == 200
    event = TurnOpened.model_validate_json(bus.messages["TURN"][0].payload)
    assert (event.tenant, event.user, event.plan) == ("local", "local", None)


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({}, 422),
        ({"message": "  "}, 422),
        ({"messages": ["x"]}, 422),
        ({"messages": [{"id": "m", "role": "user", "parts": "x"}]}, 422),
        ({"messages": [{"id": "m", "role": "user", "parts": [{"no": "type"}]}]}, 422),
        ({"messages": [{"id": "m", "role": "robot", "parts": [{"type": "text", "text": "x"}]}]}, 422),
        ({"messages": [{"id": "a b", "role": "user", "parts": [{"type": "text", "text": "x"}]}]}, 422),
        ({"messages": [{"id": "m", "role": "user", "parts": [{"type": "x"}] * 10_001}]}, 422),
        ({"message": "x" * 5_000_000}, 413),
        ({"message": "x", "repository": "/etc", "agent": "../x"}, 422),
        ({"message": "x", "concurrency": "whenever"}, 422),
    ],
)
async def test_what_cannot_be_answered_is_refused(
    client: httpx.AsyncClient, store: Conversations, body: dict[str, Any], status: int
) -> None:
    answer = await client.post("/api/chat", json=body)
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/problem+json"
    store.answer_with("fine")
    assert (await client.post("/api/chat", json={"message": "Hi"})).status_code == 200


async def test_ten_thousand_parts_of_unknown_types_are_taken(client: httpx.AsyncClient, store: Conversations) -> None:
    store.answer_with("fine")
    message = {"id": "m", "role": "user", "parts": [{"type": "hologram", "n": n} for n in range(10_000)]}
    assert (await client.post("/api/chat", json={"id": "c", "messages": [message]})).status_code == 200


async def test_no_model_and_a_refused_message_have_a_status(client: httpx.AsyncClient, bus: FakeBus, store: Conversations) -> None:
    bus.answer(DescribeModels, Models(advice="set MODEL"))
    assert (await client.post("/api/chat", json={"message": "Hi"})).status_code == 503
    bus.answer(DescribeModels, Models(models=({"name": "m"},)))  # type: ignore[arg-type]  # pydantic makes the model
    bus.answer(AppendMessages, Refusal("bad_parent", "no such message"))
    assert (await client.post("/api/chat", json={"message": "Hi", "parent_id": "x"})).status_code == 422


@pytest.mark.parametrize("first", ["live", "journal"])
async def test_a_turn_that_fails_before_a_word_is_a_problem_whatever_comes_first(
    client: httpx.AsyncClient, bus: FakeBus, store: Conversations, first: str
) -> None:
    asking = asyncio.create_task(client.post("/api/chat", json={"message": "Hi"}))
    turn = await opened(bus)
    send, why = store.delivery(turn.turn_id), "the day's budget is used up"
    if first == "journal":
        bus.add(TurnFailed(turn_id=turn.turn_id, reason=why, kind="limit"))
        await bus.followed(2)
    send({"type": "start"}, {"type": "start-step"}, {"type": "finish-step"}, {"type": "error", "errorText": why})
    if first == "live":
        bus.add(TurnFailed(turn_id=turn.turn_id, reason=why, kind="limit"))
    answer = await asking
    assert answer.status_code == 402
    assert "budget" in answer.json()["detail"]


async def test_a_turn_that_fails_after_a_word_ends_with_an_error_part(
    client: httpx.AsyncClient, bus: FakeBus, store: Conversations
) -> None:
    asking = asyncio.create_task(client.post("/api/chat", json={"message": "Hi"}))
    turn = await opened(bus)
    store.delivery(turn.turn_id)(*text_chunks(turn.turn_id, "par")[:-2], {"type": "error", "errorText": "the model went away"})
    bus.add(TurnFailed(turn_id=turn.turn_id, reason="the model went away"))
    answer = await asking
    assert answer.status_code == 200
    assert [c["type"] for c in chunks(answer)][-2:] == ["text-end", "error"]


async def test_a_dropped_message_is_a_conflict(client: httpx.AsyncClient, bus: FakeBus, store: Conversations) -> None:
    asking = asyncio.create_task(client.post("/api/chat", json={"message": "Hi", "concurrency": "drop"}))
    turn = await opened(bus)
    bus.add(TurnSuperseded(turn_id=turn.turn_id, policy="drop"))
    answer = await asking
    assert (answer.status_code, answer.json()["code"]) == (409, "turn-dropped")


async def test_a_turn_told_again_after_a_crash_reaches_the_reader_once(
    client: httpx.AsyncClient, bus: FakeBus, store: Conversations
) -> None:
    asking = asyncio.create_task(client.post("/api/chat", json={"id": "c", "messages": [ui("Hi")]}))
    turn = await opened(bus)
    store.delivery(turn.turn_id)(*text_chunks(turn.turn_id, "Hel", "lo wo")[:-2])
    await asyncio.sleep(0)
    store.delivery(turn.turn_id)(*text_chunks(turn.turn_id, "Hello", " world"), {"type": "finish"})
    bus.add(TurnFinished(turn_id=turn.turn_id, message_id="m"))
    found = chunks(await asking)
    assert text_of(found) == "Hello world"
    assert [c["type"] for c in found].count("text-start") == 1


async def test_frames_that_were_lost_are_made_up_for_by_the_stored_answer(
    client: httpx.AsyncClient, bus: FakeBus, store: Conversations
) -> None:
    asking = asyncio.create_task(client.post("/api/chat", json={"id": "c", "messages": [ui("Hi")]}))
    turn = await opened(bus)
    store.keep(turn, "whole answer")
    bus.add(TurnFinished(turn_id=turn.turn_id, message_id=f"answer-{turn.turn_id}"))
    found = chunks(await asking)
    assert text_of(found) == "whole answer"
    assert found[-1]["type"] == "finish"


async def test_resume_gives_what_was_written_and_what_follows(client: httpx.AsyncClient, bus: FakeBus, store: Conversations) -> None:
    assert (await client.get("/api/chat/c/stream")).status_code == 204
    asking = asyncio.create_task(client.post("/api/chat", json={"id": "c", "messages": [ui("Hi")]}))
    turn = await opened(bus)
    send = store.delivery(turn.turn_id)
    told = [*text_chunks(turn.turn_id, "one ", "two"), {"type": "finish"}]
    send(*told[:4])
    resuming = asyncio.create_task(client.get("/api/chat/c/stream"))
    await bus.followed(4)
    send(*told[4:])
    bus.add(TurnFinished(turn_id=turn.turn_id, message_id="m"))
    first, second = chunks(await asking), chunks(await resuming)
    assert first == second == told
    assert (await client.get("/api/chat/c/stream")).status_code == 204


async def test_cancel_stops_the_active_turn(client: httpx.AsyncClient, bus: FakeBus, store: Conversations) -> None:
    assert (await client.post("/api/chat/c/cancel")).json() == {"turn": None}
    asking = asyncio.create_task(client.post("/api/chat", json={"id": "c", "messages": [ui("Hi")]}))
    turn = await opened(bus)
    send = store.delivery(turn.turn_id)
    send(*text_chunks(turn.turn_id, "some")[:-2])
    assert (await client.post("/api/chat/c/cancel", json={"reason": "enough"})).json() == {"turn": turn.turn_id}
    send({"type": "abort"})
    found = chunks(await asking)
    assert [c["type"] for c in found][-2:] == ["text-end", "abort"]
    assert (await client.post("/api/chat/c/cancel", json={"turn": turn.turn_id})).json() == {"turn": None}


def paused(bus: FakeBus, store: Conversations, turn: TurnOpened, waits_for: Any) -> str:
    """The turn has asked for a call and waits."""
    bus.add(TurnAdmitted(turn_id=turn.turn_id, parent_id=turn.parent_id))
    call = f"{turn.turn_id}-1-1.1"
    send = store.delivery(turn.turn_id)
    send({"type": "start", "messageId": f"answer-{turn.turn_id}"}, {"type": "start-step"})
    send({"type": "tool-input-available", "toolCallId": call, "toolName": "ask", "input": {}})
    send({"type": "finish-step"}, {"type": "finish", "finishReason": "tool-calls"})
    pending = PendingCall(call_id=call, tool="ask", arguments="{}", waits_for=waits_for)
    bus.add(TurnPaused(turn_id=turn.turn_id, pending=(pending,)))
    return call


def answered(store: Conversations, turn: TurnOpened, call: str, output: Any) -> None:
    """The next delivery tells the turn again and goes on."""
    send = store.delivery(turn.turn_id)
    send({"type": "start", "messageId": f"answer-{turn.turn_id}"}, {"type": "start-step"})
    send({"type": "tool-input-available", "toolCallId": call, "toolName": "ask", "input": {}})
    send({"type": "tool-output-available", "toolCallId": call, "output": output}, {"type": "finish-step"}, {"type": "start-step"})
    send(
        {"type": "text-start", "id": "text-2"},
        {"type": "text-delta", "id": "text-2", "delta": "thanks"},
        {"type": "text-end", "id": "text-2"},
    )
    send({"type": "finish-step"}, {"type": "finish"})
    store.bus.add(TurnFinished(turn_id=turn.turn_id, message_id=f"answer-{turn.turn_id}"))


async def start(client: httpx.AsyncClient, bus: FakeBus, store: Conversations, waits_for: str) -> tuple[TurnOpened, str]:
    asking = asyncio.create_task(client.post("/api/chat", json={"id": "c", "messages": [ui("Hi")]}))
    turn = await opened(bus)
    call = paused(bus, store, turn, waits_for)
    assert chunks(await asking)[-1]["finishReason"] == "tool-calls"
    return turn, call


async def test_the_output_of_a_client_tool_lets_the_turn_go_on(client: httpx.AsyncClient, bus: FakeBus, store: Conversations) -> None:
    turn, call = await start(client, bus, store, "client")
    assert (await client.get("/api/chat/c/stream")).status_code == 204
    parts = [{"type": "step-start"}, {"type": "tool-ask", "toolCallId": call, "state": "output-available", "input": {}, "output": {"n": 7}}]
    message = {"id": f"answer-{turn.turn_id}", "role": "assistant", "parts": parts}
    asking = asyncio.create_task(client.post("/api/chat", json={"id": "c", "messages": [ui("Hi"), message]}))
    async with asyncio.timeout(60):
        while not any("answered" in m.subject for m in bus.messages["TURN"]):
            await asyncio.sleep(0.01)
    answered(store, turn, call, {"n": 7})
    found = chunks(await asking)
    assert [c["type"] for c in found] == ["start", "start-step", "text-start", "text-delta", "text-end", "finish-step", "finish"]
    word = next(m for m in bus.messages["TURN"] if "answered" in m.subject)
    assert json.loads(word.payload)["output"] == '{"n": 7}'


async def test_consent_is_given_by_a_route_too_and_counts_once(client: httpx.AsyncClient, bus: FakeBus, store: Conversations) -> None:
    turn, call = await start(client, bus, store, "approval")
    wrong = await client.post("/api/chat/c/answers", json={"call_id": call, "output": "x"})
    assert (wrong.status_code, wrong.json()["code"]) == (409, "wrong-answer")
    assert (await client.post("/api/chat/c/answers", json={"call_id": "nobody's", "approved": True})).json()["code"] == "no-such-call"
    assert (await client.post("/api/chat/c/answers", json={"call_id": call})).status_code == 422
    said = await client.post("/api/chat/c/answers", json={"call_id": call, "approved": False, "error": "too dear"})
    assert said.json() == {"turn": turn.turn_id, "unanswered": []}
    await client.post("/api/chat/c/answers", json={"call_id": call, "approved": True})
    words = [json.loads(m.payload) for m in bus.messages["TURN"] if "answered" in m.subject]
    assert [w["approved"] for w in words] == [False]
    reading = asyncio.create_task(client.get("/api/chat/c/stream"))
    await bus.followed(2)
    answered(store, turn, call, "done")
    assert text_of(chunks(await reading)) == "thanks"


async def test_an_assistant_message_without_an_answer_is_a_conflict(client: httpx.AsyncClient, bus: FakeBus, store: Conversations) -> None:
    turn, call = await start(client, bus, store, "client")
    parts = [{"type": "tool-ask", "toolCallId": "nobody's", "state": "output-available", "output": 1}]
    answer = await client.post(
        "/api/chat", json={"id": "c", "messages": [{"id": f"answer-{turn.turn_id}", "role": "assistant", "parts": parts}]}
    )
    assert answer.status_code == 409
    assert call in answer.json()["detail"]


async def test_a_deleted_conversation_leaves_nothing_in_the_buckets(client: httpx.AsyncClient, bus: FakeBus, store: Conversations) -> None:
    store.answer_with("fine")
    await client.post("/api/chat", json={"message": "Hi", "session": "gone"})
    room = Room(bus, OWNER, "gone")
    await room.set_state({"n": 1}, "somebody")
    assert (await client.delete("/api/sessions/gone")).status_code == 204
    assert await bus.kv("AGENT_STATE").get(room.key) is None
    assert isinstance(bus.asked[-1], ForgetConversation)


async def test_a_user_opens_so_many_streams_and_no_more(
    app: FastAPI, client: httpx.AsyncClient, bus: FakeBus, store: Conversations
) -> None:
    store.answer_with("x")
    app.state.gateway.streams._limit = 0
    answer = await client.post("/api/chat", json={"message": "Hi"})
    assert (answer.status_code, answer.json()["code"]) == (429, "too-many-streams")


async def test_the_stream_ends_when_the_server_stops(app: FastAPI, client: httpx.AsyncClient, bus: FakeBus, store: Conversations) -> None:
    asking = asyncio.create_task(client.post("/api/chat", json={"message": "Hi"}))
    turn = await opened(bus)
    store.delivery(turn.turn_id)(*text_chunks(turn.turn_id, "some")[:-2])
    await bus.followed(2)
    app.state.gateway.stopping.set()
    assert "some" in (await asking).text
    assert bus.tails == 0
