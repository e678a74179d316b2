"""Sending against a real SMTP server that refuses, waits, falls silent, wants a password, or is not there."""

import asyncio
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import dkim
import pytest
from aiosmtpd.smtp import AuthResult
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import NameOID
from pydantic import SecretStr

from libs.bus import Bus, Kv
from libs.contracts.mail import OutgoingMail
from libs.contracts.team import RunNotified
from libs.testkit.broker import until
from services.mailer.dkim_key import DkimKey
from tests.integration.mailer.mail_server import mail_server
from tests.integration.mailer.post_office import Post


async def queue(post: Post, bus: Bus, number: int = 1, **changed: object) -> OutgoingMail:
    """Put a mail on its way."""
    whole = {
        "id": f"m{number}",
        "run_id": "R1",
        "of": number,
        "kind": "failed",
        "recipient": "dev@example.org",
        "reply_to": f"agent+{'a' * 48}@agents.example.org",
        "message_id": f"<R1.{number}@agents.example.org>",
        "subject": "[agent-coder] failed: 修复",
        "text": "because\n",
        "html": "<p>because</p>",
        "made_at": datetime.now(UTC),
    }
    mail = OutgoingMail.model_validate(whole | changed)
    assert await bus.publish_once("MAIL", f"mail.out.{mail.id}", mail)
    return mail


async def row_with(bus: Bus, mail: OutgoingMail, text: bytes) -> bytes:
    """What is known of a mail, once that has `text` in it."""
    async with asyncio.timeout(60):
        while text not in (found := await Kv(bus.connection, "MAIL").get(f"mail.{mail.id}") or (b"", 0))[0]:
            await asyncio.sleep(0.02)
    return found[0]


def outcomes(found: tuple[RunNotified, ...]) -> list[str]:
    return sorted(n.outcome for n in found)


async def test_a_server_that_says_later_is_asked_again(post):
    answers = ["451 4.7.1 greylisted", "452 4.2.2 full"]
    post.server.rcpt = lambda _: answers.pop() if answers else None
    await post.open()
    async with post.mailer() as mailer:
        await queue(post, mailer.bus)
        (told,) = await post.notified(1)
    assert told.outcome == "sent"
    assert post.server.asked == 3
    assert len(post.server.got) == 1


@pytest.mark.parametrize("at", ["rcpt", "data"])
async def test_a_server_that_says_no_is_not_asked_again_and_its_words_are_kept(post, at):
    setattr(post.server, at, lambda _: "550 5.1.1 nobody of this name")
    await post.open()
    async with post.mailer() as mailer:
        await queue(post, mailer.bus)
        (told,) = await post.notified(1)
        post.server.rcpt = post.server.data = lambda _: None
        await queue(post, mailer.bus, 2)
        found = await post.notified(2)
    assert (told.outcome, told.detail) == ("refused", "550 5.1.1 nobody of this name")
    assert outcomes(found) == ["refused", "sent"]
    assert len(post.server.got) == 1


async def test_a_server_that_is_down_for_a_while_gets_the_mail_when_it_is_back(post):
    await post.server.stop()
    await post.open()
    async with post.mailer() as mailer:
        mail = await queue(post, mailer.bus)
        waiting = await row_with(mailer.bus, mail, b'"state":"waiting"')
        assert b"127.0.0.1" in waiting
        await post.server.start()
        (told,) = await post.notified(1)
    assert told.outcome == "sent"
    assert len(post.server.got) == 1


async def test_a_mail_is_given_up_after_its_time(post):
    await post.server.stop()
    await post.open()
    async with post.mailer() as mailer:
        mail = await queue(post, mailer.bus)
        await row_with(mailer.bus, mail, b'"state":"waiting"')
    async with post.mailer(mail_retry_hours=1e-6):
        (told,) = await post.notified(1)
    assert told.outcome == "gave_up"
    assert "given up after" in told.detail
    assert "127.0.0.1" in told.detail


async def test_a_silent_server_keeps_no_other_mail_waiting(post):
    silent: set[str] = set()
    gate = asyncio.Event()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        silent.add("here")
        await gate.wait()
        writer.close()

    dead = await asyncio.start_server(handle, "127.0.0.1", 0)
    await post.open()
    post.server.gate = asyncio.Event()
    async with post.mailer(smtp_port=dead.sockets[0].getsockname()[1]) as mailer:
        await queue(post, mailer.bus)
        await until(lambda: silent, 60)
        await post.open("R2", reporter_email="other@example.org")
        of = await post.fails("R2")  # the mail of another run is made though the server is silent
        async with asyncio.timeout(60):
            while (await post.people.api("STREAM.INFO.MAIL", {"subjects_filter": "mail.out.>"}))["state"]["num_subjects"] != 2:
                await asyncio.sleep(0.05)
        gate.set()
    dead.close()
    assert of


async def test_an_answer_that_never_came_is_said_and_the_mail_goes_again_with_the_same_id(post):
    post.server.gate = asyncio.Event()
    await post.open()
    async with post.mailer(smtp_data_timeout_seconds=0.2) as mailer:
        mail = await queue(post, mailer.bus)
        await row_with(mailer.bus, mail, b'"unsure":true')
        post.server.gate.set()
        (told,) = await post.notified(1)
    assert told.outcome == "sent"
    assert "sent again, because it is not known whether the server had it before" in told.detail
    assert {m["Message-ID"] for m in post.server.messages} == {told.message_id}


async def test_two_mailers_send_each_mail_once(post):
    await post.open()
    async with post.mailer() as one, post.mailer():
        for number in range(1, 21):
            await queue(post, one.bus, number)
        found = await post.notified(20)
    assert outcomes(found) == ["sent"] * 20
    assert sorted(m["Message-ID"] for m in post.server.messages) == sorted(n.message_id for n in found)


