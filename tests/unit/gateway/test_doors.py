"""The doors for strangers: webhooks of GitHub, mail that a provider pushes, links of mails; and the set-up of both."""

import gzip
import hashlib
import os
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from libs.bus import NoAnswer, Refusal
from libs.contracts.artifact import BlobPut, PutChunk, ReleaseBlobs
from libs.contracts.envelope import BlobRef, Done
from libs.contracts.github import DescribeForge, Integration, IntegrationCheck, ReceiveWebhook, WebhookAnswer
from libs.contracts.mail import DecideByLink, DecisionView, DescribeMailer, ReceiveMail
from services.gateway.app import create_app
from services.gateway.settings import GatewaySettings
from tests.unit.gateway.conftest import TOKEN
from tests.unit.gateway.fake_bus import FakeBus

SIGNED = {"X-GitHub-Event": "issues", "X-GitHub-Delivery": "d-1", "X-Hub-Signature-256": "sha256=ab", "Content-Type": "application/json"}
MAIL = {"Content-Type": "message/rfc822"}
VIEW = DecisionView(run_id="r1", title="parse <b>1.5h</b>", question="改成 <script>?", action="approve", recipient="dev@example.org")


@pytest.fixture
async def stranger(app: FastAPI):
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
        yield client


async def test_a_webhook_is_handed_over_raw_with_its_own_headers_alone(stranger: httpx.AsyncClient, bus: FakeBus) -> None:
    bus.answer(ReceiveWebhook, WebhookAnswer(status=202, detail="stored"))
    raw = '{"title":  "机器人"}'.encode()
    answer = await stranger.post("/webhooks/github", content=raw, headers={**SIGNED, "Cookie": "a=b", "Authorization": "Bearer x"})
    assert (answer.status_code, answer.json()) == (202, {"detail": "stored"})
    (asked,) = bus.asked
    assert asked.body == raw
    assert asked.headers == {k.lower(): v for k, v in SIGNED.items()}
    assert bus.spans == [("POST /webhooks/github", {})]


async def test_what_the_forge_refuses_is_a_problem(stranger: httpx.AsyncClient, bus: FakeBus) -> None:
    bus.answer(ReceiveWebhook, WebhookAnswer(status=401, detail="the signature is wrong"))
    answer = await stranger.post("/webhooks/github", content=b"{}", headers=SIGNED)
    assert (answer.status_code, answer.headers["content-type"]) == (401, "application/problem+json")
    assert answer.json()["detail"] == "the signature is wrong"
    bus.answer(ReceiveWebhook, Refusal("not_configured", "there is no GitHub App"))
    answer = await stranger.post("/webhooks/github", content=b"{}", headers=SIGNED)
    assert (answer.status_code, answer.json()["next"]) == (503, "agent-coder doctor says what to set")
    assert answer.headers["Retry-After"]


@pytest.mark.parametrize(("path", "headers"), [("/webhooks/github", SIGNED), ("/webhooks/mail", MAIL)])
async def test_nobody_answers_is_503_with_when_to_come_again(
    stranger: httpx.AsyncClient, bus: FakeBus, path: str, headers: dict[str, str]
) -> None:
    for question in (ReceiveWebhook, ReceiveMail):
        bus.answer(question, NoAnswer("nobody"))
    answer = await stranger.post(path, content=b"{}", headers=headers)
    assert (answer.status_code, answer.headers["Retry-After"], answer.json()["code"]) == (503, "5", "unavailable")


@pytest.mark.parametrize("path", ["/webhooks/github", "/webhooks/mail"])
async def test_another_media_type_and_a_body_over_the_limit_are_refused(stranger: httpx.AsyncClient, bus: FakeBus, path: str) -> None:
    answer = await stranger.post(path, content=b"x", headers={"Content-Type": "image/png"})
    assert (answer.status_code, "Content-Type" in answer.json()["next"]) == (415, True)
    headers = {"Content-Type": "application/json" if "github" in path else "message/rfc822"}

    async def endless():
        for _ in range(26):
            yield bytes(1024 * 1024)

    for content in (bytes(25 * 1024 * 1024 + 1), endless()):
        answer = await stranger.post(path, content=content, headers=headers)
        assert (answer.status_code, answer.headers["content-type"]) == (413, "application/problem+json")
    assert not bus.asked


