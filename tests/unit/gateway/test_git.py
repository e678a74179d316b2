"""The git bridge: whose token counts, what is passed on, and that nothing is held whole or cut off in silence."""

import asyncio
import base64
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from libs.bus import NoAnswer, Refusal
from libs.contracts.artifact import (
    BlobPut,
    CreateRepository,
    GitFrame,
    GitHead,
    GitToken,
    IssueGitToken,
    ListRepositories,
    PutChunk,
    Repositories,
    RepositoryDescription,
    ServeGit,
)
from libs.contracts.envelope import BlobRef, Done
from tests.unit.gateway.conftest import TOKEN
from tests.unit.gateway.fake_bus import FakeBus

HEAD = GitHead(
    status=200, headers=(("Content-Type", "application/x-git-upload-pack-result"), ("Content-Length", "1"), ("Cache-Control", "no-cache"))
)
REFS = "/git/team/app.git/info/refs?service=git-upload-pack"


def basic(password: str, user: str = "x") -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()}


def serve(bus: FakeBus, *data: bytes, end: Exception | None = None) -> list[ServeGit]:
    """Answer ServeGit with a head and `data`; returns the questions that come."""
    asked: list[ServeGit] = []

    async def git(question: ServeGit, on_frame: Any) -> Done:
        asked.append(question)
        for frame in (GitFrame(head=HEAD), *(GitFrame(data=d) for d in data)):
            await on_frame(frame.model_dump_json().encode())
        if end is not None:
            raise end
        return Done()

    bus.answer(ServeGit, git)
    return asked


async def test_git_without_a_token_is_asked_for_one(client: httpx.AsyncClient, bus: FakeBus) -> None:
    client.headers.pop("Authorization")
    answer = await client.get(REFS)
    assert answer.status_code == 401
    assert answer.headers["WWW-Authenticate"].startswith("Basic ")
    assert not bus.asked


@pytest.mark.parametrize(
    ("headers", "trusted", "token"),
    [(basic(TOKEN), True, None), ({"Authorization": f"Bearer {TOKEN}"}, True, None), (basic("gt_short"), False, "gt_short")],
)
async def test_the_owner_is_trusted_and_other_tokens_are_passed_on(
    client: httpx.AsyncClient, bus: FakeBus, headers: dict[str, str], trusted: bool, token: str | None
) -> None:
    asked = serve(bus, b"0000")
    answer = await client.get(REFS, headers=headers | {"git-protocol": "version=2", "cookie": "secret"})
    assert (answer.status_code, answer.content) == (200, b"0000")
    (question,) = asked
    assert (question.trusted, question.token) == (trusted, token)
    assert (question.repository, question.service_path, question.query) == ("team/app", "info/refs", "service=git-upload-pack")
    assert question.headers["git-protocol"] == "version=2"
    assert "cookie" not in question.headers
    assert "authorization" not in question.headers


async def test_an_answer_streams_through_with_its_head(client: httpx.AsyncClient, bus: FakeBus) -> None:
    serve(bus, *[b"x" * 1000] * 50)
    answer = await client.post("/git/app.git/git-upload-pack", content=b"0032want", headers={"content-encoding": "gzip"})
    assert answer.headers["content-type"] == "application/x-git-upload-pack-result"
    assert answer.headers["cache-control"] == "no-cache"
    assert len(answer.content) == 50_000


