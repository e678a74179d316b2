"""The answer to one HTTP request of GitHub: its signature over the raw bytes, its form, its size, and what is kept of it."""

import gzip
import hashlib
import hmac
import json
from urllib.parse import urlencode

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libs.bus import Refusal, Retryable
from libs.contracts.envelope import BlobRef
from libs.contracts.github import MAX_WEBHOOK_BYTES, GitHubDelivery, ReceiveWebhook
from services.forge import webhooks
from services.forge.payloads import USED

SECRETS = (b"current", b"old")
LABELED = {
    "action": "labeled",
    "issue": {
        "number": 7,
        "title": "标题",
        "body": "内容",
        "user": {"login": "reporter"},
        "html_url": "https://github.example/o/r/issues/7",
    },
    "label": {"name": "agent-coder"},
    "repository": {"id": 1, "full_name": "o/r", "clone_url": "https://github.example/o/r.git", "default_branch": "main"},
    "installation": {"id": 5},
    "sender": {"login": "maintainer", "type": "User"},
}
BODY = json.dumps(LABELED).encode()
NO_BLOB = BlobRef(sha256="0" * 64, size=3)


def signed(body: bytes, secret: bytes = b"current", **headers: str) -> dict[str, str]:
    digest = hmac.new(secret, body, hashlib.sha256).hexdigest()
    known = {
        "content-type": "application/json",
        "x-github-event": "issues",
        "x-github-delivery": "72d3162e-cc78-11e3-81ab-4c9367dc0958",
        "x-hub-signature-256": f"sha256={digest}",
    }
    return {key: value for key, value in (known | {k.replace("_", "-"): v for k, v in headers.items()}).items() if value}


class Door:
    def __init__(self) -> None:
        self.kept: list[GitHubDelivery] = []
        self.blobs: dict[str, bytes] = {}
        self.fault: Exception | None = None

    async def ask(self, headers: dict[str, str], body: bytes = BODY, **question) -> int:
        sent = ReceiveWebhook(headers=headers, body=body, **question)
        answer = await webhooks.receive(sent, SECRETS, self._blob, self._keep)
        assert "Traceback" not in answer.detail
        return answer.status

    async def _keep(self, fact: GitHubDelivery) -> bool:
        if self.fault:
            raise self.fault
        new = all(k.delivery != fact.delivery for k in self.kept)
        self.kept += [fact] * new
        return new

    async def _blob(self, blob: BlobRef) -> bytes:
        if blob.sha256 not in self.blobs:
            raise Refusal("not_found", "there is no such blob")
        return self.blobs[blob.sha256]


async def test_a_delivery_is_cut_to_what_is_used():
    door = Door()
    assert await door.ask(signed(BODY)) == 202
    assert await door.ask(signed(BODY)) == 202
    (fact,) = door.kept
    assert (fact.event, fact.action, fact.number, fact.title, fact.body) == ("issues", "labeled", 7, "标题", "内容")
    assert (fact.repository, fact.repository_id, fact.installation_id) == ("o/r", 1, 5)
    assert (fact.label, fact.author, fact.sender, fact.sender_type) == ("agent-coder", "reporter", "maintainer", "User")


@pytest.mark.parametrize(
    "headers",
    [
        signed(BODY, x_hub_signature_256=""),
        signed(BODY, x_hub_signature_256="sha256=" + "0" * 64),
        signed(BODY, x_hub_signature_256="sha1=" + "0" * 40),
        signed(BODY, x_hub_signature_256="sha256=é" + "0" * 63),
        signed(BODY, secret=b"guessed"),
        signed(BODY + b" "),
        signed(BODY, secret=b"") | {"x-hub-signature": "sha1=0"},
    ],
)
async def test_a_missing_or_wrong_signature_is_401_and_nothing_is_kept(headers):
    door = Door()
    assert await door.ask(headers) == 401
    assert door.kept == []


async def test_both_secrets_are_valid_while_they_are_rotated():
    door = Door()
    assert await door.ask(signed(BODY, b"old")) == 202
    assert await door.ask(signed(BODY, b"current", x_github_delivery="another")) == 202
    assert len(door.kept) == 2


@pytest.mark.parametrize("body", [b"", b"{", b"\xff\xfe", b"[]", b'"text"', b"null", b"1" * 5000, b"[" * 100_000])
async def test_what_is_no_json_object_is_400(body):
    assert await Door().ask(signed(body), body) == 400