async def test_a_large_body_goes_gzipped_and_a_larger_one_to_the_artifact_store(stranger: httpx.AsyncClient, bus: FakeBus) -> None:
    bus.answer(ReceiveWebhook, WebhookAnswer(status=202))
    text = b"x" * 2_000_000
    assert (await stranger.post("/webhooks/github", content=text, headers=SIGNED)).status_code == 202
    assert (bus.asked[-1].encoding, gzip.decompress(bus.asked[-1].body)) == ("gzip", text)

    kept = bytearray()

    async def put(chunk: PutChunk, on_frame: Any) -> BlobPut:
        kept.extend(chunk.data)
        blob = BlobRef(sha256=hashlib.sha256(kept).hexdigest(), size=len(kept)) if chunk.last else None
        return BlobPut(received=len(kept), blob=blob)

    bus.answer(PutChunk, put)
    bus.answer(ReleaseBlobs, Done())
    noise = os.urandom(6_000_000)
    assert (await stranger.post("/webhooks/github", content=noise, headers=SIGNED)).status_code == 202
    assert bytes(kept) == noise
    asked, released = bus.asked[-2:]
    assert (asked.body, asked.blob.sha256) == (b"", hashlib.sha256(noise).hexdigest())
    assert f"webhook-{released.webhook}" == bus.asked[-3].owner


@pytest.mark.parametrize(
    "refused", [WebhookAnswer(status=401, detail="the signature is wrong"), NoAnswer("gone"), Refusal("internal", "x")]
)
@pytest.mark.parametrize(("path", "headers", "kind"), [("/webhooks/github", SIGNED, ReceiveWebhook), ("/webhooks/mail", MAIL, ReceiveMail)])
async def test_what_a_stranger_sent_stays_on_no_disk(
    stranger: httpx.AsyncClient, bus: FakeBus, path: str, headers: dict[str, str], kind: type, refused: Any
) -> None:
    async def put(chunk: PutChunk, on_frame: Any) -> BlobPut:
        return BlobPut(received=chunk.offset + len(chunk.data))

    bus.answer(PutChunk, put)
    bus.answer(kind, refused)
    assert (await stranger.post(path, content=os.urandom(6_000_000), headers=headers)).status_code >= 400
    kept = next(a.owner for a in bus.asked if isinstance(a, PutChunk))
    assert bus.asked[-1] == ReleaseBlobs(webhook=kept.removeprefix("webhook-"))


async def test_a_pushed_mail_brings_its_secret_and_its_envelope(stranger: httpx.AsyncClient, bus: FakeBus) -> None:
    bus.answer(ReceiveMail, WebhookAnswer(status=202, detail="taken"))
    raw = b"From: dev@example.org\r\n\r\nhi\xff"
    answer = await stranger.post(
        "/webhooks/mail?sender=dev@example.org&recipient=agent@example.org", content=raw, headers={**MAIL, "Authorization": "Basic eDp5"}
    )
    assert answer.status_code == 202
    (asked,) = bus.asked
    assert (asked.body, asked.authorization, asked.sender, asked.recipient) == (raw, "Basic eDp5", "dev@example.org", "agent@example.org")


async def test_an_address_that_knocks_too_often_waits_and_no_other_one_does(bus: FakeBus) -> None:
    bus.answer(ReceiveWebhook, WebhookAnswer(status=202))
    app = create_app(bus, GatewaySettings(door_rate_limit_requests=2, rate_limit_requests=1), TOKEN)

    async def knock(address: str) -> httpx.Response:
        transport = httpx.ASGITransport(app, client=(address, 1))
        async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
            return await client.post("/webhooks/github", content=b"{}", headers=SIGNED)

    assert [(await knock("192.0.2.1")).status_code for _ in range(3)] == [202, 202, 429]
    assert (await knock("2001:db8::1")).status_code == 202
    assert (await knock("192.0.2.1")).headers["Retry-After"]


