"""Opening runs over HTTP: at once, once per key, and nothing that cannot be worked on."""

import asyncio
import json
from typing import Any

import httpx
import pytest

from libs.bus import NoAnswer
from libs.contracts.inference import DescribeModels, Models
from tests.unit.gateway.fake_bus import FakeBus

GOOD: dict[str, Any] = {
    "title": "README spells Worker as Wrokr",
    "body": "Fix line 7 and add a test.",
    "repo": "https://example.org/app.git",
}


async def solve(client: httpx.AsyncClient, issue: str = "42", headers: dict[str, str] | None = None, **fields: Any) -> httpx.Response:
    body = {k: v for k, v in (GOOD | fields).items() if v is not ...}
    return await client.post(f"/api/issues/{issue}/solve", json=body, headers=headers)


async def test_an_issue_is_accepted_at_once_and_opens_a_run(client: httpx.AsyncClient, bus: FakeBus) -> None:
    answer = await solve(client, policy={"plan_approval": True, "ceiling_usd": 1}, base="release/1.x", reporter_email="a@example.org")
    assert answer.status_code == 202
    run_id = answer.json()["instanceId"]
    assert len(run_id) == 26
    assert answer.headers["Location"] == answer.json()["status_url"] == f"/api/runs/{run_id}"
    opened = (await bus.journal.state(run_id)).opened
    assert opened is not None
    assert (opened.issue.id, opened.issue.title, opened.repo, opened.base) == ("42", GOOD["title"], GOOD["repo"], "release/1.x")
    assert opened.policy.plan_approval
    assert opened.policy.max_attempts == 3
    assert opened.origin == "http"


async def test_a_broken_body_is_told_where(client: httpx.AsyncClient) -> None:
    answer = await client.post("/api/issues/42/solve", content=b'{"title": ', headers={"Content-Type": "application/json"})
    assert answer.json()["detail"] == "body: not valid JSON at character 10"


async def test_ids_sort_by_time(client: httpx.AsyncClient) -> None:
    ids = [(await solve(client)).json()["instanceId"] for _ in range(3)]
    assert len(set(ids)) == 3
    assert [i[:8] for i in ids] == sorted(i[:8] for i in ids)


async def test_the_same_request_with_the_same_key_is_one_run(client: httpx.AsyncClient, bus: FakeBus) -> None:
    first, second = [await solve(client, headers={"Idempotency-Key": "k-1"}) for _ in range(2)]
    assert first.json() == second.json()
    assert "Idempotency-Replayed" not in first.headers
    assert second.headers["Idempotency-Replayed"] == "true"
    assert len(bus.messages["RUN"]) == 1


async def test_the_same_request_many_times_at_once_is_one_run(client: httpx.AsyncClient, bus: FakeBus) -> None:
    answers = await asyncio.gather(*(solve(client, headers={"Idempotency-Key": "k-1"}) for _ in range(20)))
    assert {a.status_code for a in answers} == {202}
    assert len({a.json()["instanceId"] for a in answers}) == 1
    assert len(bus.messages["RUN"]) == 1
    assert sum("Idempotency-Replayed" not in a.headers for a in answers) == 1


async def test_a_key_that_came_with_another_request_is_refused(client: httpx.AsyncClient, bus: FakeBus) -> None:
    await solve(client, headers={"Idempotency-Key": "k-1"})
    answer = await solve(client, headers={"Idempotency-Key": "k-1"}, title="another one")
    assert answer.status_code == 422
    assert answer.json()["code"] == "idempotency-key-reused"
    other_issue = await solve(client, issue="43", headers={"Idempotency-Key": "k-1"})
    assert other_issue.status_code == 422
    assert len(bus.messages["RUN"]) == 1


async def test_a_repeated_key_is_answered_though_no_model_is_there_any_more(client: httpx.AsyncClient, bus: FakeBus) -> None:
    first = await solve(client, headers={"Idempotency-Key": "k-1"})
    bus.answer(DescribeModels, Models())
    assert (await solve(client, headers={"Idempotency-Key": "k-1"})).json() == first.json()


async def test_without_a_model_the_run_is_refused_with_what_to_set(client: httpx.AsyncClient, bus: FakeBus) -> None:
    bus.answer(DescribeModels, Models(advice="set MODEL=anthropic/NAME and ANTHROPIC_API_KEY"))
    answer = await solve(client)
    assert answer.status_code == 503
    assert answer.json()["code"] == "no-model"
    assert "ANTHROPIC_API_KEY" in answer.json()["next"]
    assert not bus.messages["RUN"]


