"""The bytes of a mail: addresses, headers that hold one line each, ids that stay whole, seven bits; and the pauses between tries."""

import email
import email.policy
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.contracts.mail import OutgoingMail
from services.mailer.outbound import BadAddress, build, deliverable, from_header, message_ids
from services.mailer.sending import pause

LONG_ID = f"<{'DM6PR12MB' * 12}@{'namprd12.' * 6}prod.example.com>"


def mail(**changed) -> OutgoingMail:
    whole = {
        "id": "m1",
        "run_id": "R1",
        "of": 1,
        "kind": "failed",
        "recipient": "dev@example.org",
        "reply_to": f"agent+{'a' * 48}@a-rather-long-name-of-a-domain.agents.example.org",
        "message_id": f"<{'R' * 64}.1234567890.abcdefgh@a-rather-long-name-of-a-domain.agents.example.org>",
        "in_reply_to": LONG_ID,
        "references": ("<first@example.org>", LONG_ID),
        "subject": "[agent-coder] failed: 修复登录" + "很长" * 60,
        "text": "because 因为\n",
        "html": "<p>because 因为</p>",
        "unsubscribe_url": f"https://coder.example.org/mail/decisions/{'a' * 48}",
        "made_at": datetime(2026, 3, 1, 12, tzinfo=UTC),
        **changed,
    }
    return OutgoingMail.model_validate(whole)


def read(raw: bytes):
    return email.message_from_bytes(raw, policy=email.policy.default)


def test_headers_come_back_as_they_went_in():
    raw = build(mail(), "代理 <agent@example.org>")
    back = read(raw)
    asked = mail()
    assert back["Message-ID"] == asked.message_id
    assert back["In-Reply-To"] == LONG_ID
    assert back["References"].split() == ["<first@example.org>", LONG_ID]
    assert back["Reply-To"] == asked.reply_to
    assert back["Subject"] == asked.subject
    assert back["From"] == "代理 <agent@example.org>"
    assert back["List-Unsubscribe"] == f"<{asked.unsubscribe_url}>"
    assert [p.get_content_type() for p in back.iter_parts()] == ["text/plain", "text/html"]
    assert back.get_body(("plain",)).get_content().replace("\r\n", "\n") == "because 因为\n"
    assert raw.isascii()
    assert max(len(line) for line in raw.split(b"\r\n")) <= 998
    assert raw.replace(b"\r\n", b"").count(b"\n") == raw.replace(b"\r\n", b"").count(b"\r") == 0


@pytest.mark.parametrize(
    "address",
    ["", "@", "a@", "@b", "a", "a b@example.org", "a@b c", "<a@b>", "a@b\r\nX: y", "a\r\nb@c", "a..b@c", ".a@c", "a@-b.c", "a@b..c"],
)
def test_no_address(address):
    with pytest.raises(BadAddress):
        deliverable(address)


@pytest.mark.parametrize(
    "address",
    ["a@b\x00c", '"a b"@example.org', "a,b@example.org", "a@[127.0.0.1]", f"{'a' * 65}@example.org", f"a@{'b.' * 130}org"],
)
def test_an_address_that_is_not_taken(address):
    with pytest.raises(BadAddress):
        deliverable(address)


@pytest.mark.parametrize(
    ("address", "wire"),
    [
        (" Dev.Two+tag@Example.org ", "Dev.Two+tag@Example.org"),
        ("dev@localhost", "dev@localhost"),
        ("开发@例子.example", "开发@xn--fsqu00a.example"),
    ],
)
def test_addresses(address, wire):
    assert deliverable(address) == wire


@given(st.text(max_size=60))
def test_whatever_the_subject_is_it_is_one_header_or_refused(subject):
    try:
        raw = build(mail(subject=subject), "agent@example.org")
    except ValueError:
        assert any(c in subject for c in "\r\n\x00") or not subject.isprintable()
        return
    back = read(raw)
    assert [name for name in back if name.lower() == "subject"] == ["Subject"]
    assert back["To"] == "dev@example.org"
    assert back["Bcc"] is None


@pytest.mark.parametrize("field", ["subject", "reply_to", "message_id", "unsubscribe_url"])
def test_a_line_end_is_refused_in_every_header(field):
    with pytest.raises(ValueError, match="line end"):
        build(mail(**{field: "x\r\nBcc: all@example.org"}), "agent@example.org")


def test_ids_of_strangers_are_picked_out():
    assert message_ids("<a@b> junk <c@d>\r\nBcc: x", None, "<a@b>", "<no id", "<with blank @x>") == ("<a@b>", "<c@d>")


def test_a_sender_that_is_none():
    assert from_header("agent@example.org") == "agent@example.org"
    with pytest.raises(BadAddress):
        from_header("agent-coder")


def test_pauses_double_up_to_an_hour():
    assert [pause(n, 60) for n in range(1, 9)] == [60, 120, 240, 480, 960, 1920, 3600, 3600]
    assert pause(10_000, 60) == 3600