async def test_a_link_shows_the_question_and_asks_once_more(stranger: httpx.AsyncClient, bus: FakeBus) -> None:
    bus.answer(DecideByLink, VIEW)
    page = await stranger.get("/mail/decisions/t0ken")
    assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert "改成 &lt;script&gt;?" in page.text
    assert "<script" not in page.text
    assert "<b>" not in page.text
    assert "<form method='post'>" in page.text
    assert "default-src 'none'" in page.headers["Content-Security-Policy"]
    assert (page.headers["Cache-Control"], page.headers["Referrer-Policy"]) == ("no-store", "no-referrer")
    assert (bus.asked[-1].token, bus.asked[-1].confirmed) == ("t0ken", False)
    assert bus.spans == [("GET /mail/decisions/{token}", {})]


async def test_pressing_the_button_decides(stranger: httpx.AsyncClient, bus: FakeBus) -> None:
    bus.answer(DecideByLink, VIEW.model_copy(update={"done": "approved by <dev>"}))
    page = await stranger.post("/mail/decisions/t0ken")
    assert bus.asked[-1].confirmed
    assert "approved by &lt;dev&gt;" in page.text
    assert "<form" not in page.text
    shown = await stranger.post("/mail/decisions/t0ken", headers={"Accept": "application/json"})
    assert shown.json()["done"] == "approved by <dev>"


async def test_one_click_unsubscribe_acts(stranger: httpx.AsyncClient, bus: FakeBus) -> None:
    bus.answer(DecideByLink, VIEW.model_copy(update={"action": "unsubscribe", "done": "no more mail goes there"}))
    answer = await stranger.post("/mail/decisions/t0ken", data={"List-Unsubscribe": "One-Click"})
    assert answer.status_code == 200
    assert bus.asked[-1].confirmed


@pytest.mark.parametrize(("code", "status"), [("expired", 410), ("invalid", 404), ("used", 409), ("not_configured", 503)])
async def test_a_link_that_does_not_work_says_why(stranger: httpx.AsyncClient, bus: FakeBus, code: str, status: int) -> None:
    bus.answer(DecideByLink, Refusal(code, "not <this> one"))
    page = await stranger.get("/mail/decisions/t0ken")
    assert (page.status_code, page.headers["content-type"]) == (status, "text/html; charset=utf-8")
    assert "not &lt;this&gt; one" in page.text
    problem = await stranger.get("/mail/decisions/t0ken", headers={"Accept": "application/json"})
    assert (problem.status_code, problem.json()["detail"]) == (status, "not <this> one")


async def test_a_link_that_nobody_answers_is_503(stranger: httpx.AsyncClient, bus: FakeBus) -> None:
    bus.answer(DecideByLink, NoAnswer("nobody"))
    page = await stranger.get("/mail/decisions/t0ken")
    assert (page.status_code, page.headers["Retry-After"]) == (503, "5")


async def test_the_set_up_is_shown_to_the_owner(client: httpx.AsyncClient, stranger: httpx.AsyncClient, bus: FakeBus) -> None:
    check = IntegrationCheck(name="key file", ok=False, detail="others may read it", fix="chmod 600")
    bus.answer(DescribeForge, Integration(configured=True, summary="App 7", checks=(check,)))
    bus.answer(DescribeMailer, NoAnswer("nobody"))
    shown = (await client.get("/api/integrations")).json()
    assert shown["github"]["checks"] == [check.model_dump()]
    assert (shown["mail"]["configured"], shown["mail"]["checks"][0]["name"]) == (False, "mailer answers")
    assert (await stranger.get("/api/integrations")).status_code == 401
