"""Which mail a program wrote, and which a person did."""

import pytest
from pydantic import ValidationError

from services.mailer.automatic import bounce, reason
from services.mailer.parsing import parse
from services.mailer.settings import MailerSettings

PERSON = "dev@example.org"


def mail(*lines: str, body: str = "words"):
    head = "\r\n".join((f"From: {PERSON}", *lines))
    return parse(f"{head}\r\n\r\n{body}".encode())


@pytest.mark.parametrize(
    "line",
    [
        "Auto-Submitted: auto-replied",
        "Auto-Submitted: auto-generated; x=y",
        "Precedence: bulk",
        "Precedence: List",
        "Precedence: junk",
        "List-Id: <x.example.org>",
        "List-Unsubscribe: <mailto:x@example.org>",
        "X-Autoreply: yes",
        "X-Auto-Response-Suppress: All",
        "X-Failed-Recipients: x@example.org",
        "Return-Path: <>",
        "Return-Path: < >",
        'Content-Type: multipart/report; report-type=disposition-notification; boundary="b"',
        "Subject: Automatic reply: PR ready",
        "Subject: Out of Office",
        "Subject: Abwesenheitsnotiz",
        "Subject: =?utf-8?B?6Ieq5Yqo5Zue5aSN77ya5LiN5Zyo?=",
        "Subject: Undelivered Mail Returned to Sender",
        "Subject: =?utf-8?B?57O757uf6YCA5L+h?=",
        "Subject: Mail delivery failed: returning message to sender",
    ],
)
def test_automatic(line):
    assert reason(mail(line), PERSON)


@pytest.mark.parametrize(
    "lines",
    [
        [],
        ["Auto-Submitted: no"],
        ["X-Auto-Response-Suppress: None"],
        ["Precedence: first-class"],
        ["Return-Path: <dev@example.org>"],
        ["Subject: Re: [agent-coder] PR ready: mail could not be delivered when the office is away"],
        ["Subject: 回复：[agent-coder] 退信的处理"],
        ["Subject: AW: Undelivered Mail Returned to Sender is shown twice"],
        ["Subject: Please look at the holiday calendar"],
    ],
)
def test_a_person(lines):
    assert reason(mail(*lines), PERSON) is None


def test_an_empty_envelope_sender_is_a_program_s_and_an_unknown_one_is_not():
    assert reason(mail(), "") == "its return path is empty"
    assert reason(mail(), None) is None


@pytest.mark.parametrize("local", ["MAILER-DAEMON", "postmaster", "no-reply", "bounces+x=y", "list-bounces", "noreply"])
def test_senders_that_are_programs(local):
    assert reason(parse(f"From: {local}@example.org\r\n\r\nx".encode()), PERSON)


@pytest.mark.parametrize(
    ("action", "words"),
    [("failed", "5.1.1 550 no such user"), ("delayed", None), ("delivered", None), ("relayed", None), ("FAILED", "5.1.1 550 no such user")],
)
def test_reports_that_something_was_not_delivered(action, words):
    report = parse(
        (
            "Content-Type: multipart/report; boundary=b\r\n\r\n--b\r\nContent-Type: message/delivery-status\r\n\r\n"
            "Reporting-MTA: dns; x\r\n\r\n"
            f"Action: {action}\r\nStatus: 5.1.1\r\nDiagnostic-Code: smtp; 550 no\r\n such user\r\n"
            "--b\r\nContent-Type: message/rfc822\r\n\r\nMessage-ID: <1@x>\r\n\r\nold\r\n--b--"
        ).encode()
    )
    found = bounce(report)
    assert (found and (found.words, found.message_id)) == (words and (words, "<1@x>"))


def test_settings_that_cannot_be_are_all_named(tmp_path):
    with pytest.raises(ValidationError) as caught:
        MailerSettings(home=tmp_path, mail_listen="25", mail_dns="ns.test", mail_relay_networks="10.0.0.0/8 nonsense")
    assert {error["loc"][0] for error in caught.value.errors()} == {"mail_listen", "mail_dns", "mail_relay_networks"}
