"""The words of a relay, and the sender policy of a domain, without a network."""

import pytest

from services.mailer.authentication import Unproven, aligned, by_relay
from services.mailer.parsing import parse
from services.mailer.spf import DnsTrouble, Spf

ZONE = {
    ("a.test", "TXT"): ["v=spf1 a mx ip6:2001:db8::/32 include:b.test ?exists:%{ir}.%{v}.ok.test -all", "other"],
    ("a.test", "A"): ["192.0.2.1"],
    ("a.test", "MX"): ["mx.a.test"],
    ("mx.a.test", "A"): ["192.0.2.2"],
    ("b.test", "TXT"): ["v=spf1 ip4:198.51.100.0/24 ~all"],
    ("9.0.0.10.in-addr.ok.test", "A"): ["127.0.0.2"],
    ("r.test", "TXT"): ["v=spf1 redirect=b.test"],
    ("loop.test", "TXT"): ["v=spf1 include:loop.test -all"],
    ("two.test", "TXT"): ["v=spf1 -all", "v=spf1 +all"],
    ("bad.test", "TXT"): ["v=spf1 ipv4:1.2.3.4 -all"],
    ("lost.test", "TXT"): ["v=spf1 include:none.test -all"],
    ("void.test", "TXT"): ["v=spf1 a:1.test a:2.test a:3.test +all"],
    ("net.test", "TXT"): ["v=spf1 a:a.test/24//64 -all"],
    ("ptr.test", "TXT"): ["v=spf1 ptr -all"],
}


def result(ip: str, sender: str) -> str:
    return Spf(lambda name, kind: ZONE.get((name, kind), []), ip, sender, "helo.test").result()


@pytest.mark.parametrize(
    ("ip", "domain", "expected"),
    [
        ("192.0.2.1", "a.test", "pass"),
        ("::ffff:192.0.2.1", "a.test", "pass"),
        ("192.0.2.2", "a.test", "pass"),
        ("2001:db8::7", "a.test", "pass"),
        ("198.51.100.9", "a.test", "pass"),
        ("10.0.0.9", "a.test", "neutral"),
        ("203.0.113.1", "a.test", "fail"),
        ("198.51.100.9", "r.test", "pass"),
        ("203.0.113.1", "r.test", "softfail"),
        ("203.0.113.1", "none.test", "none"),
        ("203.0.113.1", "loop.test", "permerror"),
        ("203.0.113.1", "two.test", "permerror"),
        ("203.0.113.1", "bad.test", "permerror"),
        ("203.0.113.1", "lost.test", "permerror"),
        ("203.0.113.1", "void.test", "permerror"),
        ("192.0.2.200", "net.test", "pass"),
        ("203.0.113.1", "ptr.test", "fail"),
        ("203.0.113.1", "x y", "none"),
    ],
)
def test_sender_policies(ip, domain, expected):
    assert result(ip, f"dev@{domain}") == expected


def test_without_an_envelope_sender_the_name_in_helo_counts():
    assert Spf(lambda name, kind: [], "192.0.2.1", "", "helo.test").domain == "helo.test"


def test_trouble_with_dns_is_no_result():
    def ask(name: str, kind: str) -> list[str]:
        raise DnsTrouble(name)

    with pytest.raises(DnsTrouble):
        Spf(ask, "192.0.2.1", "dev@a.test", "x").result()


@pytest.mark.parametrize(
    ("domain", "author", "same"),
    [
        ("example.org", "example.org", True),
        ("mail.example.org", "Example.org.", True),
        ("example.org", "team.example.org", True),
        ("notexample.org", "example.org", False),
        ("example.org.evil.test", "example.org", False),
        ("a.example.org", "b.example.org", False),
        ("org", "example.org", False),
    ],
)
def test_alignment(domain, author, same):
    assert aligned(domain, author) is same


@pytest.mark.parametrize(
    ("results", "proven"),
    [
        ("mx.r.test; dmarc=pass header.from=example.org", True),
        ("mx.r.test; spf=pass smtp.mailfrom=bounce@mail.example.org", True),
        ("mx.r.test; dkim=fail header.d=example.org; dkim=pass header.i=@example.org", True),
        ("mx.r.test; dmarc=none; dkim=pass header.d=example.org", True),
        ("MX.R.test 1; dmarc=pass (p=none dis=none) header.from=example.org", True),
        ("mx.r.test; dmarc=pass header.from=evil.test", False),
        ("mx.r.test; dmarc=fail header.from=example.org; dkim=pass header.d=example.org", False),
        ("mx.r.test; dkim=pass header.d=evil.test; spf=pass smtp.mailfrom=x@evil.test", False),
        ("mx.r.test; spf=pass smtp.mailfrom=x@example.org.evil.test", False),
        ("mx.r.test; none", False),
        ("other.test; dmarc=pass header.from=example.org", False),
        ("mx.r.test.evil.test; dmarc=pass header.from=example.org", False),
        ("mx.r.test; dmarc=", False),
        (";;;", False),
        ("mx.r.test; " + "(" * 7000, False),
    ],
)
def test_the_word_of_the_relay(results, proven):
    message = parse(f"From: dev@example.org\r\nAuthentication-Results: {results}\r\n\r\nx".encode())
    if proven:
        assert "pass" in by_relay(message, "mx.r.test", "example.org")
    else:
        with pytest.raises(Unproven):
            by_relay(message, "mx.r.test", "example.org")


def test_the_topmost_result_of_the_relay_counts():
    lines = "Authentication-Results: mx.r.test; dmarc=fail header.from=example.org\r\n"
    lines += "Authentication-Results: mx.r.test; dmarc=pass header.from=example.org\r\n"
    with pytest.raises(Unproven, match="dmarc=fail"):
        by_relay(parse(f"From: dev@example.org\r\n{lines}\r\nx".encode()), "mx.r.test", "example.org")
