"""Nobody sees or touches anything of somebody else: every operation, called by a stranger who may do everything at home."""

import asyncio
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from libs.bus import Refusal
from libs.contracts.artifact import CreateRepository, GitToken, IssueGitToken, RepositoryDescription, ServeGit
from libs.contracts.conversation import AppendMessages, StoredMessage
from libs.contracts.inference import DebugCompletion, ReadUsage, UsageReport
from libs.contracts.session import ListRuns, ReadRun, RunPage
from libs.contracts.turn import PendingCall, TurnAdmitted, TurnOpened, TurnPaused
from services.gateway.identity.api_keys import ApiKeys
from services.gateway.identity.caller import OWNER, Caller
from tests.unit.gateway import stories
from tests.unit.gateway.conversation import NOW, Conversations, everything
from tests.unit.gateway.fake_bus import FakeBus, FakeDelivery

SECRET = "the-owner's-secret"
STRANGER = Caller(tenant="acme", user="kim", scopes=frozenset({"operator"}))
COLLEAGUE = Caller(tenant="local", user="lee", scopes=frozenset({"read", "write"}))
OURS = {
    "run_id": "r1",
    "session_id": "s1",
    "chat_id": "s1",
    "sequence": "1",
    "item_id": "i1",
    "agent": "assistant",
    "label": "notes",
    "key": "k",
    "token": "t0ken",
}
BODIES: dict[str, dict[str, Any]] = {
    "create_repository": {"name": "team/app"},
    "create_key": {"name": "x", "scopes": ["read"]},
    "create_token": {},
    "solve": {"title": "t", "repo": "https://example.org/a.git"},
    "chat": {"message": "hi", "session": "own"},
    "chat_with_agent": {"message": "hi"},
    "chat_completion": {"model": "m", "messages": [{"role": "user", "content": "hi"}]},
    "answer_call": {"call_id": "c1", "approved": True, "turn": "T1"},
    "cancel_turn": {"turn": "T1"},
    "change_session": {"name": "mine now"},
    "fork_session": {"at_message_id": "m1"},
    "set_context": {"content": "x"},
    "remember": {"content": "x"},
}  # fmt: skip
QUERIES = {"search": "?q=secret", "search_context": "?q=secret", "recall": "?q=secret"}
REFUSED = frozenset(
    [
        "show",
        "diff",
        "trace",
        "events",
        "cancel",
        "approve",
        "deny",
        "retry",
        "answer_call",
        "cancel_turn",
        "revoke_key",
        "show_session",
        "read_messages",
        "read_tree",
        "export_session",
        "clear_session",
        "delete_session",
        "list_dead",
        "show_dead",
        "replay_dead",
        "remove_dead",
        "debug_model",
        "integrations",
        "list_repositories",
        "create_repository",
        "issue_token",
        "info_refs",
        "upload_pack",
        "receive_pack",
    ]
)


def _named(path: str, method: str) -> str:
    """The owner's conversation to read, one of one's own to write to, a repository."""
    if not path.startswith("/agents/"):
        return "team/app"
    return "s1" if method == "get" else "own"


async def owned(bus: FakeBus) -> Conversations:
    """A run, a conversation, a turn that waits, a dead letter of the owner."""
    for event in stories.whole("r1"):
        bus.add(event)
    bus.answer(ReadUsage, UsageReport())
    bus.answer(ServeGit, Refusal("bad_token", "not a token of this repository"))
    bus.answer(CreateRepository, RepositoryDescription(name="team/app"))
    bus.answer(IssueGitToken, GitToken(token="gt", repository="team/app", scope="read", expires_at=NOW))
    bus.answer(ListRuns, RunPage(runs=()))
    store = everything(bus)
    message = StoredMessage(id="m1", role="user", parts=({"type": "text", "text": SECRET},))
    store.append(AppendMessages(session_id="s1", messages=(message,)))
    bus.add(TurnOpened(turn_id="T1", session_id="s1", parent_id="m1", opened_at=NOW))
    bus.add(TurnAdmitted(turn_id="T1", parent_id="m1"))
    bus.add(TurnPaused(turn_id="T1", pending=(PendingCall(call_id="c1", tool="shell", arguments=SECRET, waits_for="approval"),)))
    await bus.letters.bury(FakeDelivery("inbound.x", SECRET), SECRET, "schema")
    return store


