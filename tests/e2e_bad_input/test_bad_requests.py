"""HTTP requests of a clumsy and of a hostile client: a problem that says what to do next, never a 5xx, and the server goes on."""

import asyncio
import json
import socket
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis.specs.openapi.checks import ignored_auth, negative_data_rejection, positive_data_acceptance

from tests.e2e_bad_input.hostile import ADDER, Case, git, repository

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(180)]
CASES = {
    "shown": Case(),
    "option-host": Case(prepare=lambda _: "ssh://-oProxyCommand=touch/x"),
    "file-url": Case(prepare=lambda _: "file:///etc"),
    "pushed": Case(prepare=lambda place: str(repository(place, ADDER))),
}
ENVIRONMENT = {
    "AGENT_CODER_MAX_FILE_BYTES": "100000",
    "AGENT_CODER_GITHUB_APP_ID": "77",
    "AGENT_CODER_GITHUB_BASE_URL": "http://127.0.0.1:9",
    "AGENT_CODER_MAIL_DOMAIN": "agents.example.org",
    "AGENT_CODER_MAIL_DNS": "127.0.0.1:9",
}
"""GitHub and mail are set up, so that the doors are open: nobody answers behind them."""
SOLVE = "/api/issues/1/solve"
GOOD: dict[str, Any] = {"title": "t", "repo": "/nowhere"}
JSON = {"Content-Type": "application/json"}
CLOUD = {"Content-Type": "application/cloudevents+json"}
EVENT = {
    "specversion": "1.0",
    "id": "1",
    "source": "s",
    "type": "agent-coder.solve-issue",
    "data": {"issue": {"id": "1", "title": "t"}, "repo": "/x"},
}
BODIES: dict[str, Any] = {
    "empty": b"",
    "not JSON": b"{",
    "not UTF-8": b'{"title": "\xff", "repo": "/x"}',
    "a list": b"[]",
    "null": b"null",
    "a number": b"1e999",
    "NaN": b'{"title": "t", "repo": "/x", "policy": {"ceiling_usd": NaN}}',
    "infinite": b'{"title": "t", "repo": "/x", "policy": {"ceiling_usd": 1e999}}',
    "huge number": b'{"title": "t", "repo": "/x", "policy": {"max_tokens": ' + b"9" * 5000 + b"}}",
    "deep": b'{"title": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "deep objects": b'{"a":' * 50_000 + b"1" + b"}" * 50_000,
    "two megabytes": {**GOOD, "body": "x" * 2_000_000},
    "long body": {**GOOD, "body": "x" * 70_000},
    "no title": {"repo": "/x"},
    "empty title": {**GOOD, "title": ""},
    "blank title": {**GOOD, "title": " \u3000 "},
    "title of lines": {**GOOD, "title": "a\nb"},
    "title with NUL": {**GOOD, "title": "a\0b"},
    "title with escape": {**GOOD, "title": "a\x1b[31mb"},
    "half a character": b'{"title": "\\ud800", "repo": "/x"}',
    "half a character in the body": b'{"title": "t", "body": "\\udc00", "repo": "/x"}',
    "half a character in the repository": b'{"title": "t", "repo": "/x\\ud800"}',
    "half a character in a name": b'{"title": "t", "repo": "/x", "\\ud800": 1}',
    "half a character in a command": b'{"title": "t", "repo": "/x", "policy": {"test_commands": ["\\ud800"]}}',
    "half a character in a model": b'{"title": "t", "repo": "/x", "policy": {"model": "\\ud800"}}',
    "NUL in a command": {**GOOD, "policy": {"test_commands": ["a\0b"]}},
    "NUL in the body": {**GOOD, "body": "a\0b"},
    "wrong type": {**GOOD, "title": {"a": 1}},
    "number as title": {**GOOD, "title": 3},
    "unknown field": {**GOOD, "frob": 1},
    "unknown policy": {**GOOD, "policy": {"frob": 1}},
    "negative attempts": {**GOOD, "policy": {"max_attempts": -1}},
    "negative money": {**GOOD, "policy": {"ceiling_usd": -0.01}},
    "negative time": {**GOOD, "policy": {"test_timeout_seconds": -5}},
    "text as number": {**GOOD, "policy": {"max_tokens": "many"}},
    "policy list": {**GOOD, "policy": []},
    "many commands": {**GOOD, "policy": {"test_commands": ["true"] * 100}},
    "relative path": {**GOOD, "repo": "../../etc"},
    "option as repository": {**GOOD, "repo": "--upload-pack=touch /tmp/x"},
    "ext transport": {**GOOD, "repo": "ext::sh -c touch% /tmp/x"},
    "NUL in the repository": {**GOOD, "repo": "/a\0b"},
    "empty repository": {**GOOD, "repo": ""},
    "long repository": {**GOOD, "repo": "/" + "x" * 5000},
    "option as base": {**GOOD, "base": "--upload-pack=x"},
    "base with dots": {**GOOD, "base": "a..b"},
    "empty base": {**GOOD, "base": ""},
    "mail": {**GOOD, "reporter_email": "nobody\r\nBcc: all@example.org"},
}


def problem(answer: httpx.Response, *statuses: int) -> dict[str, Any]:
    """The problem of an answer, which must have one of `statuses` and say what to do."""
    assert answer.status_code in statuses, f"{answer.status_code}: {answer.text[:500]}"
    assert answer.headers["content-type"].startswith("application/problem+json"), answer.text[:500]
    body: dict[str, Any] = answer.json()
    assert body.get("detail") or body.get("next"), body
    assert "Traceback" not in answer.text
    return body


@pytest.mark.parametrize("name", BODIES)
async def test_a_bad_request_to_solve_is_a_problem(served, name):
    body = BODIES[name]
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    answer = await served.running.client.post(SOLVE, content=content, headers=JSON)
    found = problem(answer, 400, 413, 422)
    assert answer.status_code == 413 or found.get("next"), found


async def test_wrong_types_encodings_and_headers_are_problems(served):
    client = served.running.client
    good = json.dumps(GOOD).encode()
    for kind in ("text/plain", "application/xml", "multipart/form-data; boundary=x", "application/x-www-form-urlencoded", "???"):
        problem(await client.post(SOLVE, content=good, headers={"Content-Type": kind}), 415)
    problem(await client.post(SOLVE, content=good, headers={**JSON, "X-Big": "x" * 40_000}), 431)
    problem(await client.post(SOLVE, content=good, headers={**JSON, **{f"X-{i}": "x" for i in range(150)}}), 431)
    problem(await client.post(SOLVE, content=good, headers={**JSON, "Idempotency-Key": "x" * 300}), 422)
    for issue in ("%00", "%0a", "%20", "a%1b", "x" * 300):
        problem(await client.post(f"/api/issues/{issue}/solve", json=GOOD), 404, 422)
    for path in (
        "/api/runs/%2e%2e%2fetc",
        "/api/runs/..%2f..",
        "/api/runs/a.b",
        "/api/runs/a%20b/events",
        "/api/runs/*",
        "/api/runs/%3e/diff",
        "/api/nothing",
    ):
        problem(await client.get(path), 404, 422)
    problem(await client.put("/api/runs"), 405)
    for query in ("cursor=garbage", "cursor=%00", "limit=0", "limit=x", "status=odd", "cursor=" + "e" * 199, "repo=%ff", "q=%00"):
        problem(await client.get(f"/api/runs?{query}"), 422)


async def test_odd_ids_of_issues_are_solved_or_refused_but_never_break(served):
    client = served.running.client
    for issue in ("中文", "a/b", "..", "a b", "☃", "refs", "x.lock", "@{", "-rf", "a~1"):
        answer = await client.post(f"/api/issues/{httpx.URL(path='/' + issue).raw_path.decode()[1:]}/solve", json=GOOD)
        assert answer.status_code in {202, 404, 405, 422}, answer.text


async def test_a_key_for_another_request_is_a_conflict(served):
    client = served.running.client
    first = await client.post(SOLVE, json=GOOD, headers={"Idempotency-Key": "k"})
    again = await client.post(SOLVE, json=GOOD, headers={"Idempotency-Key": "k"})
    assert first.json()["instanceId"] == again.json()["instanceId"]
    problem(await client.post(SOLVE, json={**GOOD, "title": "other"}, headers={"Idempotency-Key": "k"}), 409, 422)


@pytest.mark.parametrize(
    ("headers", "content"),
    [
        (CLOUD, b""),
        (CLOUD, b"{"),
        (CLOUD, b"\xff\xfe"),
        (CLOUD, b"[" * 100_000),
        (CLOUD, b"[]"),
        (CLOUD, json.dumps([EVENT]).encode()),
        (CLOUD, json.dumps({**EVENT, "specversion": "0.3"}).encode()),
        (CLOUD, json.dumps({**EVENT, "id": ""}).encode()),
        (CLOUD, json.dumps({**EVENT, "source": 3}).encode()),
        (CLOUD, json.dumps({**EVENT, "time": "yesterday"}).encode()),
        (CLOUD, json.dumps({**EVENT, "datacontenttype": "text/html"}).encode()),
        (CLOUD, json.dumps({**EVENT, "data": "x" * 2_000_000}).encode()),
        (CLOUD, json.dumps({**EVENT, "id": "\ud800"}).encode()),
        ({"Content-Type": "application/cloudevents-batch+json"}, json.dumps([EVENT] * 101).encode()),
        ({"Content-Type": "application/cloudevents-batch+json"}, json.dumps([EVENT, 3]).encode()),
        ({**JSON, "ce-specversion": "1.0"}, b"{}"),
        ({**JSON, "ce-specversion": "1.0", "ce-id": "%ff", "ce-source": "%00", "ce-type": "%"}, b"{"),
        ({"Content-Type": "text/html", "ce-specversion": "1.0", "ce-id": "1", "ce-source": "s", "ce-type": "t"}, b"<html>"),
    ],
)
async def test_a_bad_cloud_event_is_a_problem(served, headers, content):
    problem(await served.running.client.post("/api/events", content=content, headers=headers), 400, 413, 415, 422)


async def test_no_route_answers_without_a_token_or_with_a_wrong_one(served):
    document = (await served.running.client.get("/openapi.json")).json()
    url = str(served.running.client.base_url)
    async with httpx.AsyncClient(base_url=url, trust_env=False) as stranger:
        for path, operations in document["paths"].items():
            if path in {"/healthz", "/readyz", "/openapi.json"}:
                continue
            real = path.replace("{run_id}", served.runs["shown"]).replace("{repository}", "x").replace("{name}", "x")
            real = real.replace("{issue_id}", "1").replace("{sequence}", "1")
            for method in operations:
                for token in (None, "wrong", "x" * 5000, "\xff"):
                    headers = {} if token is None else {"Authorization": f"Bearer {token}".encode("latin-1")}
                    answer = await stranger.request(method.upper(), real.replace("{token}", "t0ken"), headers=headers)
                    if path.startswith(("/webhooks/", "/mail/")):  # whoever holds the secret of another kind says no
                        assert answer.status_code in {404, 415}, answer.text
                        continue
                    if token is not None and real.startswith("/git/"):
                        assert answer.status_code in {401, 403}, answer.text  # in git's own words
                        continue
                    assert "WWW-Authenticate" in answer.headers
                    if path.startswith("/v1/"):  # in the words of OpenAI's clients
                        assert (answer.status_code, answer.json()["error"]["type"]) == (401, "authentication_error")
                        continue
                    problem(answer, 401)
        problem(await stranger.get("/api/none"), 401)


@pytest.mark.parametrize("name", ["option-host", "file-url"])
async def test_addresses_that_try_more_than_to_fetch_fail_with_a_reason(served, name):
    shown = await served.ended(name)
    assert shown["status"] == "failed"
    assert "Error:" not in shown["why"], shown["why"]


async def test_raw_rubbish_on_the_port_harms_nobody(served):
    port = urlsplit(str(served.running.client.base_url)).port
    rubbish = [
        b"\0" * 1000,
        b"GET / HTTP/9.9\r\n\r\n",
        b"POST /api/events HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n",
        b"\x16\x03\x01\x02\x00",
        b"GET " + b"/" * 100_000 + b" HTTP/1.1\r\n\r\n",
        b"POST /api/events HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"POST /api/issues/1/solve HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{",
    ]
    for data in rubbish:
        with socket.create_connection(("127.0.0.1", port), 5) as raw:
            raw.sendall(data)
    assert (await served.running.client.get("/readyz")).status_code == 200


async def test_event_streams_take_odd_resumptions_and_dropped_clients(served):
    client, run_id = served.running.client, served.runs["shown"]
    await served.finished("shown")
    path = f"/api/runs/{run_id}/events"
    for value in ("abc", "-1", "1.5", "", "9" * 60, "x" * 100, "٣"):
        answer = await client.get(path, headers=[(b"Last-Event-ID", value.encode())])
        assert answer.status_code in {200, 422}, answer.text
        if answer.status_code == 422:
            problem(answer, 422)
    for query in ("after=-1", "after=x", f"after={2**63}", "limit=0"):
        problem(await client.get(f"{path}?{query}", headers={"Accept": "application/json"}), 422)
    late = await client.get(path, params={"after": 2**63 - 1})
    assert "event: end" in late.text
    waiting = await served.running.solve(
        "slow", {"title": "slow", "repo": str(served.place / "repos" / "shown"), "policy": {"plan_approval": True}}
    )
    await served.running.wait(waiting, frozenset({"waiting"}))
    for _ in range(30):
        async with client.stream("GET", f"/api/runs/{waiting}/events") as stream:
            async for _line in stream.aiter_lines():
                break
    for word in ("frob", "", "approve/../../x"):
        problem(await client.post(f"/api/runs/{waiting}/{word}"), 404, 405)
    problem(await client.post(f"/api/runs/{waiting}/approve", content=b'{"by": "\\ud800"}', headers=JSON), 422)
    problem(await client.post(f"/api/runs/{waiting}/approve", json={"comment": "a\0"}), 422)
    problem(await client.post(f"/api/runs/{waiting}/retry?from=nothing"), 422)
    problem(await client.post(f"/api/runs/{waiting}/retry?from=edit"), 409)
    assert (await client.post(f"/api/runs/{waiting}/deny", json={})).status_code == 200
    problem(await client.post(f"/api/runs/{waiting}/approve"), 409)


async def test_five_hundred_requests_at_once_are_all_answered(served):
    client = served.running.client
    limits = httpx.Limits(max_connections=100)
    headers = {"Authorization": client.headers["Authorization"]}
    async with httpx.AsyncClient(base_url=client.base_url, headers=headers, limits=limits, timeout=90, trust_env=False) as crowd:
        body = {"title": "t", "repo": "nowhere/at-all", "policy": {"max_attempts": 1}}
        answers = await asyncio.gather(*(crowd.post(f"/api/issues/{i}/solve", json=body) for i in range(500)))
    assert {a.status_code for a in answers} <= {202, 429, 503}, [a.text for a in answers if a.status_code != 202][:3]
    opened = [a.json()["instanceId"] for a in answers if a.status_code == 202]
    assert len(opened) == len(set(opened)) == 500
    for run_id in opened[::50]:
        shown = await served.running.wait(run_id)
        assert shown["status"] == "failed"
        assert "nowhere/at-all" in shown["why"]


async def test_git_refuses_what_it_should(served):
    client = served.running.client
    await client.post("/api/repos", json={"name": "team/app"})
    for name in ("a/../b", "-x", "A B", "x.lock", ".git", "a" * 300, "a//b", "/a", "refs/..", "con\0"):
        problem(await client.post("/api/repos", json={"name": name}), 422)
    for path in (
        "/git/..%2f..%2fetc.git/info/refs",
        "/git/team/../team/app.git/info/refs",
        "/git/%00.git/info/refs",
        "/git/none.git/info/refs",
    ):
        answer = await client.get(path, params={"service": "git-upload-pack"})
        assert answer.status_code in {401, 403, 404, 422} or answer.url.path.startswith("/git/team/app"), answer.text
    for query in ("", "?service=git-frob", "?service=", "?service=git-upload-pack;id"):
        answer = await client.get(f"/git/team/app.git/info/refs{query}")
        assert 400 <= answer.status_code < 500, (query, answer.status_code)
    for path in ("HEAD", "objects/info/packs", "config", "info/../config"):
        assert (await client.get(f"/git/team/app.git/{path}")).status_code == 404
    for content in (b"", b"rubbish", b"0000", b"ffff" + b"x" * 70_000):
        for service in ("git-upload-pack", "git-receive-pack"):
            kind = {"Content-Type": f"application/x-{service}-request"}
            answer = await client.post(f"/git/team/app.git/{service}", content=content, headers=kind)
            assert answer.status_code < 500, answer.text


async def test_pushes_over_the_limit_or_without_the_right_token_are_refused(served):
    client = served.running.client
    for name in ("team/one", "team/two"):
        assert (await client.post("/api/repos", json={"name": name})).status_code == 201
    tokens = {}
    for name, scope in (("team/one", "write"), ("team/one", "read"), ("team/two", "write")):
        answer = await client.post(f"/api/repos/{name}/token", json={"scope": scope})
        tokens[name, scope] = answer.json()["token"]
    problem(await client.post("/api/repos/team/one/token", json={"scope": "admin"}), 422)
    problem(await client.post("/api/repos/team/one/token", json={"expires_in_seconds": 1}), 422)
    problem(await client.post("/api/repos/team/none/token", json={}), 404)
    work = repository(served.place / "push", ADDER)
    base = str(client.base_url).replace("http://", "http://x:{}@")

    async def push(token: str) -> str:
        def run() -> str:
            from tests.e2e_bad_input import hostile

            return hostile.git_errors(work, "push", base.format(token) + "/git/team/one.git", "HEAD:refs/heads/main")

        return await asyncio.to_thread(run)

    for wrong in ("nonsense", tokens["team/one", "read"], tokens["team/two", "write"]):
        assert "fatal" in await push(wrong) or "error" in await push(wrong)
    assert "fatal" not in await push(tokens["team/one", "write"])
    (work / "big.bin").write_bytes(bytes(range(256)) * 8000)
    git(work, "add", "-A")
    git(work, "commit", "-q", "-m", "Add a big file")
    told = await push(tokens["team/one", "write"])
    assert "big.bin" in told
    assert "limit" in told


@pytest.mark.filterwarnings("ignore")
async def test_whatever_the_description_allows_is_answered_as_described(served):
    client = served.running.client
    url, token = str(client.base_url), client.headers["Authorization"]
    schema = schemathesis.openapi.from_dict((await client.get("/openapi.json")).json())
    found: list[str] = []

    def attack() -> None:
        for result in schema.get_all_operations():
            operation = result.ok()
            if operation.path.startswith("/git/"):
                continue

            @settings(
                max_examples=12,
                deadline=None,
                phases=[Phase.explicit, Phase.generate],
                suppress_health_check=list(HealthCheck),
                database=None,
            )
            @schemathesis_given(operation)
            def one(case: Any) -> None:
                answer = case.call(base_url=url, headers={"Authorization": token, "Accept": "application/json"}, timeout=20)
                case.validate_response(answer, excluded_checks=[ignored_auth, negative_data_rejection, positive_data_acceptance])

            try:
                one()
            except Exception as error:  # noqa: BLE001 - every fault of every operation is collected
                found.append(f"{operation.method} {operation.path}: {error}"[:3000])

    def schemathesis_given(operation: Any) -> Any:
        from hypothesis import given

        return given(case=operation.as_strategy())

    await asyncio.to_thread(attack)
    assert not found, "\n\n".join(found)
