"""A broker, a mail server on loopback, and the real mailer between them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from libs.bus import Service
from libs.bus.broker import Broker
from libs.bus.connection import Connection
from libs.bus.journal import Journal
from libs.contracts import run as events
from libs.contracts.envelope import Question
from libs.contracts.fold import RunState
from libs.contracts.team import RunNotified
from libs.settings import BusSettings
from libs.testkit.broker import broker
from services.mailer.__main__ import build
from services.mailer.settings import MailerSettings
from tests.integration.mailer.mail_server import MailServer, mail_server

SHA = "a" * 40


@dataclass
class Post:
    """The journal as every service sees it, the mail server, and how to start a mailer."""

    home: Path
    broker: Broker
    bus: BusSettings
    people: Connection
    journal: Journal
    server: MailServer
    settings: MailerSettings

    def mailer(self, **changed: Any) -> AbstractAsyncContextManager[Service]:
        """A mailer, running inside the block."""
        return build(self.settings.model_copy(update=changed)).running(self.bus)

    async def open(self, run_id: str = "R1", **fields: Any) -> int:
        """A run that `dev@example.org` reported."""
        whole = {"issue": events.Issue(id="7", title="add 做减法"), "repo": "demo", "opened_at": datetime.now(UTC), **fields}
        whole.setdefault("reporter_email", "dev@example.org")
        return await self.append(events.RunOpened(run_id=run_id, **whole))

    async def append(self, event: events.RunEvent) -> int:
        """Append behind whatever is newest."""
        _, last = await self.journal.read_to_end(event.run_id)
        return await self.journal.append(event, follows=last)

    async def state(self, run_id: str = "R1") -> RunState:
        """The fold of a run."""
        return await self.journal.state(run_id)

    async def fails(self, run_id: str = "R1", reason: str = "no model answers", **fields: Any) -> int:
        """The run ends without a result."""
        return await self.append(events.RunFailed(run_id=run_id, reason=reason, step="plan", **fields))

    async def publishes(self, run_id: str = "R1", url: str = "https://github.test/acme/app/pull/9") -> int:
        """A pull request shows the change."""
        return await self.append(events.RunPublished(run_id=run_id, url=url, number=9, sha=SHA, branch="fix/issue-7"))

    async def asks(self, question: str = "Merge without tests?", run_id: str = "R1", step: Any = "verify", of: int = 1) -> int:
        """A step waits for a person."""
        expires = datetime(2100, 1, 1, tzinfo=UTC)
        return await self.append(events.ApprovalRequested(run_id=run_id, step=step, of=of, question=question, expires_at=expires))

    async def notified(self, count: int, run_id: str = "R1", seconds: float = 60) -> tuple[RunNotified, ...]:
        """What the journal says of mails, once there are `count`."""
        async with asyncio.timeout(seconds):
            while len(found := (await self.state(run_id)).notifications) < count:
                await asyncio.sleep(0.02)
        return found

    async def ask(self, question: Question[Any]) -> Any:
        """Ask the mailer as the gateway does."""
        async with Service("gateway").running(self.bus) as gateway:
            return await gateway.bus.ask(question)


@asynccontextmanager
async def post_office(place: Path) -> AsyncIterator[Post]:
    """Everything but the mailer itself."""
    async with AsyncExitStack() as stack:
        nats, bus = await stack.enter_async_context(broker(place / "home"))
        server = await stack.enter_async_context(mail_server())
        people = await Connection.open(bus, "admin")
        stack.push_async_callback(people.close)
        settings = MailerSettings(
            home=place / "home",
            public_url="https://coder.example.org",
            mail_domain="agents.example.org",
            smtp_host="127.0.0.1",
            smtp_port=server.port,
            smtp_security="none",
            smtp_timeout_seconds=5,
            smtp_data_timeout_seconds=5,
            mail_retry_base_seconds=0.1,
        )
        yield Post(place / "home", nats, bus, people, Journal(people), server, settings)
