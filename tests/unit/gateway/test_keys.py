"""API keys and short-lived tokens open what they should and nothing more."""

from datetime import UTC, datetime, timedelta

import httpx
import pytest
from fastapi import FastAPI
from hypothesis import given
from hypothesis import strategies as st

from services.gateway.identity.api_keys import ApiKeys, checksum, new_key, well_formed
from services.gateway.identity.caller import OWNER, Caller
from services.gateway.identity.tickets import Tickets
from services.gateway.problems import Problem
from tests.unit.gateway.fake_bus import FakeBus

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)


async def key_of(client: httpx.AsyncClient, *scopes: str) -> str:
    made = await client.post("/api/keys", json={"name": "ci", "scopes": list(scopes)})
    assert made.status_code == 201, made.text
    return str(made.json()["key"])


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def test_a_key_is_known_by_its_form() -> None:
    key = new_key()
    assert key.startswith("ack_")
    assert well_formed(key)
    assert not well_formed(key[:-1])
    assert not well_formed(key + "x")
    assert not well_formed("ack_" + "0" * 38)
    assert len({new_key() for _ in range(100)}) == 100


@given(st.text(max_size=60))
def test_no_other_text_is_a_key(text: str) -> None:
    assert not well_formed("ack_" + text) or checksum(text[:32]) == text[32:]


async def test_a_key_opens_what_its_scopes_say(client: httpx.AsyncClient) -> None:
    key = await key_of(client, "read")
    assert (await client.get("/api/runs", headers=bearer(key))).status_code == 200
    refused = await client.post("/api/repos", json={"name": "a"}, headers=bearer(key))
    assert refused.status_code == 403
    assert refused.json()["code"] == "insufficient-scope"
    assert 'scope="write"' in refused.headers["WWW-Authenticate"]
    assert (await client.get("/api/dead", headers=bearer(await key_of(client, "write")))).status_code == 403
    assert (await client.get("/api/dead", headers=bearer(await key_of(client, "operator")))).status_code == 200


async def test_a_key_makes_no_key_that_may_more(client: httpx.AsyncClient) -> None:
    key = await key_of(client, "write")
    assert (await client.post("/api/keys", json={"name": "x", "scopes": ["operator"]}, headers=bearer(key))).status_code == 403
    assert (await client.post("/api/keys", json={"name": "x", "scopes": ["read"]}, headers=bearer(key))).status_code == 201


async def test_keys_are_listed_without_themselves_and_end_when_revoked(client: httpx.AsyncClient, bus: FakeBus) -> None:
    key = await key_of(client, "read")
    listed = (await client.get("/api/keys")).json()["keys"]
    assert [k["name"] for k in listed] == ["ci"]
    assert key not in str(listed)
    assert all(key.encode() not in value for value, _ in bus.buckets["API_KEYS"].values.values())
    assert (await client.delete(f"/api/keys/{listed[0]['id']}")).status_code == 204
    assert (await client.delete(f"/api/keys/{listed[0]['id']}")).status_code == 204
    gone = await client.get("/api/runs", headers=bearer(key))
    assert gone.status_code == 401
    assert "revoked" in gone.json()["detail"]
    assert (await client.delete("/api/keys/key_nobodys")).status_code == 404


async def test_an_expired_key_opens_nothing(bus: FakeBus) -> None:
    keys = ApiKeys(bus)
    key, _ = await keys.make(OWNER, "old", frozenset({"read"}), datetime.now(UTC) - timedelta(seconds=1))
    with pytest.raises(Problem, match="expired"):
        await keys.caller(key)


async def test_two_keys_made_at_once_are_both_listed(bus: FakeBus) -> None:
    keys = ApiKeys(bus)
    await keys.make(OWNER, "one", frozenset({"read"}), None)
    index = bus.buckets["API_KEYS"].values["of.local.local"][0]
    await keys.make(OWNER, "two", frozenset({"read"}), None)
    bus.buckets["API_KEYS"].values["of.local.local"] = (index, 1)
    assert {k.name for k in await keys.list(OWNER)} == {"one"}
    await keys.make(OWNER, "three", frozenset({"read"}), None)
    assert {k.name for k in await keys.list(OWNER)} == {"one", "three"}


async def test_the_hundredth_and_first_key_waits_until_one_is_out_of_use(bus: FakeBus) -> None:
    keys = ApiKeys(bus)
    made = [await keys.make(OWNER, str(n), frozenset({"read"}), None) for n in range(100)]
    with pytest.raises(Problem, match="at most 100"):
        await keys.make(OWNER, "more", frozenset({"read"}), None)
    await keys.revoke(OWNER, made[0][1].id)
    await keys.make(OWNER, "more", frozenset({"read"}), None)
    assert len(await keys.list(OWNER)) == 100


async def test_another_user_neither_sees_nor_revokes_a_key(bus: FakeBus) -> None:
    keys = ApiKeys(bus)
    _, record = await keys.make(OWNER, "mine", frozenset({"read"}), None)
    other = Caller(tenant="acme", user="local", scopes=frozenset({"operator"}))
    assert await keys.list(other) == []
    with pytest.raises(Problem) as refused:
        await keys.revoke(other, record.id)
    assert refused.value.status == 404


def test_a_short_lived_token_names_its_caller_until_it_is_over() -> None:
    tickets = Tickets(b"k" * 32)
    caller = Caller(tenant="acme", user="李雷", scopes=frozenset({"read"}), plan="pro", kind="jwt", resource="/agents/a/b")
    text, expires_at = tickets.make(caller, NOW, timedelta(minutes=5))
    assert tickets.caller(text, NOW) == caller.model_copy(update={"kind": "ticket"})
    with pytest.raises(Problem, match="expired"):
        tickets.caller(text, expires_at)
    with pytest.raises(Problem, match="not valid"):
        Tickets(b"x" * 32).caller(text, NOW)


@given(st.integers(min_value=4, max_value=200), st.characters())
def test_a_changed_token_opens_nothing(place: int, other: str) -> None:
    tickets = Tickets(b"k" * 32)
    text, _ = tickets.make(OWNER, NOW, timedelta(minutes=5))
    place %= len(text)
    changed = text[:place] + other + text[place + 1 :]
    if changed == text or not changed.startswith("act_"):
        return
    with pytest.raises(Problem):
        tickets.caller(changed, NOW)


async def test_a_short_lived_token_opens_one_path_alone(client: httpx.AsyncClient) -> None:
    made = await client.post("/api/tokens", json={"agent": "assistant", "name": "n1", "expires_in_seconds": 60})
    assert made.json()["resource"] == "/agents/assistant/n1"
    headers = bearer(made.json()["token"])
    assert (await client.get("/api/runs", headers=headers)).status_code == 401
    assert (await client.get("/agents/assistant/n11", headers=headers)).status_code == 401
    assert (await client.get("/api/keys", headers=headers)).status_code == 401


async def test_a_lasting_token_is_refused_in_an_address(client: httpx.AsyncClient, app: FastAPI) -> None:
    key = await key_of(client, "read")
    client.headers.pop("Authorization")
    answer = await client.get(f"/agents/assistant/default?token={key}")
    assert answer.status_code == 401
    assert "POST /api/tokens" in answer.json()["detail"]
    assert (await client.get(f"/api/runs?token={key}")).status_code == 401
