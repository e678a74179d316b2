"""Who a mail is from, proven: by our own check against a name server, or by the relay that we trust."""

import base64

import dkim
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from tests.integration.mailer.mailbox import door, mail
from tests.integration.mailer.name_server import name_server

SPF = "v=spf1 ip4:192.0.2.0/24 include:hosts.test -all"


@pytest.fixture(scope="module")
def key() -> tuple[bytes, str]:
    private = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem = private.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    public = private.public_key().public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    return pem, f"v=DKIM1; k=rsa; p={base64.b64encode(public).decode()}"


def raw(text: str = "Fine by me.", **headers: str) -> bytes:
    return mail(text, **headers).as_bytes().replace(b"\n", b"\r\n")


def signed(message: bytes, pem: bytes, domain: bytes = b"example.org", **options: object) -> bytes:
    names = options.pop("include", [b"From", b"Subject", b"Message-ID"])
    return dkim.sign(message, b"s1", domain, pem, include_headers=names, **options) + message


@pytest.fixture
async def strict(post):
    await post.open()
    await post.publishes()
    async with name_server() as dns, door(post, mail_policy="strict", mail_dns=f"127.0.0.1:{dns.port}") as box:
        yield box, dns


async def test_a_signature_of_the_author_s_domain_proves_and_a_changed_mail_does_not(strict, key):
    box, dns = strict
    dns.txt("s1._domainkey.example.org", key[1])
    to = await box.address()
    whole = signed(raw(), key[0])
    assert "550 5.7.26 unproven" in await box.send(whole.replace(b"Fine", b"Fire"), to)
    assert (await box.send(whole, to)).startswith("250")
    assert "replayed" in await box.send(signed(raw("again"), key[0]), to)
    for changed in (
        signed(raw(Message_ID="<2@example.org>"), key[0], length=True) + b"\r\nmore",
        signed(raw(Message_ID="<3@example.org>"), key[0], include=[b"From", b"Subject"]),
        signed(raw(Message_ID="<4@example.org>"), key[0], b"evil.test"),
        raw(Message_ID="<5@example.org>"),
    ):
        assert "550 5.7.26 unproven" in await box.send(changed, to)


@pytest.mark.parametrize(
    "added",
    [b"Message-ID: <2@example.org>", b"Subject: other words", b"Date: Mon, 30 Nov 2026 10:00:00 +0000", b"Content-Type: text/html"],
)
async def test_a_signed_mail_that_comes_again_with_a_second_header_above_is_refused(strict, key, added):
    box, dns = strict
    dns.txt("s1._domainkey.example.org", key[1])
    whole = signed(raw(Date="Sun, 29 Nov 2026 10:00:00 +0000"), key[0])
    assert (await box.send(whole, await box.address())).startswith("250")
    said = await box.send(added + b"\r\n" + whole, await box.address())
    assert said.startswith(f"550 5.6.0 unreadable: it has more than one {added.partition(b':')[0].decode()}"), said


@pytest.mark.parametrize(
    ("record", "sender", "proven"),
    [
        ("v=spf1 ip4:127.0.0.0/8 -all", "dev@example.org", True),
        ("v=spf1 ip4:127.0.0.1 -all", "bounce@mail.example.org", True),
        ("v=spf1 -all", "dev@example.org", False),
        ("v=spf1 ~all", "dev@example.org", False),
        ("v=spf1 +all", "x@evil.test", False),
        ("v=spf1 +all", "x@example.org-evil.test", False),
        ("v=spf1 +all", "x@myexample.org", False),
        ("", "dev@example.org", False),
    ],
)
async def test_the_sending_address_proves_for_an_aligned_domain_only(strict, record, sender, proven):
    box, dns = strict
    if record:
        dns.txt(sender.partition("@")[2], record)
    said = await box.send(raw(), await box.address(), sender=sender)
    assert said.startswith("250" if proven else "550 5.7.26 unproven"), said


async def test_a_strict_dmarc_record_wants_the_very_same_domain(strict):
    box, dns = strict
    dns.txt("mail.example.org", "v=spf1 +all")
    dns.txt("_dmarc.example.org", "v=DMARC1; p=reject; aspf=s")
    assert "unproven" in await box.send(raw(), await box.address(), sender="b@mail.example.org")


async def test_names_that_cannot_be_asked_for_mean_later(strict):
    box, dns = strict
    dns.broken = True
    assert (await box.send(raw(), await box.address())).startswith("451 4.7.0 unproven")


async def test_the_trusted_relay_s_word_counts_from_its_network_and_nobody_else_s(post, key):
    await post.open()
    await post.publishes()
    relayed = raw(Authentication_Results="mx.example.org; dmarc=pass header.from=example.org")
    async with (
        name_server() as dns,
        door(post, mail_policy="strict", mail_dns=f"127.0.0.1:{dns.port}", mail_trusted_relay="mx.example.org") as box,
    ):
        to = await box.address()
        assert (await box.send(relayed, to)).startswith("250")
        forged = raw(Authentication_Results="mx.evil.test; dmarc=pass header.from=example.org", Message_ID="<2@example.org>")
        assert "mx.example.org says nothing" in await box.send(forged, to)
    async with (
        name_server() as dns,
        door(
            post,
            mail_policy="strict",
            mail_dns=f"127.0.0.1:{dns.port}",
            mail_trusted_relay="mx.example.org",
            mail_relay_networks="192.0.2.0/24",
        ) as box,
    ):
        stranger = relayed.replace(b"<1@", b"<3@")
        assert "550 5.7.26 unproven" in await box.send(stranger, await box.address())


async def test_a_second_signature_whose_name_server_is_down_takes_nothing_from_the_first(strict, key):
    box, dns = strict
    dns.txt("s1._domainkey.example.org", key[1])
    dns.broken_below = ".down.test"
    whole = signed(signed(raw(), key[0]), key[0], b"mail.down.test")
    assert (await box.send(whole, await box.address(), sender="x@mail.down.test")).startswith("250")
    alone = signed(raw(Message_ID="<2@example.org>"), key[0], b"mail.down.test")
    assert (await box.send(alone, await box.address(), sender="x@mail.down.test")).startswith("451 4.7.0 unproven")