async def test_a_small_body_goes_inline_and_a_large_one_as_a_blob(client: httpx.AsyncClient, bus: FakeBus) -> None:
    asked = serve(bus, b"ok")
    stored = bytearray()

    async def put(question: PutChunk, _: Any) -> BlobPut:
        assert question.offset == len(stored)
        stored.extend(question.data)
        return BlobPut(received=len(stored), blob=BlobRef(sha256="a" * 64, size=len(stored)) if question.last else None)

    bus.answer(PutChunk, put)
    small, large = b"s" * 512 * 1024, bytes(range(256)) * 9000
    for body in (small, large):
        assert (await client.post("/git/app.git/git-receive-pack", content=body)).status_code == 200
    assert (asked[0].body, asked[0].body_blob) == (small, None)
    assert asked[1].body == b""
    assert asked[1].body_blob == BlobRef(sha256="a" * 64, size=len(large))
    assert bytes(stored) == large


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (Refusal("bad_token", "expired"), 401),
        (Refusal("authentication_required", "no"), 401),
        (Refusal("repository_not_found", "no app"), 404),
        (Refusal("too_large", "10 MB"), 413),
        (NoAnswer("silent"), 503),
    ],
)
async def test_a_refusal_before_the_answer_is_a_problem(client: httpx.AsyncClient, bus: FakeBus, error: Exception, status: int) -> None:
    bus.answer(ServeGit, error)
    answer = await client.get(REFS)
    assert (answer.status_code, answer.headers["content-type"]) == (status, "application/problem+json")
    assert ("WWW-Authenticate" in answer.headers) == (status == 401)


async def test_an_answer_that_breaks_off_is_not_taken_for_the_whole(app: FastAPI, bus: FakeBus) -> None:
    serve(bus, b"half", end=NoAnswer("a frame was lost"))
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://server", headers=basic(TOKEN)) as client:
        with pytest.raises(Exception, match=r"frame was lost|response already started"):
            await client.get(REFS)


async def test_a_git_client_that_leaves_ends_the_question(app: FastAPI, bus: FakeBus) -> None:
    ended = asyncio.Event()

    async def endless(_: Any, on_frame: Any) -> Done:
        try:
            await on_frame(GitFrame(head=HEAD).model_dump_json().encode())
            await asyncio.Event().wait()
        finally:
            ended.set()
        return Done()

    bus.answer(ServeGit, endless)
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://server", headers=basic(TOKEN)) as client:
        asking = asyncio.create_task(client.get(REFS))
        async with asyncio.timeout(60):
            while not bus.asked:
                await asyncio.sleep(0)
            asking.cancel()
            await ended.wait()


@pytest.mark.parametrize("path", ["/git/app.git/HEAD", "/git/app/info/refs", "/git/app.git/objects/info/packs", "/git/../api/runs"])
async def test_other_paths_of_a_repository_are_not_served(client: httpx.AsyncClient, bus: FakeBus, path: str) -> None:
    answer = await client.get(path)
    assert answer.status_code in (404, 200 if path.endswith("/api/runs") else 404)
    assert not any(isinstance(q, ServeGit) for q in bus.asked)


async def test_repositories_are_made_listed_and_opened_for_git(client: httpx.AsyncClient, bus: FakeBus) -> None:
    description = RepositoryDescription(name="team/app", default_branch="trunk", branches=("trunk",))
    bus.answer(CreateRepository, description)
    bus.answer(ListRepositories, Repositories(repositories=(description,), next_cursor="n"))
    token = {"token": "gt_1", "repository": "team/app", "scope": "write", "expires_at": "2026-01-01T00:00:00Z"}
    bus.answer(IssueGitToken, GitToken.model_validate(token))
    made = await client.post("/api/repos", json={"name": "team/app"})
    assert (made.status_code, made.json()["clone_url"]) == (201, "http://server/git/team/app.git")
    assert (await client.get("/api/repos")).json()["repositories"][0]["branches"] == ["trunk"]
    issued = await client.post("/api/repos/team/app/token", json={"scope": "write", "expires_in_seconds": 60})
    assert issued.json()["token"] == "gt_1"
    assert bus.asked[-1] == IssueGitToken(repository="team/app", scope="write", expires_in_seconds=60)
    assert (await client.post("/api/repos/team/app/token", json={"expires_in_seconds": 59})).status_code == 422
    assert (await client.post("/api/repos", json={"name": ""})).status_code == 422
