"""The side of people and of strangers: mails into the mailer's SMTP door, and what it says."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from email.message import EmailMessage
from email.policy import SMTP
from typing import Any

import aiosmtplib

from libs.bus import Kv, Service
from libs.testkit.broker import free_port
from services.mailer.reply_address import ReplyAddresses
from tests.integration.mailer.post_office import Post

DOMAIN = "agents.example.org"


@dataclass
class Door:
    """A running mailer with its door open at `port`."""

    post: Post
    port: int
    service: Service

    async def address(
        self, recipient: str = "dev@example.org", run_id: str = "R1", purpose: Any = "reply", of: int = 1, **changed: Any
    ) -> str:
        """A reply address as a mail of ours would have it."""
        days, secret = changed.get("days", 30), changed.get("secret", self.post.settings.reply_secret)
        kv = Kv(self.service.bus.connection, "MAIL")
        return await ReplyAddresses(kv, secret, DOMAIN, days).give("R1", purpose, of, recipient, changed.get("now", datetime.now(UTC)))

    async def send(self, raw: bytes | EmailMessage, *to: str, sender: str = "dev@example.org") -> str:
        """Hand a mail over; what was said in the end, `250 …` or a refusal."""
        content = raw if isinstance(raw, bytes) else raw.as_bytes(policy=SMTP)
        try:
            async with aiosmtplib.SMTP(hostname="127.0.0.1", port=self.port, start_tls=False, timeout=60) as client:
                _, said = await client.sendmail(sender, list(to), content, mail_options=["BODY=8BITMIME"])
                return f"250 {said}"
        except aiosmtplib.SMTPRecipientsRefused as error:
            return f"{error.recipients[0].code} {error.recipients[0].message}"
        except aiosmtplib.SMTPResponseException as error:
            return f"{error.code} {error.message}"

    async def talk(self, *pieces: bytes) -> bytes:
        """Say things on a plain connection and hear everything until the server hangs up or is asked to."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        for piece in pieces:
            writer.write(piece)
        try:
            async with asyncio.timeout(60):
                return await reader.read()
        finally:
            writer.close()


def mail(text: str = "Fine by me.", **headers: str) -> EmailMessage:
    """A reply of `dev@example.org`."""
    message = EmailMessage()
    whole = {"From": "Dev <dev@example.org>", "Subject": "Re: [agent-coder] PR ready", "Message-ID": "<1@example.org>"}
    for name, value in (whole | {k.replace("_", "-"): v for k, v in headers.items()}).items():
        message[name] = value
    message.set_content(text)
    return message


@asynccontextmanager
async def door(post: Post, **changed: Any) -> AsyncIterator[Door]:
    """A mailer that takes mail; by default the token in the address is proof enough."""
    port = free_port()
    changed = {"mail_listen": f"127.0.0.1:{port}", "mail_policy": "token_only", **changed}
    async with post.mailer(**changed) as service:
        async with asyncio.timeout(30):
            while True:
                try:
                    (await asyncio.open_connection("127.0.0.1", port))[1].close()
                    break
                except OSError:
                    await asyncio.sleep(0.02)
        yield Door(post, port, service)