@pytest.mark.parametrize("stranger", [STRANGER, COLLEAGUE], ids=["of another tenant", "of the same tenant"])
async def test_no_operation_gives_a_stranger_anything(app: FastAPI, bus: FakeBus, stranger: Caller) -> None:
    store = await owned(bus)
    _, record = await ApiKeys(bus).make(OWNER, "owner's", frozenset({"read"}), None)
    key, _ = await ApiKeys(bus).make(stranger, "own", stranger.scopes, None)
    before = {stream: list(messages) for stream, messages in bus.messages.items()}
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://server", headers={"Authorization": f"Bearer {key}"}) as client:
        document = app.openapi()
        walked, asked = 0, list[Any]()
        for path, operations in document["paths"].items():
            for method, operation in operations.items():
                name = operation["operationId"]
                values = {
                    **OURS,
                    "key_id": record.id,
                    "name": _named(path, method),
                    "repository": "team/app",
                }
                url = path.format_map({**values, "issue_id": "42", "model": "scripted"}) + QUERIES.get(name, "")
                bus.asked.clear()
                async with asyncio.timeout(60):
                    answer = await client.request(method, url, json=BODIES.get(name) if method in ("post", "put", "patch") else None)
                assert SECRET not in answer.text, name
                assert answer.status_code < 500 or name in ("readyz", "chat_completion"), (name, answer.text)
                if name in REFUSED and not (stranger.local and name in ("list_repositories", "create_repository", "issue_token")):
                    assert answer.status_code in (401, 403, 404), (name, answer.status_code)
                walked += 1
                asked += bus.asked if name != "readyz" else []
    assert walked == len([o for p in document["paths"].values() for o in p.values()]) >= 60
    asked = [q for q in asked if getattr(q, "tenant", None) is not None and not isinstance(q, ReadRun)]
    assert {(q.tenant, q.user) for q in asked} <= {(stranger.tenant, stranger.user), (stranger.tenant, None)}
    assert not any(isinstance(q, DebugCompletion) for q in asked)
    for stream in ("RUN", "TURN"):
        added = bus.messages[stream][len(before[stream]) :]
        assert not [m.subject for m in added if m.subject.split(".")[1] in ("r1", "T1")]
    assert [m.id for m in store.messages["local", "local", "s1"].values()] == ["m1"]
    assert (await ApiKeys(bus).list(OWNER))[0].revoked_at is None


async def test_the_same_names_of_two_users_are_two_things(app: FastAPI, bus: FakeBus) -> None:
    store = everything(bus)
    runs: list[str] = []
    for caller in (STRANGER, STRANGER.model_copy(update={"user": "lee"}), STRANGER.model_copy(update={"tenant": "umbrella"})):
        key, _ = await ApiKeys(bus).make(caller, "own", caller.scopes, None)
        headers = {"Authorization": f"Bearer {key}", "Idempotency-Key": "same"}
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://server", headers=headers) as client:
            await client.post("/api/chat", json={"message": "hi", "session": "s1"})
            solved = await client.post("/api/issues/1/solve", json=BODIES["solve"])
            runs.append(solved.json()["instanceId"])
    assert len(store.messages) == 3
    assert len(set(runs)) == 3


async def test_operators_see_the_runs_of_their_tenant(app: FastAPI, bus: FakeBus) -> None:
    everything(bus)
    colleague = STRANGER.model_copy(update={"user": "lee", "scopes": frozenset({"read", "write"})})
    made: dict[str, str] = {}
    for caller in (colleague, STRANGER):
        made[caller.user], _ = await ApiKeys(bus).make(caller, "own", caller.scopes, None)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://server") as client:
        lee, kim = ({"Authorization": f"Bearer {made[user]}"} for user in ("lee", "kim"))
        run = (await client.post("/api/issues/1/solve", json=BODIES["solve"], headers=lee)).json()["instanceId"]
        assert (await client.get(f"/api/runs/{run}", headers=kim)).status_code == 200
        assert (await client.get(f"/api/runs/{run}", headers=lee)).status_code == 200
        mine = (await client.post("/api/issues/2/solve", json=BODIES["solve"], headers=kim)).json()["instanceId"]
        assert (await client.get(f"/api/runs/{mine}", headers=lee)).status_code == 404
        refused = await client.post("/api/issues/3/solve", json={**BODIES["solve"], "repo": "team/app"}, headers=kim)
        assert refused.status_code == 403
