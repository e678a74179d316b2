"""WebSocket `/agents/{agent}/{name}`: the frames of the npm package `agents`, on a real socket."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

import services.gateway.chat.socket as socket_module
from libs.contracts.turn import TurnFinished, TurnOpened
from services.gateway.identity.caller import OWNER as CALLER
from tests.unit.gateway.conftest import TOKEN
from tests.unit.gateway.conversation import Conversations, text_chunks
from tests.unit.gateway.fake_bus import FakeBus
from tests.unit.gateway.test_chat import answered, opened, paused, ui
from tests.unit.gateway.test_server import served

OWNER = {"Authorization": f"Bearer {TOKEN}"}


@pytest.fixture
def store(bus: FakeBus) -> Conversations:
    return Conversations(bus)


@pytest.fixture
async def port(app: FastAPI, store: Conversations) -> AsyncIterator[int]:
    async with served(app) as port:
        yield port


class Client:
    """A connection that keeps what it was sent."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.got: list[dict[str, Any]] = []

    async def send(self, kind: str, **fields: Any) -> None:
        await self.socket.send(json.dumps({"type": kind, **fields}))

    async def until(self, kind: str, **fields: Any) -> dict[str, Any]:
        """The next frame of a kind with these fields."""
        async with asyncio.timeout(60):
            while True:
                frame = json.loads(await self.socket.recv())
                self.got.append(frame)
                if frame["type"] == kind and all(frame.get(k) == v for k, v in fields.items()):
                    return dict(frame)

    async def chat(self, text: str, request_id: str = "q1", message_id: str = "m1") -> None:
        body = json.dumps({"messages": [ui(text, message_id)], "trigger": "submit-message"})
        await self.send("cf_agent_use_chat_request", id=request_id, init={"method": "POST", "body": body})

    def text(self, request_id: str) -> str:
        bodies = [f["body"] for f in self.got if f["type"] == "cf_agent_use_chat_response" and f["id"] == request_id and f["body"]]
        return "".join(json.loads(b).get("delta", "") for b in bodies)


@contextlib.asynccontextmanager
async def client_of(port: int, path: str = "assistant/default", headers: dict[str, str] | None = None) -> AsyncIterator[Client]:
    async with connect(f"ws://127.0.0.1:{port}/agents/{path}", additional_headers=OWNER if headers is None else headers) as socket:
        yield Client(socket)


async def test_a_client_is_greeted_with_identity_state_servers_and_messages(port: int) -> None:
    async with client_of(port, "Assistant/my%20chat") as client:
        await client.until("cf_agent_chat_messages")
        assert [f["type"] for f in client.got] == ["cf_agent_identity", "cf_agent_state", "cf_agent_mcp_servers", "cf_agent_chat_messages"]
        assert client.got[0] == {"type": "cf_agent_identity", "name": "my chat", "agent": "assistant"}
        assert client.got[3] == {"type": "cf_agent_chat_messages", "messages": [], "connect": True}
        await client.socket.send("ping")
        assert await client.socket.recv() == "pong"
    async with client_of(port, "assistant/x?protocol=off") as client:
        await client.until("cf_agent_chat_messages")
        assert len(client.got) == 1


async def test_a_chat_request_is_answered_in_frames(port: int, store: Conversations) -> None:
    store.answer_with("Hel", "lo")
    async with client_of(port) as client:
        await client.chat("Hi")
        last = await client.until("cf_agent_use_chat_response", done=True)
        assert last == {"type": "cf_agent_use_chat_response", "id": "q1", "body": "", "done": True, "outcome": "completed"}
        assert client.text("q1") == "Hello"
    assert set(store.messages) == {("local", "local", "default")}


async def test_a_bad_token_closes_with_4001(port: int) -> None:
    for path, headers in (("assistant/default?token=wrong", {}), ("assistant/default", {"Authorization": "Bearer wrong"})):
        async with client_of(port, path, headers) as client:
            with pytest.raises(ConnectionClosed) as closed:
                await client.socket.recv()
            assert closed.value.rcvd is not None
            assert (closed.value.rcvd.code, closed.value.rcvd.reason) == (4001, "Unauthorized")
    async with httpx.AsyncClient(headers=OWNER, trust_env=False) as http:
        made = await http.post(f"http://127.0.0.1:{port}/api/tokens", json={"name": "other", "scopes": ["read"]})
    async with client_of(port, f"assistant/default?token={made.json()['token']}", {}) as client:
        with pytest.raises(ConnectionClosed):
            await client.socket.recv()
    async with client_of(port, f"assistant/other?token={made.json()['token']}", {}) as client:
        await client.until("cf_agent_chat_messages")