async def test_a_silent_inference_service_is_said_with_when_to_come_back(client: httpx.AsyncClient, bus: FakeBus) -> None:
    bus.answer(DescribeModels, NoAnswer("nobody answers"))
    answer = await solve(client)
    assert answer.status_code == 503
    assert int(answer.headers["Retry-After"]) > 0
    assert not bus.messages["RUN"]


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"title": ""}, "title"),
        ({"title": "  \t "}, "title"),
        ({"title": "two\nlines"}, "title"),
        ({"title": "x" * 1001}, "title"),
        ({"title": ...}, "title"),
        ({"title": 7}, "title"),
        ({"title": "bell\u0007"}, "title"),
        ({"body": "x" * 65_537}, "body"),
        ({"body": "nul \u0000 inside"}, "body"),
        ({"body": "\u001b[31mred"}, "body"),
        ({"repo": ...}, "repo"),
        ({"repo": ""}, "repo"),
        ({"repo": "not a repo"}, "repo"),
        ({"repo": "../up"}, "repo"),
        ({"repo": "-oProxyCommand=x"}, "repo"),
        ({"repo": "ext::sh -c id"}, "repo"),
        ({"repo": "/srv/\u0000"}, "repo"),
        ({"base": "-x"}, "base"),
        ({"base": "a..b"}, "base"),
        ({"base": ""}, "base"),
        ({"reporter_email": "nobody"}, "reporter_email"),
        ({"reporter_email": "a@b\nBcc: c@d"}, "reporter_email"),
        ({"policy": {"max_attempts": 0}}, "policy.max_attempts"),
        ({"policy": {"max_atempts": 2}}, "policy.max_atempts"),
        ({"branch": "x"}, "branch"),
    ],
)
async def test_a_bad_field_is_refused_by_its_name(client: httpx.AsyncClient, bus: FakeBus, fields: dict[str, Any], named: str) -> None:
    answer = await solve(client, **fields)
    assert answer.status_code == 422
    assert answer.headers["content-type"] == "application/problem+json"
    assert named in [e["field"] for e in answer.json()["errors"]]
    assert not bus.messages["RUN"]


@pytest.mark.parametrize(
    "repo",
    ["https://example.org/a.git", "git@example.org:a/b.git", "ssh://git@host:22/a", "file:///srv/a", "/srv/nämé ☃", "team/app.py", "app"],
)
async def test_a_repository_is_a_url_a_path_or_a_name(client: httpx.AsyncClient, repo: str) -> None:
    assert (await solve(client, repo=repo)).status_code == 202


async def test_text_of_any_script_and_of_the_full_length_is_kept(client: httpx.AsyncClient, bus: FakeBus) -> None:
    body = "第一行\r\n\t" + "🐞" * 65_000
    answer = await solve(client, issue="bug%20é", title="修复 ☃", body=body)
    opened = (await bus.journal.state(answer.json()["instanceId"])).opened
    assert opened is not None
    assert (opened.issue.id, opened.issue.title, opened.issue.body) == ("bug é", "修复 ☃", body)


@pytest.mark.parametrize(
    ("content", "status"),
    [
        (b'{"title": "\\ud800", "repo": "app"}', 422),
        (b'{"title": "\xff", "repo": "app"}', 400),
        (b'{"title": ', 422),
        (b"", 422),
        (b"[]", 422),
        (b"null", 422),
        (b"[" * 100_000, 400),
        (b'{"title": "x", "repo": "app", "policy": {"max_attempts": 1' + b"0" * 5000 + b"}}", 400),
    ],
)
async def test_what_is_no_request_is_a_problem_not_a_crash(client: httpx.AsyncClient, bus: FakeBus, content: bytes, status: int) -> None:
    answer = await client.post("/api/issues/42/solve", content=content, headers={"content-type": "application/json"})
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["next"]
    assert not bus.messages["RUN"]


async def test_a_body_of_two_megabytes_is_too_large_declared_or_streamed(client: httpx.AsyncClient, bus: FakeBus) -> None:
    big = json.dumps(GOOD | {"body": "x" * 2_000_000}).encode()
    headers = {"content-type": "application/json"}

    async def pieces() -> Any:
        for start in range(0, len(big), 50_000):
            yield big[start : start + 50_000]

    declared = await client.post("/api/issues/42/solve", content=big, headers=headers)
    streamed = await client.post("/api/issues/42/solve", content=pieces(), headers=headers)
    assert (declared.status_code, streamed.status_code) == (413, 413)
    assert declared.json()["status"] == streamed.json()["status"] == 413
    assert not bus.messages["RUN"]


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", ""])
async def test_a_body_that_does_not_say_json_is_told_the_header(client: httpx.AsyncClient, kind: str) -> None:
    answer = await client.post("/api/issues/42/solve", content=json.dumps(GOOD), headers={"content-type": kind})
    assert answer.status_code == 415
    assert "Content-Type: application/json" in answer.json()["next"]


@pytest.mark.parametrize("issue", ["%00", "a%0Ab", "%20", "x" * 201])
async def test_a_bad_issue_id_is_refused(client: httpx.AsyncClient, issue: str) -> None:
    assert (await solve(client, issue=issue)).status_code == 422
