"""Answers `DescribeMailer`: does mail work both ways? Each check talks to the real thing, briefly, and says what to do when it fails."""

import asyncio
import stat
from collections.abc import Awaitable, Callable
from email.utils import parseaddr
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from libs.bus import Asker
from libs.contracts.github import Integration, IntegrationCheck
from libs.contracts.mail import DescribeMailer
from services.mailer.dkim_key import BadKey, DkimKey
from services.mailer.intake import FaultyIntake, Intakes
from services.mailer.settings import MailerSettings
from services.mailer.smtp_client import Smarthost
from services.mailer.templates import one_line

if TYPE_CHECKING:
    from dns.asyncresolver import Resolver

_LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})
_DNS_SECONDS, _SMTP_SECONDS, _ALL_SECONDS = 4.0, 12.0, 17.0


class Unknown(Exception):
    """DNS gave no answer; the text says why."""


class Dns:
    """DNS as this machine asks it, or `resolver`."""

    def __init__(self, resolver: "Resolver | None" = None) -> None:
        self._resolver = resolver

    async def txt(self, name: str) -> list[str]:
        """The texts at a name, empty when there are none. Raises Unknown."""
        return [b"".join(r.strings).decode("utf-8", "replace") for r in await self._ask(name, "TXT")]

    async def mx(self, name: str) -> list[str]:
        """The mail servers of a domain, best first, empty when there are none. Raises Unknown."""
        return [str(r.exchange).rstrip(".") for r in sorted(await self._ask(name, "MX"), key=lambda r: r.preference)]

    async def _ask(self, name: str, kind: str) -> list[Any]:
        import dns.asyncresolver
        import dns.exception
        import dns.resolver

        try:
            resolver = self._resolver or dns.asyncresolver.get_default_resolver()
            return list(await resolver.resolve(name, kind, lifetime=_DNS_SECONDS, search=False))
        except (dns.resolver.NXDOMAIN, dns.resolver.NoAnswer):
            return []
        except (dns.exception.DNSException, OSError) as error:
            raise Unknown(f"DNS does not answer for {name}: {type(error).__name__}") from error


Check = Callable[[], Awaitable[IntegrationCheck]]