async def test_a_recipient_gets_so_many_mails_an_hour_and_the_rest_waits(post):
    await post.open()
    async with post.mailer(mail_per_recipient_hour=2) as mailer:
        for number in range(1, 4):
            await queue(post, mailer.bus, number)
        await queue(post, mailer.bus, 4, recipient="other@example.org")
        await post.notified(3)
        async with asyncio.timeout(60):
            while (await post.people.api("CONSUMER.INFO.MAIL.mailer-send", {}))["num_ack_pending"] != 1:
                await asyncio.sleep(0.05)
    assert sorted(e.rcpt_tos[0] for e in post.server.got) == ["dev@example.org", "dev@example.org", "other@example.org"]


async def test_a_line_end_in_a_header_is_refused(post):
    await post.open()
    async with post.mailer() as mailer:
        await queue(post, mailer.bus, 1, subject="x\r\nBcc: all@example.org")
        await queue(post, mailer.bus, 2, reply_to="a@example.org\r\nBcc: all@example.org")
        await queue(post, mailer.bus, 3, recipient="a@example.org>\r\nRCPT TO:<all@example.org")
        await queue(post, mailer.bus, 4, unsubscribe_url="http://x\r\n\r\nbody")
        found = await post.notified(4)
    assert outcomes(found) == ["refused"] * 4
    assert post.server.got == []


async def test_an_address_in_chinese_goes_to_a_server_that_takes_it(post):
    await post.open()
    async with post.mailer() as mailer:
        await queue(post, mailer.bus, recipient="开发@例子.example")
        (told,) = await post.notified(1)
    assert told.outcome == "sent"
    assert post.server.got[0].rcpt_tos == ["开发@xn--fsqu00a.example"]
    assert post.server.messages[0]["To"] == "开发@xn--fsqu00a.example"


async def test_an_address_in_chinese_is_refused_where_it_cannot_go(post):
    await post.server.stop()
    post.server.utf8 = False
    await post.server.start()
    await post.open()
    async with post.mailer() as mailer:
        await queue(post, mailer.bus, recipient="开发@example.org")
        (told,) = await post.notified(1)
    assert told.outcome == "refused"
    assert "SMTPUTF8" in told.detail


def rsa_key(path: Path) -> rsa.RSAPrivateKey:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    path.touch(mode=0o600)
    path.write_bytes(pem)
    return key


def certificate(place: Path) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 that vouches for itself, and its key."""
    import ipaddress

    key = rsa_key(place / "tls.key")
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    (place / "tls.crt").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    return place / "tls.crt", place / "tls.key"


async def test_a_signed_mail_over_starttls_with_a_password(post, tmp_path):
    crt, key = certificate(tmp_path)
    rsa_key(tmp_path / "dkim.pem")
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(crt, key)
    tried: list[bytes] = []

    def login(server, session, envelope, mechanism, data) -> AuthResult:
        tried.append(data.password)
        return AuthResult(success=data.password == b"right")

    public = DkimKey(tmp_path / "dkim.pem", "s1", "agents.example.org").public()
    set_up = {"smtp_security": "starttls", "smtp_user": "agent", "smtp_ca_file": crt}
    signing = {"mail_dkim_selector": "s1", "mail_dkim_key_file": tmp_path / "dkim.pem"}
    await post.open()
    async with mail_server(tls_context=tls, require_starttls=True, auth_required=True, authenticator=login) as server:
        async with post.mailer(**set_up, **signing, smtp_port=server.port, smtp_password=SecretStr("wrong")) as mailer:
            await queue(post, mailer.bus)
            await until(lambda: tried, 60)
        async with post.mailer(**set_up, **signing, smtp_port=server.port, smtp_password=SecretStr("right")):
            (told,) = await post.notified(1)
        assert server.sessions[0].ssl
        raw = server.got[0].original_content
    assert told.outcome == "sent"  # a wrong password is no fault of the mail: it waits
    assert dkim.verify(raw, dnsfunc=lambda name, timeout=5: f"v=DKIM1; k=rsa; p={public}".encode() if name.startswith(b"s1.") else None)
    for forged in (raw.replace(b"failed", b"passed"), b"Subject: passed\r\n" + raw, b"Reply-To: all@example.org\r\n" + raw):
        assert not dkim.verify(forged, dnsfunc=lambda name, timeout=5: f"v=DKIM1; k=rsa; p={public}".encode())


async def test_a_key_that_cannot_be_read_holds_mail_back_until_it_can(post, tmp_path):
    signing = {"mail_dkim_selector": "s1", "mail_dkim_key_file": tmp_path / "dkim.pem"}
    await post.open()
    async with post.mailer(**signing) as mailer:
        mail = await queue(post, mailer.bus)
        assert b"DKIM key" in await row_with(mailer.bus, mail, b'"state":"waiting"')
        rsa_key(tmp_path / "dkim.pem")
        (told,) = await post.notified(1)
    assert told.outcome == "sent"
    assert post.server.messages[0]["DKIM-Signature"]


async def test_a_certificate_that_nobody_vouches_for_gets_no_mail(post, tmp_path):
    crt, key = certificate(tmp_path)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(crt, key)
    await post.open()
    async with mail_server(tls_context=tls) as server:
        async with post.mailer(smtp_security="starttls", smtp_port=server.port) as mailer:
            mail = await queue(post, mailer.bus)
            waiting = await row_with(mailer.bus, mail, b'"state":"waiting"')
        assert server.got == []
    assert b"certificate" in waiting.lower()
