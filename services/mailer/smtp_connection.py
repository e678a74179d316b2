"""One SMTP connection that is bounded in time and bytes whatever its client does."""

import asyncio
import ipaddress
import logging
import ssl
from collections.abc import Callable
from typing import Any

from aiosmtpd.smtp import SMTP

from services.mailer.settings import MailerSettings

_SESSION_SECONDS = 1800.0
_LINE_BYTES = 1024 * 1024
_READ_ON = 3
"""A mail that is too large is read to its end, so that the client hears why, up to this many times the limit."""


class Connection(SMTP):
    """aiosmtpd's connection, and what it leaves unbounded: how many there are, a line without an end, a session without one."""

    local_part_limit = 64

    def __init__(self, open_now: set["Connection"], settings: MailerSettings, *args: Any, **options: Any) -> None:
        self._open_now = open_now
        self._most, self._max_bytes = settings.mail_connections, settings.mail_max_bytes
        self._relays = [ipaddress.ip_network(n, strict=False) for n in settings.mail_relay_networks.split()]
        self._ip: ipaddress.IPv4Address | ipaddress.IPv6Address | None = None
        self._taken = self._on_line = 0
        self._turned_away = False
        self._deadline: asyncio.TimerHandle | None = None
        super().__init__(*args, **options)

    def connection_made(self, transport: Any) -> None:
        """A client is there; called again when TLS begins."""
        self._ip = plain_ip((transport.get_extra_info("peername") or ("127.0.0.1",))[0])
        if self not in self._open_now and self._crowded():
            self._turned_away = True
            transport.write(b"421 4.3.2 too many connections, try again later\r\n")
            transport.close()
            return
        if self._deadline is None:
            self._open_now.add(self)
            self._deadline = asyncio.get_running_loop().call_later(_SESSION_SECONDS, self._timeout_cb)
        super().connection_made(transport)

    def _crowded(self) -> bool:
        """Whether all places are taken, or one address that is no relay of ours holds half of them."""
        theirs = sum(1 for other in self._open_now if other._ip == self._ip)
        known = any(self._ip in network for network in self._relays)
        return len(self._open_now) >= self._most or (not known and theirs >= max(1, self._most // 2))

    def connection_lost(self, error: Exception | None) -> None:
        """The client is gone."""
        if self._turned_away:
            return
        self._open_now.discard(self)
        if self._deadline is not None:
            self._deadline.cancel()
        super().connection_lost(error)

    def eof_received(self) -> bool | None:
        """The client says no more."""
        return False if self._turned_away else super().eof_received()

    def data_received(self, data: bytes) -> None:
        """Bytes of the client; too many of them end the connection."""
        end = data.rfind(b"\n")
        self._taken += len(data)
        self._on_line = len(data) - end - 1 if end >= 0 else self._on_line + len(data)
        if self._taken > _READ_ON * self._max_bytes + _LINE_BYTES or self._on_line > _LINE_BYTES:
            self._end(b"552 5.3.4 the mail is too large\r\n")
        elif not self._turned_away:
            super().data_received(data)

    def _set_post_data_state(self) -> None:
        self._taken = 0
        super()._set_post_data_state()  # type: ignore[no-untyped-call]  # a method of aiosmtpd without types

    def _timeout_cb(self) -> None:
        self._end(b"421 4.4.2 too slow, try again later\r\n")

    def leave(self) -> None:
        """The server stops; the client's server keeps its mail and comes again."""
        self._end(b"421 4.3.2 shutting down, try again later\r\n")

    def _end(self, words: bytes) -> None:
        transport: Any = self.transport
        if transport is not None:
            transport.write(words)
            transport.close()


def plain_ip(address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """An address without its zone, an IPv4 one that came over an IPv6 socket as what it is."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    return getattr(ip, "ipv4_mapped", None) or ip


def connections(open_now: set[Connection], hooks: object, settings: MailerSettings, tls: ssl.SSLContext | None) -> Callable[[], Connection]:
    """The factory of connections of one server; `open_now` holds those that are open."""
    logging.getLogger("mail.log").setLevel(logging.WARNING)  # its lines hold the tokens of addresses
    return lambda: Connection(
        open_now,
        settings,
        hooks,
        data_size_limit=settings.mail_max_bytes,
        enable_SMTPUTF8=True,
        hostname=settings.mail_domain or "localhost",
        ident="ESMTP agent-coder",
        tls_context=tls,
        timeout=settings.mail_client_seconds,
        loop=asyncio.get_running_loop(),
    )
