"""What an administrator is told of the set-up: each part that works, and of each that does not what to do."""

import socket
from pathlib import Path

import dns.asyncresolver
import pytest

from libs.contracts.github import Integration, IntegrationCheck
from libs.contracts.mail import DescribeMailer
from services.mailer.__main__ import build
from services.mailer.describe import Dns
from services.mailer.dkim_key import DkimKey
from tests.integration.mailer.dns_server import dns_server
from tests.integration.mailer.mail_server import mail_server
from tests.integration.mailer.post_office import Post
from tests.integration.mailer.test_sending import rsa_key

DOMAIN = "agents.example.org"


def text(value: str) -> str:
    """A TXT record, cut into strings of 255 octets (RFC 1035, 3.3.14)."""
    return " ".join(f'"{value[i : i + 255]}"' for i in range(0, len(value), 255))


def zone(public: str) -> dict[tuple[str, str], tuple[str, ...]]:
    return {
        (DOMAIN, "TXT"): (text("v=spf1 ip4:127.0.0.1 -all"), text("something else")),
        (DOMAIN, "MX"): ("20 backup.example.org.", "10 mail.example.org."),
        (f"s1._domainkey.{DOMAIN}", "TXT"): (text(f"v=DKIM1; k=rsa; p={public}"),),
        (f"_dmarc.{DOMAIN}", "TXT"): (text("v=DMARC1; p=quarantine"),),
    }


async def described(post: Post, resolver: dns.asyncresolver.Resolver, **changed: object) -> Integration:
    async with build(post.settings.model_copy(update=changed), Dns(resolver)).running(post.bus):
        return await post.ask(DescribeMailer())


def by_name(found: Integration) -> dict[str, IntegrationCheck]:
    return {check.name: check for check in found.checks}


@pytest.fixture
def key(tmp_path: Path) -> DkimKey:
    rsa_key(tmp_path / "dkim.pem")
    return DkimKey(tmp_path / "dkim.pem", "s1", DOMAIN)


async def test_a_set_up_that_works(post, key, tmp_path):
    signing = {"mail_dkim_selector": "s1", "mail_dkim_key_file": tmp_path / "dkim.pem"}
    async with mail_server() as inbound, dns_server(zone(key.public())) as resolver:
        found = await described(post, resolver, mail_listen=f"127.0.0.1:{inbound.port}", **signing)
    assert found.configured
    assert [c.name for c in found.checks if not c.ok] == []
    checks = by_name(found)
    assert list(checks) == [
        "secrets",
        "links",
        "mail server",
        "SPF",
        "DKIM",
        "DMARC",
        "inbound listener",
        "MX",
        "senders",
        "intake addresses",
    ]
    assert "mail.example.org, backup.example.org" in checks["MX"].detail
    assert checks["inbound listener"].detail.startswith("220 mail.test")


async def test_a_set_up_of_which_nothing_works_says_what_to_do_about_each(post, key, tmp_path):
    await post.server.stop()
    (post.home / "mail.toml").write_text("[[intake]]\naddress = 'bugs@agents.example.org'\n")
    (tmp_path / "dkim.pem").chmod(0o644)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: whoever comes is refused
        signing = {"mail_dkim_selector": "s1", "mail_dkim_key_file": tmp_path / "dkim.pem"}
        async with dns_server({(f"s1._domainkey.{DOMAIN}", "TXT"): (text("v=DKIM1; p=AAAA"),)}) as resolver:
            found = await described(
                post, resolver, mail_listen=f"127.0.0.1:{taken.getsockname()[1]}", public_url="http://127.0.0.1:8787", **signing
            )
    checks = by_name(found)
    assert checks.pop("senders").ok
    assert "intake.0.repo: Field required" in checks["intake addresses"].detail
    assert all(not check.ok and check.fix for check in checks.values())
    assert key.public() in checks["DKIM"].fix
    assert "holds another key" in checks["DKIM"].detail
    assert "0 SPF records" in checks["SPF"].detail
    assert checks["secrets"].fix.startswith("chmod 600 ")
    assert "reach nobody" in checks["MX"].detail


async def test_dns_that_is_silent_is_no_missing_record(post):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent:
        silent.bind(("127.0.0.1", 0))
        resolver = dns.asyncresolver.Resolver(configure=False)
        resolver.nameservers, resolver.port = ["127.0.0.1"], silent.getsockname()[1]
        found = await described(post, resolver)
    checks = by_name(found)
    assert "DNS does not answer" in checks["SPF"].detail
    assert checks["mail server"].ok


async def test_a_key_that_is_none(post, tmp_path):
    (tmp_path / "none.pem").touch(mode=0o600)
    async with dns_server({}) as resolver:
        found = await described(post, resolver, mail_dkim_selector="s1", mail_dkim_key_file=tmp_path / "none.pem")
    assert "no readable PEM" in by_name(found)["DKIM"].detail


async def test_nothing_set_up_is_no_fault(post):
    async with dns_server({}) as resolver:
        found = await described(post, resolver, smtp_host=None, mail_domain=None)
    assert not found.configured
    assert found.checks == ()
    assert "AGENT_CODER_SMTP_HOST" in found.summary
    assert "AGENT_CODER_MAIL_DOMAIN" in found.summary
