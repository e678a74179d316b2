"""Every example payload that GitHub documents, through the product's HTTP door: each answered as it should be, no error of the server.

Started by `make test-clients`, which fetches the npm package `@octokit/webhooks-examples`; the name keeps it out of `make test`.
"""

import hashlib
import hmac
import json
import os
import uuid
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import httpx
import pytest

from libs.bus.connection import Connection
from libs.bus.topology import ADMIN
from libs.settings import BusSettings
from libs.testkit.product import Product, product
from tests.integration.forge.github_server import environment, forge_settings, github_server
from tests.integration.forge.hooks_world import settled

TAKEN = {
    "check_run": 3,
    "check_suite": 4,
    "installation": 7,
    "installation_repositories": 3,
    "issue_comment": 5,
    "issues": 9,
    "pull_request": 2,
    "pull_request_review": 4,
    "pull_request_review_comment": 3,
    "repository": 4,
    "status": 4,
    "workflow_run": 3,
}
"""How many of the examples tell of something that is acted on; the others are acknowledged."""

JSON = "application/json"
FORM = "application/x-www-form-urlencoded"


def examples() -> list[tuple[str, dict[str, Any]]]:
    """Event and payload of each of them."""
    index = json.loads((Path(os.environ["WEBHOOK_EXAMPLES"]) / "api.github.com" / "index.json").read_text())
    return [(of["name"], payload) for of in index for payload in of["examples"]]


def signed(event: str, body: bytes, secret: str = "secret", media: str = JSON) -> dict[str, str]:
    digest = hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()
    return {
        "content-type": media,
        "x-github-event": event,
        "x-github-delivery": str(uuid.uuid4()),
        "x-hub-signature-256": f"sha256={digest}",
        "user-agent": "GitHub-Hookshot/044aadd",
    }


async def post(running: Product, event: str, payload: Any, **how: str) -> httpx.Response:
    body = json.dumps(payload, ensure_ascii=False).encode()
    if how.get("media") == FORM:
        body = urlencode({"payload": body.decode()}).encode()
    return await running.client.post("/webhooks/github", content=body, headers=signed(event, body, **how))


@asynccontextmanager
async def serving(home: Path) -> AsyncIterator[Product]:
    async with github_server() as github:
        variables = environment(forge_settings(home, github))
        async with product(home, None, environment=variables) as running:
            yield running
            runtime = json.loads((home / "runtime.json").read_text())
            admin = await Connection.open(BusSettings(home=home, nats_url=runtime["nats_url"]), ADMIN)
            await settled(admin)
            await admin.close()
            assert "Traceback" not in running.log(), running.log()


@pytest.mark.parametrize("media", [JSON, FORM])
async def test_all_examples_are_answered(media, tmp_path):
    found = examples()
    assert len(found) == 329
    taken: Counter[str] = Counter()
    async with serving(tmp_path / "home") as running:
        for event, payload in found:
            answer = await post(running, event, payload, media=media)
            assert answer.status_code == (200 if event == "ping" else 202), (event, payload.get("action"), answer.text)
            taken[event] += answer.json()["detail"] == "taken"
    assert +taken == TAKEN


async def test_one_of_each_kind_that_the_examples_lack(tmp_path):
    payloads = dict(reversed(examples()))
    comment = payloads["issue_comment"]
    on_pull = comment | {
        "action": "created",
        "issue": comment["issue"] | {"pull_request": {"url": "https://api.github.com/repos/o/r/pulls/1"}},
    }
    by_bot = on_pull | {"sender": {"login": "机器人[bot]", "type": "Bot"}, "comment": comment["comment"] | {"body": "自动评论 🤖 — „ok“"}}
    async with serving(tmp_path / "home") as running:
        for event, payload in (("issue_comment", on_pull), ("issue_comment", by_bot)):
            answer = await post(running, event, payload)
            assert (answer.status_code, answer.json()["detail"]) == (202, "taken")
        unknown = await post(running, "something_new", {"action": "created"})
        assert (unknown.status_code, unknown.json()["detail"].partition(":")[0]) == (202, "ignored")
        wrong = await post(running, "issue_comment", on_pull, secret="guessed")
        assert (wrong.status_code, wrong.headers["content-type"]) == (401, "application/problem+json")
        missing = await running.client.post("/webhooks/github", json=on_pull, headers={"x-github-event": "issue_comment"})
        assert missing.status_code == 401
        no_json = signed("issue_comment", b"{")
        assert (await running.client.post("/webhooks/github", content=b"{", headers=no_json)).status_code == 400
        large = json.dumps(on_pull | {"padding": os.urandom(6_000_000).hex()}).encode()
        answer = await running.client.post("/webhooks/github", content=large, headers=signed("issue_comment", large))
        assert (answer.status_code, answer.json()["detail"]) == (202, "taken")
        huge = b" " * (25 * 1024 * 1024 + 1)
        assert (await running.client.post("/webhooks/github", content=huge, headers=signed("issue_comment", huge))).status_code == 413


async def test_the_same_delivery_is_taken_once(tmp_path):
    event, payload = next((e, p) for e, p in examples() if e == "issues" and p["action"] == "labeled")
    body = json.dumps(payload).encode()
    headers = signed(event, body)
    async with serving(tmp_path / "home") as running:
        said = [(await running.client.post("/webhooks/github", content=body, headers=headers)).json()["detail"] for _ in range(3)]
    assert said == ["taken", "taken before", "taken before"]
