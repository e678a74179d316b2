"""Hostile requests to a chat: each gets a clear answer, and its conversation is usable afterwards."""

import asyncio
import contextlib
import json
from collections import Counter

import jwt
import pytest
import pytest_asyncio

from libs.bus.connection import Connection
from libs.bus.questions import Questioner
from libs.contracts.conversation import AppendMessages
from libs.settings import BusSettings
from libs.telemetry import Telemetry
from libs.testkit.product import product
from tests.e2e.chat_client import Chat, Issuer, script, words

pytestmark = pytest.mark.asyncio(loop_scope="module")
SCENES = {
    "#well": [{"content": "All is well."}],
    "#flood": [{"content": "x" * 1_500_000, "chunk_characters": 30_000}],
    "#huge": [{"content": "y" * 3_000_000, "chunk_characters": 100_000}],
    "#slow": [{"content": "Slowly. " * 4000, "stream_delay_seconds": 0.1}],
}
MENDED = {"when": {"purpose": "v1", "contains": "#well ?"}, "replies": [{"content": "It is mended."}]}
LIMITS = {"AGENT_CODER_STREAMS_PER_USER": "40", "AGENT_CODER_SEND_TIMEOUT_SECONDS": "1"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def issuer():
    async with Issuer().running() as issuer:
        yield issuer


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def chat(tmp_path_factory, issuer):
    place = tmp_path_factory.mktemp("bad")
    environment = {"AGENT_CODER_JWT_ISSUER": issuer.url, **LIMITS}
    async with product(place / "home", script(place, SCENES, [MENDED]), environment=environment) as running:
        yield Chat(running, running.client)


def text(said):
    return {"type": "text", "text": said}


def message(*parts, **fields):
    return {"role": "user", "parts": list(parts), **fields}


BAD = {
    "5 MB": (message(text("x" * 5_000_000)), 413, "content-too-large"),
    "too many parts": (message(*[text("x")] * 10_001), 422, "too-many-parts"),
    "no parts": (message(), 422, "empty-message"),
    "blank": (message(text(" \n\t")), 422, "empty-message"),
    "no object": ("hello", 422, "invalid-message"),
    "part of no type": (message({"text": "x"}), 422, "invalid-message"),
    "a role that asks nothing": ({**message(text("x")), "role": "system"}, 422, "invalid-message"),
    "an id of another shape": (message(text("x"), id=7), 422, "invalid-request"),
    "an answer of nobody": ({**message(text("x")), "role": "assistant", "id": "answer-nobody"}, 404, "not-found"),
}


@pytest.mark.parametrize("name", BAD)
async def test_a_message_that_cannot_be_taken_is_refused_with_a_reason(chat, name):
    sent, status, code = BAD[name]
    answer = await chat.client.post("/api/chat", json={"id": "refused", "messages": [sent]})
    assert (answer.status_code, answer.json()["code"]) == (status, code), answer.text[:500]
    assert answer.headers["content-type"] == "application/problem+json"
    assert (await chat.say("refused", "#well then?")).text == "All is well."


ODD = {
    "10,000 parts": message(text("#well"), *[text("x")] * 9_999),
    "unknown parts": message(text("#well"), {"type": "hologram", "data": {"deep": [1, 2]}}, {"type": "file", "url": "data:,x"}),
    "control characters": message(text("#well \u0000\u0007\u001b[31m\u202e bell")),
    "an id like a path": message(text("#well"), id="../../etc/passwd"),
}


@pytest.mark.parametrize("name", ODD)
async def test_an_odd_message_is_answered(chat, name):
    session = f"odd-{list(ODD).index(name)}"
    read = await chat.whole(await chat.client.post("/api/chat", json={"id": session, "messages": [ODD[name]]}))
    assert read.text == "All is well."
    assert (await chat.messages(session))[-1]["role"] == "assistant"


async def test_half_a_character_is_taken_as_a_question_mark(chat):
    json_type = {"Content-Type": "application/json"}
    body = b'{"message": "#well \\ud800 half", "session": "half", "tools": [{"name": "x", "description": "\\udfff"}]}'
    await chat.whole(await chat.client.post("/api/chat", content=body, headers=json_type))
    parts = b'[{"type": "text", "text": "#well \\ud83d"}]'
    body = b'{"id": "half", "messages": [{"id": "m", "role": "user", "metadata": {"x": "\\udc00"}, "parts": ' + parts + b"}]}"
    await chat.whole(await chat.client.post("/api/chat", content=body, headers=json_type))
    assert (await chat.texts("half"))[::2] == ["#well ? half", "#well ?"]
    body = b'{"model": "default", "messages": [{"role": "user", "content": "#well \\ud800"}]}'
    answer = await chat.client.post("/v1/chat/completions", content=body, headers=json_type)
    assert answer.json()["choices"][0]["message"]["content"] == "It is mended."
    for path in ("messages", "export"):
        assert (await chat.client.get(f"/api/sessions/half/{path}")).status_code == 200


async def test_a_parent_of_another_session_is_refused(chat):
    await chat.say("mine", "#well one")
    parent = (await chat.messages("mine"))[0]["id"]
    answer = await chat.client.post("/api/chat", json={"message": "#well", "session": "other", "parent_id": parent})
    assert answer.status_code in (404, 409, 422), answer.text
    assert (await chat.say("other", "#well then?")).text == "All is well."


async def test_two_messages_to_one_parent_at_the_same_instant_are_two_branches(chat):
    await chat.say("twins", "#well one")
    parent = (await chat.messages("twins"))[-1]["id"]
    both = await asyncio.gather(*(chat.say("twins", f"#well {i}", parent_id=parent) for i in range(2)))
    assert [read.text for read in both] == ["All is well."] * 2
    branches = (await chat.client.get("/api/sessions/twins/branches", params={"message_id": parent})).json()
    assert sorted(words(m) for m in branches["children"]) == ["#well 0", "#well 1"]


async def test_an_answer_to_a_call_that_nobody_made_is_refused(chat):
    await chat.say("calls", "#well")
    for body in ({"output": "x"}, {"approved": True}, {"error": "x"}):
        answer = await chat.client.post("/api/chat/calls/answers", json={"call_id": "call-1", **body})
        assert (answer.status_code, answer.json()["code"]) == (409, "no-such-call")
    answer = await chat.client.post("/api/chat/calls/answers", json={"call_id": "call-1", "approved": True, "output": "x"})
    assert answer.status_code in (409, 422)


async def test_a_client_that_stops_reading_holds_up_nobody_and_the_answer_is_stored(chat):
    url = chat.client.base_url
    reader, writer = await asyncio.open_connection(url.host, url.port, limit=1024)
    body = json.dumps({"message": "#flood", "session": "deaf"}).encode()
    head = (
        f"POST /api/chat HTTP/1.1\r\nhost: x\r\nauthorization: {chat.client.headers['authorization']}\r\ncontent-type: application/json\r\n"
    )
    writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
    await reader.readuntil(b"\r\n")
    async with asyncio.timeout(60):
        while len(found := await chat.texts("deaf") if await _known(chat, "deaf") else []) < 2:
            await asyncio.sleep(0.1)
    assert found[1].count("x") == 1_500_000
    assert (await chat.say("deaf", "#well then?")).text == "All is well."
    writer.close()


async def test_an_answer_over_what_a_message_holds_is_shown_whole_and_kept_up_to_there(chat):
    read = await chat.say("huge", "#huge")
    assert read.text == "y" * 3_000_000
    assert "too long to be kept whole" in read.only("data-notice")["data"]["text"]
    assert read.chunks[-1]["type"] == "finish"
    kept = (await chat.messages("huge"))[-1]
    assert words(kept).startswith("y" * 1_000_000)
    assert f"{kept['metadata']['leftOut']:,} characters are left out here" in words(kept)
    assert (await chat.say("huge", "#well then?")).text == "All is well."


async def _known(chat, session):
    return (await chat.client.get(f"/api/sessions/{session}")).status_code == 200


async def test_more_streams_than_a_user_may_open_are_refused_and_room_comes_back(chat):
    async with contextlib.AsyncExitStack() as held, asyncio.TaskGroup() as reading:

        async def opened(method, path, **sent):
            answer = await held.enter_async_context(chat.client.stream(method, path, **sent))
            told = asyncio.Event()
            reading.create_task(_drain(answer, told))
            await told.wait()
            return answer.status_code

        assert await opened("POST", "/api/chat", json={"message": "#slow", "session": "many"}) == 200
        statuses = Counter(await asyncio.gather(*(opened("GET", "/api/chat/many/stream") for _ in range(60))))
        assert statuses == {200: 39, 429: 21}
        again = await chat.client.post("/api/chat", json={"message": "#well", "session": "full"})
        assert again.status_code == 429
        assert not await _known(chat, "full")
        stopped = await chat.client.post("/api/chat/many/cancel", json={})
        assert stopped.status_code == 200
    assert (await chat.say("many", "#well then?")).text == "All is well."


async def _drain(answer, told):
    """Read all of it as it comes; `told` is set by the first bytes."""
    async for _ in answer.aiter_bytes():
        told.set()
    told.set()


async def test_a_conversation_of_ten_thousand_messages_is_answered_and_read_in_pages(chat):
    runtime = json.loads((chat.running.home / "runtime.json").read_text())
    store = await Connection.open(BusSettings(home=chat.running.home, nats_url=runtime["nats_url"]), "gateway")
    try:
        asker = Questioner(store, Telemetry("gateway"))
        for first in range(0, 10_000, 100):
            said = [
                {"id": f"long-{n}", "role": ("user", "assistant")[n % 2], "parts": [text(f"Line {n}.")]} for n in range(first, first + 100)
            ]
            await asker.ask(AppendMessages.model_validate({"session_id": "long", "messages": said}))
    finally:
        await store.close()
    assert (await chat.say("long", "#well then?")).text == "All is well."
    page, found = (await chat.client.get("/api/sessions/long/messages", params={"limit": 1000})).json(), 0
    assert words(page["messages"][-1]) == "All is well."
    while page["more"]:
        found += len(page["messages"])
        query = {"limit": 1000, "before": page["messages"][0]["id"]}
        page = (await chat.client.get("/api/sessions/long/messages", params=query)).json()
    assert (found + len(page["messages"]), words(page["messages"][0])) == (10_002, "Line 0.")
    assert len((await chat.client.get("/agents/assistant/long/get-messages")).json()) == 500


async def test_while_the_issuer_is_down_its_known_keys_go_on_and_an_unknown_one_is_refused(chat, issuer):
    async with issuer.client(chat.running, "kim") as client, issuer.client(chat.running, "kim", kid="new") as unknown:
        assert (await client.get("/api/sessions")).status_code == 200
        issuer.down = True
        try:
            assert (await client.post("/api/chat", json={"message": "#well", "session": "kim"})).status_code == 200
            refused = await unknown.get("/api/sessions")
        finally:
            issuer.down = False
        assert (refused.status_code, refused.headers["content-type"]) == (401, "application/problem+json")
        assert "does not publish" in refused.json()["detail"]


async def test_an_issuer_that_is_down_from_the_start_is_503_for_its_people_alone(tmp_path):
    async with Issuer().running() as issuer:
        issuer.down = True
        environment = {"AGENT_CODER_JWT_ISSUER": issuer.url}
        async with (
            product(tmp_path / "home", script(tmp_path, SCENES), environment=environment) as running,
            issuer.client(running, "kim") as kim,
        ):
            refused = await kim.get("/api/sessions")
            assert (refused.status_code, refused.json()["code"]) == (503, "issuer-unavailable")
            assert int(refused.headers["retry-after"]) > 0
            assert (await running.client.get("/api/sessions")).status_code == 200


async def test_tokens_of_another_issuer_unsigned_and_broken_ones_open_nothing(chat, issuer):
    claims = {"iss": issuer.url, "aud": "agent-coder", "sub": "eve", "exp": 4_102_444_800, "tenant": "local"}
    tokens = [jwt.encode(claims, None, "none"), jwt.encode(claims, "k" * 64, "HS512"), "nonsense"]
    async with Issuer().running() as stranger, stranger.client(chat.running, "eve") as client:
        tokens.append(client.headers["authorization"].removeprefix("Bearer "))
    for token in tokens:
        answer = await chat.client.post("/api/chat", json={"message": "#well"}, headers={"Authorization": f"Bearer {token}"})
        assert answer.status_code == 401, (token, answer.text)
        assert "www-authenticate" in answer.headers
