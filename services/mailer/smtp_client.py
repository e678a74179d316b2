"""One mail over one SMTP connection (RFC 5321), and what the server's answers mean: refused for good, or later."""

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from services.mailer.settings import MailerSettings
from services.mailer.templates import one_line

if TYPE_CHECKING:
    import aiosmtplib

_ABOUT_US = frozenset({530, 534, 535, 538})  # authentication is asked for, or refused: the set-up's fault, not the mail's
_CONVERSATION = 2  # connection, greeting, EHLO, AUTH and the envelope together: twice what each answer may take


class Refused(Exception):
    """The server will never take this mail; the text is its words."""


class Deferred(Exception):
    """The mail did not go out now, or (`unsure`) it is not known whether it did; the text is the server's words, or what failed."""

    def __init__(self, words: str, *, unsure: bool = False) -> None:
        super().__init__(words)
        self.unsure = unsure


@dataclass(frozen=True)
class Smarthost:
    """The server that takes our mail."""

    settings: MailerSettings

    @property
    def talk_seconds(self) -> float:
        """The longest time before DATA."""
        return self.settings.smtp_timeout_seconds * _CONVERSATION

    @property
    def data_seconds(self) -> float:
        """The longest time from DATA to the server's answer."""
        return self.settings.smtp_data_timeout_seconds

    async def deliver(self, message: bytes, sender: str, recipient: str, before_data: Callable[[], Awaitable[None]]) -> str:
        """Hand `message` over; `before_data` is awaited when the envelope is accepted. Returns the server's words.

        Raises:
            Refused: a 5xx about this mail.
            Deferred: a 4xx, no connection, a silent server, or one that asks for other credentials.
        """
        import aiosmtplib

        client, handing_over = None, False
        try:
            async with asyncio.timeout(self.talk_seconds):
                client = await self.connect()
                await _envelope(client, sender, recipient)
            await before_data()
            handing_over = True
            async with asyncio.timeout(self.data_seconds):
                answer = await client.data(message, timeout=self.data_seconds)
        except aiosmtplib.SMTPResponseException as error:
            raise _meaning(error) from error
        except (aiosmtplib.SMTPException, OSError, TimeoutError) as error:
            words = one_line(str(error), 500) or type(error).__name__
            raise Deferred(f"{self.settings.smtp_host}:{self.settings.smtp_port}: {words}", unsure=handing_over) from error
        finally:
            if client is not None:
                await _goodbye(client)
        return one_line(f"{answer.code} {answer.message}", 500)

    async def connect(self) -> "aiosmtplib.SMTP":
        """A connection that is greeted, encrypted and logged in as the settings say. Raises what aiosmtplib does, and OSError."""
        import aiosmtplib

        here = self.settings
        client = aiosmtplib.SMTP(
            hostname=here.smtp_host,
            port=here.smtp_port,
            username=here.smtp_user,
            password=here.smtp_password.get_secret_value() if here.smtp_password else None,
            local_hostname=here.mail_domain or "localhost",
            timeout=here.smtp_timeout_seconds,
            use_tls=here.smtp_security == "tls",
            start_tls=here.smtp_security == "starttls",
            tls_context=_tls(here) if here.smtp_security != "none" else None,
        )
        try:
            await client.connect()
        except BaseException:
            client.close()
            raise
        return client


def _tls(settings: MailerSettings) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(settings.smtp_ca_file) if settings.smtp_ca_file else None)


def _meaning(error: "aiosmtplib.SMTPResponseException") -> Refused | Deferred:
    words = one_line(f"{error.code} {error.message}", 1000)
    return Refused(words) if 500 <= error.code < 600 and error.code not in _ABOUT_US else Deferred(words)


async def _envelope(client: "aiosmtplib.SMTP", sender: str, recipient: str) -> None:
    if (sender + recipient).isascii():
        await client.mail(sender)
        await client.rcpt(recipient)
    else:  # RFC 6531
        await client.mail(sender, options=["SMTPUTF8"], encoding="utf-8")
        await client.rcpt(recipient, encoding="utf-8")


async def _goodbye(client: "aiosmtplib.SMTP") -> None:
    """Close without waiting for a server that is slow to part."""
    import aiosmtplib

    try:
        if client.is_connected:
            await client.quit(timeout=2)
    except (aiosmtplib.SMTPException, OSError, TimeoutError):
        client.close()
