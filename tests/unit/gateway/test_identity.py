"""Nobody comes in without the token, and errors are problems whatever they are about."""

import base64
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI

from libs.bus import Refusal, Retryable
from libs.contracts.session import ListRuns
from services.gateway.identity.owner import owner_token
from tests.unit.gateway.conftest import TOKEN
from tests.unit.gateway.fake_bus import FakeBus


@pytest.mark.parametrize(
    "path", ["/api/runs", "/api/runs/x/events", "/api/dead", "/openapi.json", "/nowhere", "/", "/healthz/", "//healthz"]
)
@pytest.mark.parametrize("authorization", [None, "", "Bearer", "Bearer wrong", f"Basic {TOKEN}", "Bearer \u00e9", f"Digest {TOKEN}"])
async def test_without_the_token_nothing_is_served(client: httpx.AsyncClient, path: str, authorization: str | None) -> None:
    client.headers.pop("Authorization")
    headers = {} if authorization is None else {"Authorization": authorization.encode("latin-1")}
    answer = await client.get(f"http://server{path}", headers=headers)  # type: ignore[arg-type]  # httpx takes bytes too
    assert answer.status_code == 401
    assert answer.headers["WWW-Authenticate"].startswith('Bearer realm="agent-coder"')
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["code"] == "unauthorized"


async def test_the_token_is_taken_as_bearer_or_as_basic_password(client: httpx.AsyncClient) -> None:
    basic = base64.b64encode(f"anybody:{TOKEN}".encode()).decode()
    for authorization in (f"Bearer {TOKEN}", f"bearer  {TOKEN}", f"Basic {basic}"):
        assert (await client.get("/api/runs", headers={"Authorization": authorization})).status_code == 200


async def test_health_needs_no_token(client: httpx.AsyncClient) -> None:
    client.headers.pop("Authorization")
    assert (await client.get("/healthz")).json() == {"status": "ok"}
    assert (await client.get("/readyz")).status_code == 200


def test_the_token_is_made_once_and_only_its_owner_reads_it(tmp_path: Path) -> None:
    home = tmp_path / "new" / "home"
    with ThreadPoolExecutor(8) as pool:
        tokens = set(pool.map(lambda _: owner_token(home), range(16)))
    assert len(tokens) == 1
    assert len(tokens.pop()) >= 32
    assert stat.S_IMODE((home / "token").stat().st_mode) == 0o600
    assert [p.name for p in home.iterdir()] == ["token"]


def test_a_token_that_others_could_read_is_closed_and_an_empty_one_is_refused(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("a-token-of-some-length\n")
    (tmp_path / "token").chmod(0o644)
    assert owner_token(tmp_path) == "a-token-of-some-length"
    assert stat.S_IMODE((tmp_path / "token").stat().st_mode) == 0o600
    (tmp_path / "token").write_text("\n")
    with pytest.raises(ValueError, match="delete the file"):
        owner_token(tmp_path)


async def test_unknown_paths_and_wrong_methods_are_problems(client: httpx.AsyncClient) -> None:
    nowhere, wrong = await client.get("/api/nowhere"), await client.put("/api/runs")
    assert (nowhere.status_code, wrong.status_code) == (404, 405)
    assert nowhere.json()["type"] == "urn:agent-coder:problem:not-found"
    assert "openapi.json" in nowhere.json()["next"]
    assert "GET" in wrong.headers["Allow"]
    assert wrong.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize(
    ("error", "status", "shown"),
    [
        (Refusal("bad_cursor", "not a cursor"), 422, "not a cursor"),
        (Refusal("unavailable", "busy", retryable=True, after=7), 503, "busy"),
        (Refusal("something_new", "no"), 422, "no"),
        (Retryable("later", after=3), 503, "later"),
        (RuntimeError("secret inside"), 500, "failed"),
    ],
)
async def test_what_a_service_says_becomes_a_problem(
    client: httpx.AsyncClient, bus: FakeBus, error: Exception, status: int, shown: str
) -> None:
    bus.answer(ListRuns, error)
    answer = await client.get("/api/runs")
    assert answer.status_code == status
    assert shown in answer.json()["detail"]
    assert "secret" not in answer.text
    assert ("Retry-After" in answer.headers) == (status == 503)


async def test_a_head_that_is_too_large_is_refused(client: httpx.AsyncClient) -> None:
    many = await client.get("/api/runs", headers=[("x-h", "1")] * 101 + [("Authorization", f"Bearer {TOKEN}")])
    large = await client.get("/api/runs", headers={"x-h": "x" * 40_000})
    long = await client.get("/api/runs?q=" + "x" * 40_000)
    assert {many.status_code, large.status_code, long.status_code} == {431}


async def test_a_lone_surrogate_in_a_query_is_a_problem(app: FastAPI, client: httpx.AsyncClient) -> None:
    answer = await client.get("/api/runs?q=%ED%A0%80%FF")
    assert answer.status_code in (200, 422)
    assert (await client.get("/api/runs?q=%00")).status_code == 422
