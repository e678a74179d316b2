"""Mail to an intake address opens a run; a provider pushes mail over HTTP."""

import asyncio
import base64
import gzip
import io
import zipfile

import pytest

from libs.agent.blobs import get_blob, put_blob
from libs.contracts.envelope import BlobRef
from libs.contracts.mail import ReceiveMail
from services.artifact.__main__ import build as build_artifact
from services.artifact.settings import ArtifactSettings
from services.mailer.intake import run_of
from tests.integration.mailer.mailbox import door, mail

INTAKE = """
[[intake]]
address = "Bugs@agents.example.org"
repo = "https://git.test/acme/app.git"
base = "develop"
allow = ["*@example.org", "boss@partner.test"]
attachments_mb = 1
"""
PNG = b"\x89PNG\r\n\x1a\n" + b"x" * 200


@pytest.fixture
async def inbox(post):
    (post.home / "mail.toml").write_text(INTAKE)
    async with build_artifact(ArtifactSettings(home=post.home)).running(post.bus), door(post) as box:
        yield box


async def opened(post, run_id):
    async with asyncio.timeout(60):
        while not (state := await post.state(run_id)).opened:
            await asyncio.sleep(0.02)
    return state.opened


async def test_a_mail_becomes_an_issue_and_a_run_once_with_its_files(post, inbox):
    message = mail("解析 1.5h 得到五小时。\n\n-- \ndev", Subject="=?utf-8?B?6Kej5p6Q6ZSZ6K+v?=", References="<0@example.org>")
    message.add_attachment(PNG, maintype="image", subtype="png", filename="截图.png")
    message.add_attachment(b"MZ\x90\0", maintype="application", subtype="octet-stream", filename="log.txt")
    message.add_attachment(b"x" * 1_100_000, maintype="text", subtype="plain", filename="big.log")
    for _ in range(2):
        assert (await inbox.send(message, "bugs@agents.example.org")).startswith("250")
    run_id = run_of("<1@example.org>", "bugs@agents.example.org")
    found = await opened(post, run_id)
    assert (found.issue.title, found.repo, found.base) == ("解析错误", "https://git.test/acme/app.git", "develop")
    assert found.issue.body.startswith("解析 1.5h 得到五小时。")
    assert "- 截图.png (image/png, 208 bytes" in found.issue.body
    assert "- log.txt: a program, or a format that can hold one (not kept)" in found.issue.body
    assert "- big.log: larger than 1 MB (not kept)" in found.issue.body
    assert (found.origin, found.requested_by, found.reporter_email) == ("mail", "mail:dev@example.org", "dev@example.org")
    assert (found.mail.message_id, found.mail.references) == ("<1@example.org>", ("<0@example.org>",))
    assert len(await post.journal.read(run_id)) == 1
    sha = found.issue.body.partition("sha256 ")[2][:64]
    assert await get_blob(inbox.service.bus.ask, BlobRef(sha256=sha, size=len(PNG))) == PNG


async def test_strangers_robots_and_a_faulty_list_open_nothing(post, inbox):
    to = "bugs@agents.example.org"
    assert "not_allowed" in await inbox.send(mail(From="x@elsewhere.test"), to)
    assert "not_allowed" in await inbox.send(mail(From="x@example.org.evil.test"), to)
    assert (await inbox.send(mail(From="boss@partner.test", Auto_Submitted="auto-generated"), to)).startswith("250")
    (post.home / "mail.toml").write_text(INTAKE.replace("repo =", "repository ="))
    assert (await inbox.send(mail(), to)).startswith("451 4.3.5")
    assert (await post.state(run_of("<1@example.org>", to))).opened is None


async def test_a_mail_that_says_nothing_opens_nothing_and_its_subject_alone_is_enough(post, inbox):
    to = "bugs@agents.example.org"
    assert "5.6.0 empty: " in await inbox.send(mail(" \n\n", Subject=" ", Message_ID="<blank@example.org>"), to)
    assert (await post.state(run_of("<blank@example.org>", to))).opened is None
    assert (await inbox.send(mail("\n", Subject="加法错了", Message_ID="<title@example.org>"), to)).startswith("250")
    assert (await opened(post, run_of("<title@example.org>", to))).issue.title == "加法错了"


async def test_without_the_artifact_store_a_mail_with_files_is_put_off(post):
    (post.home / "mail.toml").write_text(INTAKE)
    message = mail()
    message.add_attachment(PNG, maintype="image", subtype="png", filename="a.png")
    async with door(post) as box:
        assert (await box.send(message, "bugs@agents.example.org")).startswith("451")


async def test_a_provider_pushes_mail_with_the_secret_and_gets_the_same_answers(post, inbox):
    await post.open()
    secret = post.settings.webhook_secret
    to = await inbox.address()
    raw = mail("pushed").as_bytes()
    bearer = f"Bearer {secret}"

    async def push(**fields):
        said = await post.ask(ReceiveMail(**{"authorization": bearer, "body": raw, "recipient": to, "sender": "dev@example.org"} | fields))
        return said.status, said.detail

    assert (await push(authorization=""))[0] == 401
    assert (await push(authorization="Bearer x"))[0] == 401
    assert (await push(authorization="Basic " + base64.b64encode(f"u:{secret}x".encode()).decode()))[0] == 401
    assert (await push(authorization="Basic " + base64.b64encode(f"u:{secret}".encode()).decode()))[0] == 202
    assert (await push(body=gzip.compress(raw), encoding="gzip"))[0] == 202
    assert (await push(body=b"no gzip", encoding="gzip"))[0] == 422
    assert (await push(body=gzip.compress(b"x" * 27_000_000), encoding="gzip"))[0] == 413
    blob = await put_blob(inbox.service.bus.ask, "webhook", mail("as a blob", Message_ID="<2@example.org>").as_bytes())
    assert (await push(body=b"", blob=blob))[0] == 202
    assert (await push(recipient="", body=mail(Message_ID="<3@example.org>", To=f"x@y.test, {to}").as_bytes()))[0] == 202
    status, detail = await push(recipient="agent+nonsense@agents.example.org")
    assert (status, detail[:7]) == (422, "invalid")
    assert (await push(body=b"From: boss@example.org\n\nhi"))[1].startswith("wrong_sender")
    assert (await push(body=b"\0"))[0] == 422
    hidden = raw.replace(b"From: ", b"X-A: 1\rFrom: dev@example.org\r\rFrom: ", 1)
    assert await push(body=hidden) == (422, "unreadable: a bare CR is not taken")
    async with asyncio.timeout(60):
        while len((await post.state()).replies) < 3:
            await asyncio.sleep(0.02)
    assert [r.text for r in (await post.state()).replies] == ["pushed", "as a blob", "Fine by me."]


async def test_documents_with_macros_are_not_kept(post, inbox):
    def archive(*names):
        held = io.BytesIO()
        with zipfile.ZipFile(held, "w") as file:
            for name in names:
                file.writestr(name, "x")
        return held.getvalue()

    message = mail()
    files = {"good.docx": archive("word/document.xml"), "bad.docx": archive("word/vbaProject.bin"), "x.js": b"1", "y.zip": archive("a")}
    for name, content in files.items():
        message.add_attachment(content, maintype="application", subtype="octet-stream", filename=name)
    await inbox.send(message, "bugs@agents.example.org")
    body = (await opened(post, run_of("<1@example.org>", "bugs@agents.example.org"))).issue.body
    assert "- good.docx (application/octet-stream" in body
    assert body.count("(not kept)") == 3