async def test_a_form_is_read_and_its_raw_bytes_are_what_is_signed():
    door = Door()
    body = urlencode({"payload": json.dumps(LABELED, ensure_ascii=False)}).encode()
    assert await door.ask(signed(body, content_type="application/x-www-form-urlencoded"), body) == 202
    assert door.kept[0].title == "标题"
    for broken in (b"", b"payload=", b"other=1", b"payload={}&payload={}", b"payload=%ff", b"\xff", b"&".join(b"a=1" for _ in range(99))):
        assert await door.ask(signed(broken, content_type="application/x-www-form-urlencoded"), broken) == 400


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        (signed(BODY, content_type="text/plain"), 415),
        (signed(BODY, content_type=""), 415),
        (signed(BODY, content_type="Application/JSON; charset=utf-8"), 202),
        (signed(BODY, x_github_event=""), 400),
        (signed(BODY, x_github_event="a b"), 400),
        (signed(BODY, x_github_delivery=""), 400),
        (signed(BODY, x_github_delivery="a.b.>"), 400),
        (signed(BODY, x_github_event="ping"), 200),
        (signed(BODY, x_github_event="something_new"), 202),
        (signed(BODY, x_github_hook_installation_target_id="99", x_github_hook_installation_target_type="integration"), 202),
    ],
)
async def test_headers_decide(headers, status):
    assert await Door().ask(headers) == status


@pytest.mark.parametrize("event", ["push", "star", "ping", "something_new", "issue_comment", "pull_request_review_thread"])
async def test_what_nobody_acts_on_is_acknowledged_and_not_kept(event):
    door = Door()
    assert await door.ask(signed(BODY, x_github_event=event)) in (200, 202)
    assert door.kept == []


async def test_a_body_comes_gzipped_or_as_a_blob():
    door = Door()
    packed = gzip.compress(BODY)
    assert await door.ask(signed(BODY), packed, encoding="gzip") == 202
    blob = BlobRef(sha256=hashlib.sha256(packed).hexdigest(), size=len(packed))
    door.blobs[blob.sha256] = packed
    assert await door.ask(signed(BODY, x_github_delivery="second"), b"", encoding="gzip", blob=blob) == 202
    assert [k.number for k in door.kept] == [7, 7]


async def test_a_body_over_25_megabytes_is_413_however_small_it_travels():
    door = Door()
    large = b" " * (MAX_WEBHOOK_BYTES + 1)
    assert await door.ask(signed(large), gzip.compress(large), encoding="gzip") == 413
    assert await door.ask(signed(large), b"", blob=BlobRef(sha256="0" * 64, size=len(large))) == 413
    just = BODY + b" " * (MAX_WEBHOOK_BYTES - len(BODY))
    assert await door.ask(signed(just), gzip.compress(just), encoding="gzip") == 202


@pytest.mark.parametrize("packed", [b"", b"no gzip", gzip.compress(BODY)[:-9]])
async def test_broken_gzip_is_400(packed):
    assert await Door().ask(signed(BODY), packed, encoding="gzip") == 400


async def test_a_bus_that_is_away_is_503_so_that_github_lists_the_delivery_as_failed():
    door = Door()
    door.fault = Retryable("no acknowledgement")
    assert await door.ask(signed(BODY)) == 503
    door.fault = None
    assert await door.ask(signed(BODY), b"", blob=NO_BLOB) == 503


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(codec=None)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
KEYS = (
    "action",
    "issue",
    "comment",
    "review",
    "pull_request",
    "check_run",
    "repository",
    "installation",
    "sender",
    "label",
    "branches",
    "sha",
)
INNER = ("number", "id", "title", "body", "user", "head", "login", "pull_requests", "full_name", "state", "client_payload", "issue", "name")
SHAPES = st.dictionaries(st.sampled_from(KEYS), JSON | st.dictionaries(st.sampled_from(INNER), JSON), max_size=8)


@settings(max_examples=100, deadline=None)
@given(event=st.sampled_from(sorted(USED)), shape=SHAPES, number=st.integers(0, 5))
async def test_no_shape_of_a_payload_is_an_error_of_the_server(event, shape, number):
    actions = sorted(USED[event])
    body = json.dumps({"repository": LABELED["repository"], **shape, "action": actions[number % len(actions)]}).encode()
    assert await Door().ask(signed(body, x_github_event=event), body) == 202