@pytest.mark.parametrize("way", ["key", "ticket"])
@pytest.mark.parametrize("quiet", [True, False])
async def test_an_open_connection_ends_when_its_key_is_revoked(port: int, monkeypatch: pytest.MonkeyPatch, way: str, quiet: bool) -> None:
    monkeypatch.setattr(socket_module, "_RECHECK_SECONDS", 0.05 if quiet else 3600)
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", headers=OWNER, trust_env=False) as http:
        key = (await http.post("/api/keys", json={"name": "tab", "scopes": ["read", "write"]})).json()
        bearer = {"Authorization": f"Bearer {key['key']}"}
        ticket = (await http.post("/api/tokens", json={"name": "default"}, headers=bearer)).json()["token"]
        path, headers = ("assistant/default", bearer) if way == "key" else (f"assistant/default?token={ticket}", {})
        async with client_of(port, path, headers) as client:
            await client.until("cf_agent_chat_messages")
            assert (await http.delete(f"/api/keys/{key['id']}")).status_code == 204
            if not quiet:
                await client.chat("Hi")
            assert await closed_with(client) == 4001
        async with client_of(port, path, headers) as client:
            assert await closed_with(client) == 4001


async def test_an_open_connection_ends_when_its_token_expires(app: FastAPI, port: int) -> None:
    soon = datetime.now(UTC) + timedelta(seconds=1)
    key, _ = await app.state.gateway.identity.keys.make(CALLER, "short", frozenset({"read"}), soon)
    async with client_of(port, headers={"Authorization": f"Bearer {key}"}) as client:
        assert await closed_with(client) == 4001


async def closed_with(client: Client) -> int | None:
    """The code that the server closes with, whatever it says before."""
    with contextlib.suppress(ConnectionClosed):
        async with asyncio.timeout(60):
            while True:
                client.got.append(json.loads(await client.socket.recv()))
    return client.socket.close_code


async def test_an_unknown_agent_is_404(port: int) -> None:
    with pytest.raises(InvalidStatus) as refused:
        async with client_of(port, "nobody/default"):
            pass
    assert refused.value.response.status_code == 404
    assert b"assistant, code-helper" in refused.value.response.body


async def test_a_readonly_connection_watches_and_writes_nothing(port: int, bus: FakeBus, store: Conversations) -> None:
    async with client_of(port, "assistant/default?readonly=1") as client:
        await client.until("cf_agent_chat_messages")
        await client.send("cf_agent_state", state={"a": 1})
        assert (await client.until("cf_agent_state_error"))["error"] == "Connection is readonly"
        await client.chat("Hi")
        refused = await client.until("cf_agent_use_chat_response")
        assert (refused["error"], refused["body"]) == (True, "Connection is readonly")
        await client.send("cf_agent_chat_clear")
        await client.until("cf_agent_state_error")
        await client.send("rpc", id="r", method="anything", args=[])
        assert (await client.until("rpc"))["success"] is False
        assert not bus.messages["TURN"]


async def test_state_reaches_the_other_connections_and_those_that_come_later(port: int, bus: FakeBus) -> None:
    async with client_of(port) as one, client_of(port) as two:
        await one.until("cf_agent_chat_messages")
        await two.until("cf_agent_chat_messages")
        await bus.followed(4)
        await one.send("cf_agent_state", state={"n": 7})
        assert (await two.until("cf_agent_state"))["state"] == {"n": 7}
        await one.send("cf_agent_state", state="x" * 300_000)
        assert "rejected" in (await one.until("cf_agent_state_error"))["error"]
    async with client_of(port) as three:
        assert (await three.until("cf_agent_state"))["state"] == {"n": 7}


