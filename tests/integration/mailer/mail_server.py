"""A real SMTP server on loopback that keeps what it takes and answers as it is told."""

import asyncio
import email
import email.policy
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from email.message import EmailMessage
from typing import Any

from aiosmtpd.smtp import SMTP, Envelope, Session

from libs.testkit.broker import free_port

Say = Callable[[Envelope], str | None]


@dataclass
class MailServer:
    """`got` are the mails that were taken; `rcpt` and `data` may answer instead of 250; `gate` is waited for before DATA's answer."""

    port: int
    got: list[Envelope] = field(default_factory=list)
    rcpt: Callable[[str], str | None] = lambda address: None
    data: Say = lambda envelope: None
    gate: asyncio.Event | None = None
    asked: int = 0
    utf8: bool = True
    server: asyncio.Server | None = None
    sessions: list[Session] = field(default_factory=list)

    @property
    def messages(self) -> list[EmailMessage]:
        """What was taken, parsed."""
        return [email.message_from_bytes(e.original_content or b"", policy=email.policy.default) for e in self.got]

    async def handle_RCPT(self, server: Any, session: Session, envelope: Envelope, address: str, options: list[str]) -> str:
        self.asked += 1
        said = self.rcpt(address)
        if said is None:
            envelope.rcpt_tos.append(address)
        return said or "250 OK"

    async def handle_DATA(self, server: Any, session: Session, envelope: Envelope) -> str:
        said = self.data(envelope)
        if said is None:
            self.got.append(envelope)
            self.sessions.append(session)
        if self.gate is not None:
            await self.gate.wait()
        return said or f"250 2.0.0 taken as number {len(self.got)}"

    async def start(self, **options: Any) -> None:
        """Listen on the port."""
        loop = asyncio.get_running_loop()
        make = lambda: SMTP(self, loop=loop, hostname="mail.test", enable_SMTPUTF8=self.utf8, **options)  # noqa: E731 - a factory for asyncio
        self.server = await loop.create_server(make, "127.0.0.1", self.port)

    async def stop(self) -> None:
        """Listen no more."""
        if self.server is not None:
            self.server.close()
            self.server = None


@asynccontextmanager
async def mail_server(**options: Any) -> AsyncIterator[MailServer]:
    """A running server."""
    server = MailServer(free_port())
    await server.start(**options)
    try:
        yield server
    finally:
        if server.gate is not None:
            server.gate.set()
        await server.stop()