class Describer:
    """Looks at each part of the set-up."""

    def __init__(self, settings: MailerSettings, key: DkimKey | None, dns: Dns) -> None:
        self._settings = settings
        self._key = key
        self._dns = dns
        self._domain = parseaddr(settings.from_)[1].rpartition("@")[2] or "?"

    async def __call__(self, _: DescribeMailer, __: Asker) -> Integration:
        """The set-up as it is now."""
        here = self._settings
        if not here.sends and not here.mail_listen:
            wanted = {"AGENT_CODER_SMTP_HOST": here.smtp_host, "AGENT_CODER_MAIL_DOMAIN": here.mail_domain}
            missing = " and ".join(name for name, value in wanted.items() if value is None)
            return Integration(configured=False, summary=f"no mail goes out: set {missing}")
        checks: list[tuple[str, Check]] = [("secrets", self._secrets)]
        if here.sends:
            checks += [("links", self._links), ("mail server", self._smtp)]
            checks += [("SPF", self._spf), ("DKIM", self._dkim), ("DMARC", self._dmarc)]
        if here.mail_listen:
            checks += [("inbound listener", self._listener), ("MX", self._mx)]
        if here.mail_listen or here.mail_domain:
            checks += [("senders", self._senders), ("intake addresses", self._intakes)]
        found = await asyncio.gather(*(_bounded(name, check) for name, check in checks))
        out = f"out by {here.smtp_host}:{here.smtp_port} as {here.from_}" if here.sends else "nothing goes out"
        inward = f"in by SMTP on {here.mail_listen}" if here.mail_listen else "in by POST /webhooks/mail only"
        return Integration(configured=True, summary=one_line(f"{out}; {inward}", 1000), checks=tuple(found))

    async def _smtp(self) -> IntegrationCheck:
        here = self._settings
        async with asyncio.timeout(_SMTP_SECONDS):
            client = await Smarthost(here).connect()
        secured, user = here.smtp_security != "none", here.smtp_user
        client.close()
        how = f"{'encrypted' if secured else 'not encrypted'}, {f'logged in as {user}' if user else 'no login'}"
        if user and not secured and here.smtp_host not in _LOOPBACK:
            return _bad("mail server", f"the password goes over the network unencrypted ({how})", "set AGENT_CODER_SMTP_SECURITY=starttls")
        return _good("mail server", f"{here.smtp_host}:{here.smtp_port} answers: {how}")

    async def _links(self) -> IntegrationCheck:
        url = self._settings.public_url
        if urlsplit(url).hostname in _LOOPBACK:
            return _bad("links", f"{url} leads nowhere on another machine", "set AGENT_CODER_PUBLIC_URL to where people reach the gateway")
        return _good("links", f"links of mails begin with {url}")

    async def _spf(self) -> IntegrationCheck:
        found = [t for t in await self._dns.txt(self._domain) if t.lower().split(" ")[0] == "v=spf1"]
        if len(found) == 1:
            return _good("SPF", found[0])
        what = f"{self._domain} has {len(found)} SPF records, receivers want exactly one (RFC 7208, 4.5)"
        return _bad("SPF", what, f'publish one TXT record at {self._domain}, for example "v=spf1 a:{self._settings.smtp_host} -all"')

    async def _dkim(self) -> IntegrationCheck:
        if self._key is None:
            fix = "set AGENT_CODER_MAIL_DKIM_SELECTOR and AGENT_CODER_MAIL_DKIM_KEY_FILE, unless the mail server signs"
            return _good("DKIM", f"mails are not signed here: {fix}")
        name, public = f"{self._key.selector}._domainkey.{self._key.domain}", await asyncio.to_thread(self._key.public)
        record = f'publish a TXT record at {name}: "v=DKIM1; k=rsa; p={public}"'
        for text in await self._dns.txt(name):
            tags = dict(tag.strip().split("=", 1) for tag in text.split(";") if "=" in tag)
            if "".join(tags.get("p", "").split()) == public:
                return _good("DKIM", f"{name} is the key that signs")
            return _bad("DKIM", f"{name} holds another key than {self._settings.mail_dkim_key_file}", record)
        return _bad("DKIM", f"there is no record at {name}", record)

    async def _dmarc(self) -> IntegrationCheck:
        name = f"_dmarc.{self._domain}"
        found = [t for t in await self._dns.txt(name) if t.lower().startswith("v=dmarc1")]
        if found:
            return _good("DMARC", found[0])
        fix = f'publish a TXT record at {name}, for example "v=DMARC1; p=quarantine"; the record of a parent domain counts as well'
        return _bad("DMARC", f"there is no record at {name}", fix)

    async def _mx(self) -> IntegrationCheck:
        domain = self._settings.mail_domain or "?"
        if servers := await self._dns.mx(domain):
            return _good("MX", f"mail to {domain} goes to {', '.join(servers)[:500]}: it must be this machine, or pass mail on to it")
        return _bad("MX", f"{domain} has no MX record: replies reach nobody", f"publish an MX record of {domain} that names this machine")

    async def _listener(self) -> IntegrationCheck:
        host, _, port = (self._settings.mail_listen or "").rpartition(":")
        fix = "is the port free, and may this user bind it? See the mailer's log"
        reach = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "[::]": "::1"}.get(host, host.strip("[]"))
        try:
            async with asyncio.timeout(5):
                reader, writer = await asyncio.open_connection(reach, int(port))
                greeting = await reader.readline()
                writer.close()
        except (OSError, ValueError, TimeoutError) as error:
            return _bad("inbound listener", f"{self._settings.mail_listen} does not answer: {one_line(str(error), 200)}", fix)
        words = one_line(greeting.decode("ascii", "replace"), 200)
        return _good("inbound listener", words) if words.startswith("220") else _bad("inbound listener", f"it says {words!r}", fix)

    async def _senders(self) -> IntegrationCheck:
        if self._settings.mail_policy == "token_only":
            return _good("senders", "From is believed: the token in the reply address, or the intake's list, is all that is asked for")
        relay = self._settings.mail_trusted_relay
        return _good("senders", f"proven by {relay}'s Authentication-Results" if relay else "proven by our own check of SPF and DKIM")

    async def _intakes(self) -> IntegrationCheck:
        try:
            found = Intakes(self._settings.home).all()
        except FaultyIntake as error:
            return _bad("intake addresses", one_line(str(error), 2000), "correct the file; until then mail to intake addresses is put off")
        return _good("intake addresses", ", ".join(found)[:1000] or "none: mail.toml in the home folder would name them")

    async def _secrets(self) -> IntegrationCheck:
        folder = self._settings.folder("mailer")
        paths = [p for p in (folder / "reply-secret", folder / "webhook-secret", self._settings.mail_dkim_key_file) if p and p.is_file()]
        open_ = [p for p in paths if p.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO)]
        if open_:
            names = " ".join(str(p) for p in open_)
            return _bad("secrets", f"others may read {names}", f"chmod 600 {names}")
        return _good("secrets", "readable by their owner only")


async def _bounded(name: str, check: Check) -> IntegrationCheck:
    """A check that ends in time and never raises."""
    import aiosmtplib

    try:
        async with asyncio.timeout(_ALL_SECONDS):
            return await check()
    except Unknown as error:
        return _bad(name, str(error), "look at this machine's resolver, /etc/resolv.conf")
    except BadKey as error:
        return _bad(name, str(error), "point AGENT_CODER_MAIL_DKIM_KEY_FILE to an RSA key in PEM")
    except (aiosmtplib.SMTPException, OSError, TimeoutError) as error:
        fix = "look at AGENT_CODER_SMTP_HOST, _PORT, _SECURITY, _USER and _PASSWORD, and at the server's log"
        return _bad(name, one_line(str(error), 500) or type(error).__name__, fix)


def _good(name: str, detail: str) -> IntegrationCheck:
    return IntegrationCheck(name=name, ok=True, detail=detail[:2000])


def _bad(name: str, detail: str, fix: str) -> IntegrationCheck:
    return IntegrationCheck(name=name, ok=False, detail=detail[:2000], fix=fix[:2000])