async def test_every_tab_sees_the_same(port: int, bus: FakeBus, store: Conversations) -> None:
    async with client_of(port) as one, client_of(port) as two:
        await one.until("cf_agent_chat_messages")
        await two.until("cf_agent_chat_messages")
        await bus.followed(4)
        await one.chat("Hi")
        turn = await opened(bus)
        offered = await two.until("cf_agent_stream_resuming")
        assert [m["id"] for m in two.got[-2]["messages"]] == ["m1"]
        await two.send("cf_agent_stream_resume_ack", id=offered["id"])
        send = store.delivery(turn.turn_id)
        send(*text_chunks(turn.turn_id, "Hel", "lo"), {"type": "finish"})
        store.keep(turn, "Hello")
        bus.add(TurnFinished(turn_id=turn.turn_id, message_id=f"answer-{turn.turn_id}"))
        await one.until("cf_agent_use_chat_response", done=True)
        await two.until("cf_agent_use_chat_response", done=True)
        assert (one.text("q1"), two.text(offered["id"])) == ("Hello", "Hello")


async def test_a_client_that_comes_back_gets_the_text_once_whatever_it_acknowledges(port: int, bus: FakeBus, store: Conversations) -> None:
    async with client_of(port) as client:
        await client.chat("Hi")
        turn = await opened(bus)
    send = store.delivery(turn.turn_id)
    told = [*text_chunks(turn.turn_id, "one ", "two"), {"type": "finish"}]
    send(*told[:4])
    async with client_of(port) as client:
        await client.send("cf_agent_stream_resume_request", probeId="p1")
        offered = await client.until("cf_agent_stream_resuming")
        assert offered["probeId"] == "p1"
        for _ in range(3):
            await client.send("cf_agent_stream_resume_ack", id=offered["id"])
        await client.until("cf_agent_use_chat_response", body=json.dumps(told[3], separators=(",", ":")))
        send(*told[4:])
        bus.add(TurnFinished(turn_id=turn.turn_id, message_id="m"))
        await client.until("cf_agent_use_chat_response", done=True)
        assert client.text(offered["id"]) == "one two"
        await client.send("cf_agent_stream_resume_request", probeId="p2")
        assert await client.until("cf_agent_stream_resume_none") == {
            "type": "cf_agent_stream_resume_none",
            "reason": "idle",
            "probeId": "p2",
        }


async def test_a_tool_result_updates_the_message_and_the_turn_goes_on(port: int, bus: FakeBus, store: Conversations) -> None:
    async with client_of(port) as client:
        await client.chat("Hi")
        turn = await opened(bus)
        call = paused(bus, store, turn, "client")
        await client.until("cf_agent_use_chat_response", done=True)
        keep_call(store, turn, call)
        await client.send("cf_agent_tool_result", toolCallId=call, toolName="ask", output={"n": 7}, autoContinue=True)
        part = (await client.until("cf_agent_message_updated"))["message"]["parts"][1]
        assert (part["state"], part["output"]) == ("output-available", {"n": 7})
        await client.send("cf_agent_stream_resume_request", probeId="p")
        offered = await client.until("cf_agent_stream_resuming")
        await client.send("cf_agent_stream_resume_ack", id=offered["id"])
        await bus.followed(4)
        answered(store, turn, call, {"n": 7})
        await client.until("cf_agent_use_chat_response", done=True)
        assert client.text(offered["id"]) == "thanks"
        assert all(f.get("continuation") for f in client.got if f.get("id") == offered["id"] and f["type"].endswith("response"))
        await client.send("cf_agent_tool_result", toolCallId="nobody's", output=1)
        assert "waits" in (await client.until("cf_agent_state_error"))["error"]


@pytest.mark.parametrize("kind", ["client", "approval"])
async def test_an_answer_that_is_not_to_go_on_says_so_in_the_journal(port: int, bus: FakeBus, store: Conversations, kind: str) -> None:
    async with client_of(port) as client:
        await client.chat("Hi")
        turn = await opened(bus)
        call = paused(bus, store, turn, kind)
        keep_call(store, turn, call)
        sent: dict[str, Any] = {"output": "x"} if kind == "client" else {"approved": True}
        name = "cf_agent_tool_result" if kind == "client" else "cf_agent_tool_approval"
        await client.send(name, toolCallId=call, autoContinue=False, **sent)
        await client.until("cf_agent_message_updated")
    (word,) = (json.loads(m.payload) for m in bus.messages["TURN"] if "answered" in m.subject)
    assert word["goes_on"] is False


