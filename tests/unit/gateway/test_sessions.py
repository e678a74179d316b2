"""Conversations over REST: each answer comes from the store, under the caller's own name; exports hold everything once."""

import json

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.bus import Refusal
from libs.contracts.conversation import AppendMessages, SetContext, StoredMessage
from services.gateway.chat.export import markdown_of
from services.gateway.chat.names import session_id_of
from tests.unit.gateway.conversation import Conversations, everything
from tests.unit.gateway.fake_bus import FakeBus


@pytest.fixture
def store(bus: FakeBus) -> Conversations:
    return everything(bus)


def say(store: Conversations, message_id: str, parent: str | None = None, text: str = "x", role: str = "user") -> None:
    message = StoredMessage(id=message_id, parent_id=parent, role=role, parts=({"type": "text", "text": text},))  # type: ignore[arg-type]  # a role
    store.append(AppendMessages(session_id="s1", messages=(message,)))


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/api/sessions", None),
        ("POST", "/api/sessions", {"name": "holiday"}),
        ("PATCH", "/api/sessions/s1", {"name": "new"}),
        ("PATCH", "/api/sessions/s1", {"leaf_id": "m1"}),
        ("POST", "/api/sessions/s1/fork", {"at_message_id": "m1"}),
        ("GET", "/api/sessions/s1/messages?limit=2", None),
        ("GET", "/api/sessions/s1/tree", None),
        ("GET", "/api/sessions/s1/branches?message_id=m1", None),
        ("GET", "/api/search?q=你好", None),
        ("GET", "/api/sessions/s1/contexts", None),
        ("POST", "/api/sessions/s1/prompt", None),
        ("PUT", "/api/sessions/s1/contexts/notes", {"content": "x", "action": "append"}),
        ("GET", "/api/sessions/s1/contexts/notes/search?q=x", None),
        ("GET", "/api/sessions/s1/contexts/notes/entries/a%20key", None),
        ("GET", "/api/memory", None),
        ("POST", "/api/memory", {"content": "prefers tabs"}),
        ("GET", "/api/recall?q=tabs", None),
        ("DELETE", "/api/memory/i1", None),
        ("POST", "/api/sessions/s1/clear", None),
        ("DELETE", "/api/sessions/s1", None),
    ],
)
async def test_every_route_asks_the_store_as_the_caller(
    client: httpx.AsyncClient, bus: FakeBus, store: Conversations, method: str, path: str, body: dict[str, str] | None
) -> None:
    say(store, "m1")
    answer = await client.request(method, path, json=body)
    assert answer.status_code in (200, 201, 204), answer.text
    assert bus.asked
    assert {(q.tenant, q.user) for q in bus.asked} == {("local", "local")}


async def test_what_is_not_there_or_cannot_be_is_a_problem(client: httpx.AsyncClient, bus: FakeBus, store: Conversations) -> None:
    assert (await client.get("/api/sessions/nobody")).status_code == 404
    assert (await client.get("/api/sessions/a.b")).status_code == 404
    assert (await client.patch("/api/sessions/s1", json={})).status_code == 422
    assert (await client.patch("/api/sessions/s1", json={"user": "x"})).status_code == 422
    for code, status in (("readonly", 409), ("over_limit", 422), ("wrong_kind", 409), ("too_large", 413)):
        bus.answer(SetContext, Refusal(code, "no"))
        assert (await client.put("/api/sessions/s1/contexts/notes", json={"content": "x"})).status_code == status


async def test_json_holds_every_message_of_every_branch_once(client: httpx.AsyncClient, store: Conversations) -> None:
    say(store, "r")
    for n in range(450):
        say(store, f"a{n}")
    for n in range(3):
        say(store, f"b{n}", "a440" if n == 0 else None)
    answer = await client.get("/api/sessions/s1/export")
    assert answer.headers["content-disposition"] == 'attachment; filename="s1.json"'
    found = json.loads(answer.text)
    ids = [m["id"] for m in found["messages"]]
    assert sorted(ids) == sorted(store.messages["local", "local", "s1"])
    assert all(m["parent_id"] in ids[:place] for place, m in enumerate(found["messages"]) if m.get("parent_id"))
    assert (found["leaf_id"], found["truncated"]) == ("b2", False)


async def test_markdown_is_one_branch_for_reading(client: httpx.AsyncClient, store: Conversations) -> None:
    say(store, "m1", text="What is 你好?")
    answer = await client.get("/api/sessions/s1/export", headers={"Accept": "text/markdown"})
    assert answer.text == "# a name\n\n## user · 2026-01-31 12:00 UTC\n\nWhat is 你好?\n\n"
    assert (await client.get("/api/sessions/s1/export?format=markdown&leaf=nobody")).status_code == 404


def test_a_tool_in_markdown_cannot_break_out_of_its_fence() -> None:
    part = {
        "type": "tool-shell",
        "toolCallId": "c",
        "state": "output-available",
        "input": {"a": 1},
        "output": "```\n# no title\n" + "x" * 3000,
    }
    text = markdown_of(StoredMessage(id="m", role="assistant", parts=({"type": "step-start"}, part)))
    assert "````\n```\n# no title" in text
    assert "characters more" in text


@given(st.text(max_size=200), st.sampled_from(["assistant", "coder"]))
def test_every_name_is_a_session_of_its_own(name: str, agent: str) -> None:
    made = session_id_of(name, agent)
    assert made == session_id_of(name, agent)
    assert 1 <= len(made) <= 64
    assert all(c.isascii() and (c.isalnum() or c in "_-") for c in made)
    assert session_id_of("default") == "default" != session_id_of("default", "coder")
