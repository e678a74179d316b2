"""The SMTP server for mail that comes in (RFC 5321). It relays nothing, and what it refuses it refuses before it says 250.

Line ends are CRLF and nothing else: a bare LF or CR is refused, so that no two servers see two different mails (SMTP smuggling).
"""

import asyncio
import logging
import re
import ssl
from typing import TYPE_CHECKING

from services.mailer.authentication import Peer
from services.mailer.inbound import MAX_RECIPIENTS, Inbound, NotTaken, Route
from services.mailer.settings import MailerSettings

if TYPE_CHECKING:
    from aiosmtpd.smtp import SMTP, Envelope, Session

log = logging.getLogger(__name__)
_REFUSALS = 10


class Hooks:
    """What aiosmtpd asks at each command. Routes are kept with the envelope they belong to."""

    def __init__(self, inbound: Inbound) -> None:
        self._inbound = inbound

    async def handle_EHLO(self, server: "SMTP", session: "Session", envelope: "Envelope", hostname: str, responses: list[str]) -> list[str]:  # noqa: N802 - aiosmtpd's name
        """Say what is spoken; nobody logs in here."""
        session.host_name = hostname
        said = [r for r in responses if not r[4:].startswith("AUTH")]
        return [*said[:-1], "250-PIPELINING", "250-ENHANCEDSTATUSCODES", said[-1]]

    async def handle_RCPT(self, server: "SMTP", session: "Session", envelope: "Envelope", address: str, options: list[str]) -> str:  # noqa: N802 - aiosmtpd's name
        """Take an address that mail is taken for."""
        if len(envelope.rcpt_tos) >= MAX_RECIPIENTS:
            return f"452 4.5.3 at most {MAX_RECIPIENTS} recipients in one mail"
        try:
            route = await self._inbound.route(address)
        except NotTaken as error:
            session.refusals = getattr(session, "refusals", 0) + 1  # type: ignore[attr-defined]  # a place for our own count
            if session.refusals > _REFUSALS:  # type: ignore[attr-defined]  # the same
                assert server.transport is not None
                server.transport.close()
            return line(error)
        _routes(envelope)[route.address] = route
        envelope.rcpt_tos.append(address)
        return "250 2.1.5 OK"

    async def handle_DATA(self, server: "SMTP", session: "Session", envelope: "Envelope") -> str:  # noqa: N802 - aiosmtpd's name
        """Take the mail, or say why not."""
        raw = envelope.original_content or b""
        if what := _bad_bytes(raw):
            return f"550 5.6.0 {what}"
        sender = (envelope.mail_from or "").strip("<>")
        from services.mailer.smtp_connection import plain_ip

        peer = Peer(str(plain_ip((session.peer or ("127.0.0.1",))[0])), str(session.host_name or ""), sender)
        try:
            said = await self._inbound.take(raw, list(_routes(envelope).values()), peer)
        except NotTaken as error:
            log.info("mail from %s refused: %s", peer.ip, error)
            return line(error)
        return f"250 2.0.0 {said}"

    async def handle_exception(self, error: Exception) -> str:
        """A fault of ours: the sender's server keeps the mail and tries again."""
        log.error("a mail could not be taken", exc_info=error)
        return "451 4.3.0 a fault on this side, try again later"


def line(error: NotTaken) -> str:
    """A refusal as one line of ASCII, at most 512 octets."""
    return re.sub(r"[^\x20-\x7e]", "?", str(error))[:480]


def _bad_bytes(raw: bytes) -> str:
    """What must not be in a mail; counted, which takes milliseconds for 25 MB."""
    if b"\0" in raw:
        return "NUL bytes are not taken"
    ends = raw.count(b"\r\n")
    return "" if raw.count(b"\r") == raw.count(b"\n") == ends else "lines end with CRLF; a bare CR or LF is not taken"


def _routes(envelope: "Envelope") -> dict[str, Route]:
    found: dict[str, Route] = envelope.__dict__.setdefault("routes", {})
    return found


def tls(settings: MailerSettings) -> ssl.SSLContext | None:
    """The certificate for STARTTLS, None when none is set. Raises OSError or ssl.SSLError."""
    if settings.mail_tls_cert_file is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(settings.mail_tls_cert_file, settings.mail_tls_key_file)
    return context


async def listen(inbound: Inbound, settings: MailerSettings) -> None:
    """Serve `mail_listen` until cancelled. Raises OSError when the address is taken."""
    assert settings.mail_listen is not None
    host, _, port = settings.mail_listen.rpartition(":")
    from services.mailer.smtp_connection import Connection, connections

    open_now: set[Connection] = set()
    make = connections(open_now, Hooks(inbound), settings, tls(settings))
    server = await asyncio.get_running_loop().create_server(make, host.strip("[]") or None, int(port))
    log.info("mail is taken at %s", settings.mail_listen)
    try:
        await server.serve_forever()
    finally:
        for connection in list(open_now):  # a server that is closed waits for them (Python 3.12)
            connection.leave()