def keep_call(store: Conversations, turn: TurnOpened, call: str) -> None:
    part = {"type": "tool-ask", "toolCallId": call, "state": "input-available", "input": {}}
    store.keep(turn, "")
    tree = store.messages[turn.tenant, turn.user, turn.session_id]
    answer_id = f"answer-{turn.turn_id}"
    tree[answer_id] = tree[answer_id].model_copy(update={"parts": ({"type": "step-start"}, part)})


async def test_cancel_and_clear_stop_the_turn(port: int, bus: FakeBus, store: Conversations) -> None:
    async with client_of(port) as one, client_of(port) as two:
        await two.until("cf_agent_chat_messages")
        await bus.followed(4)
        await one.chat("Hi")
        turn = await opened(bus)
        send = store.delivery(turn.turn_id)
        send(*text_chunks(turn.turn_id, "so")[:-2])
        await one.send("cf_agent_chat_request_cancel", id="q1")
        async with asyncio.timeout(60):
            while not any(m.subject.endswith(".cancelled") for m in bus.messages["TURN"]):
                await asyncio.sleep(0.01)
        send({"type": "abort"})
        assert (await one.until("cf_agent_use_chat_response", done=True))["outcome"] == "aborted"
        await one.send("cf_agent_chat_clear")
        await two.until("cf_agent_chat_clear")
        assert not store.messages


@pytest.mark.parametrize("text", ["", "{", "[]", "7", '{"type": 7}', '{"type": "cf_agent_unheard_of"}', "[" * 100_000])
async def test_what_is_no_frame_is_passed_over(port: int, text: str) -> None:
    async with client_of(port) as client:
        await client.socket.send(text)
        await client.socket.send(b"\x00\xff")
        await client.socket.send("ping")
        async with asyncio.timeout(60):
            while await client.socket.recv() != "pong":
                pass


@pytest.mark.parametrize("init", [None, {}, {"body": "{"}, {"body": json.dumps({"messages": []})}, {"body": json.dumps({"messages": [7]})}])
async def test_a_request_that_cannot_be_read_is_refused_in_its_own_name(port: int, init: Any) -> None:
    async with client_of(port) as client:
        await client.send("cf_agent_use_chat_request", id="q", init=init)
        refused = await client.until("cf_agent_use_chat_response")
        assert (refused["id"], refused["done"], refused["error"]) == ("q", True, True)


async def test_a_frame_that_is_too_large_ends_the_connection(app: FastAPI, port: int) -> None:
    async with client_of(port) as client:
        with contextlib.suppress(ConnectionClosed):
            await client.socket.send("x" * 17_000_000)
        await client.socket.wait_closed()
        assert client.socket.close_code == 1009


async def test_a_reader_that_takes_nothing_is_dropped(app: FastAPI, port: int, bus: FakeBus, store: Conversations) -> None:
    gateway = app.state.gateway
    object.__setattr__(gateway, "settings", gateway.settings.model_copy(update={"send_timeout_seconds": 0.2}))
    async with connect(
        f"ws://127.0.0.1:{port}/agents/assistant/default", additional_headers=OWNER, max_queue=1, compression=None
    ) as socket:
        client = Client(socket)
        await client.chat("Hi")
        turn = await opened(bus)
        socket.transport.pause_reading()  # type: ignore[attr-defined]  # as a client does that is stuck
        send = store.delivery(turn.turn_id)
        send({"type": "start"}, {"type": "start-step"}, {"type": "text-start", "id": "text-1"})
        async with asyncio.timeout(30):
            while bus.tails:
                if len(bus.messages["LIVE"]) < 3000:
                    send({"type": "text-delta", "id": "text-1", "delta": "x" * 8000})
                await asyncio.sleep(0.001)


async def test_http_on_the_same_path(client: httpx.AsyncClient, store: Conversations) -> None:
    store.answer_with("Hello")
    assert (await client.get("/agents/code-helper/n/get-messages")).json() == []
    answer = await client.post("/agents/CodeHelper/n", json={"message": "Hi"}, headers={"Accept": "text/plain"})
    assert answer.text == "Hello\n"
    messages = (await client.get("/agents/code-helper/n/get-messages")).json()
    assert [m["role"] for m in messages] == ["user", "assistant"]
    assert (await client.get("/agents/nobody/n/get-messages")).status_code == 404
    assert (await client.get("/api/agents")).json()["agents"][0]["name"] == "assistant"
