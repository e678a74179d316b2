"""Consumer `mailer-send`: each mail of `mail.out` goes out once, is tried for two days, and its outcome stands on the run's journal.

What is known of a mail stands in a row of the bucket MAIL, taken by compare-and-set before anything is said to the server. SMTP cannot tell
whether a server has a mail whose answer was never read: only then, between the marker before DATA and the row after the answer, a mail
may go out twice, with the same Message-ID.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime, timedelta
from email.utils import parseaddr
from typing import Literal

from pydantic import ValidationError

from libs.bus import Bus, Delivery, Fenced, Kv, NoJournal, Retryable, token
from libs.bus.faults import reach
from libs.contracts.envelope import Message, Time
from libs.contracts.fold import Recorded, RunState
from libs.contracts.mail import OutgoingMail
from libs.contracts.team import RunNotified
from libs.telemetry import extract
from services.mailer.dkim_key import BadKey
from services.mailer.outbound import Sign, build, deliverable
from services.mailer.quota import Quota
from services.mailer.settings import MailerSettings
from services.mailer.smtp_client import Deferred, Refused, Smarthost

log = logging.getLogger(__name__)
Outcome = Literal["sent", "refused", "gave_up", "suppressed"]
_MARGIN_SECONDS = 5.0
_CAP_SECONDS = 3600.0
_KEEP_TRYING = 120
AGAIN = "sent again, because it is not known whether the server had it before"


class Attempt(Message):
    """What is known of a mail. `until`: nobody else may try before."""

    state: Literal["waiting", "talking", "data", "done"] = "waiting"
    tries: int = 0
    until: Time | None = None
    words: str = ""
    unsure: bool = False
    outcome: Outcome | None = None


def pause(tries: int, base_seconds: float) -> float:
    """Seconds after the `tries`-th try that failed: `base_seconds`, doubled each time, up to an hour."""
    return min(_CAP_SECONDS, base_seconds * 2.0 ** min(tries - 1, 20))


class Sender:
    """Sends what `mail.out` holds."""

    def __init__(self, bus: Bus, settings: MailerSettings, quota: Quota, sign: Sign | None) -> None:
        self._bus = bus
        self._kv = Kv(bus.connection, "MAIL")
        self._settings = settings
        self._quota = quota
        self._sign = sign
        self._host = Smarthost(settings)

    async def __call__(self, delivery: Delivery) -> None:
        """Try one mail, or put it back until its time has come."""
        try:
            mail = OutgoingMail.model_validate_json(delivery.payload)
        except ValidationError as error:
            await self._bus.dead_letters.bury(delivery, f"no mail: {error.errors(include_url=False)[0]['msg']}", "schema")
            await delivery.term()
            return
        sent = extract(delivery.headers)
        with self._bus.telemetry.span(f"mail {mail.kind}", "consumer", parent=sent, link=sent, agent_coder__delivery=delivery.number):
            try:
                wait = await self._settle(mail)
            except (Retryable, Fenced) as error:
                log.warning("mail %s waits: %s", mail.id, error)
                wait = 1.0
        await (delivery.ack() if wait is None else delivery.nak(wait))

    async def _settle(self, mail: OutgoingMail) -> float | None:
        """Bring a mail to its outcome and record that; else the seconds to wait. Raises Fenced when another mailer took it meanwhile."""
        now = datetime.now(UTC)
        row, revision = await self._row(mail)
        if row.outcome is None and row.until is not None and now < row.until:
            return _seconds(row.until)
        if row.outcome is None:
            row = await self._end(mail, row, revision, now)
        if row.outcome is None:
            if wait := await self._quota.wait(mail.id, mail.recipient, now):
                return wait
            row = await self._try(mail, row, revision)
        if row.outcome is None and row.until is not None:
            return _seconds(row.until)
        await self._record(mail, row)
        return None

    async def _end(self, mail: OutgoingMail, row: Attempt, revision: int, now: datetime) -> Attempt:
        """The row of a mail that is not tried any more, stored; `row` itself for one that is."""
        since = await self._quota.suppressed(mail.recipient)
        hours = self._settings.mail_retry_hours
        if since is not None and since >= mail.made_at:
            ended = Attempt(state="done", tries=row.tries, outcome="suppressed", words="the recipient asked for no more mail")
        elif now - mail.made_at > timedelta(hours=hours):
            words = f"given up after {row.tries} tries in {hours:g} hours: {row.words or 'no mail server is set up'}"
            ended = Attempt(state="done", tries=row.tries, outcome="gave_up", words=words)
        else:
            return row
        await self._keep(mail, ended, revision)
        return ended

    async def _try(self, mail: OutgoingMail, row: Attempt, revision: int) -> Attempt:
        """Talk to the server once; the row afterwards, stored. Raises Fenced."""
        unsure = row.unsure or row.state == "data"
        talking = Attempt(state="talking", tries=row.tries + 1, until=_later(self._host.talk_seconds), words=row.words, unsure=unsure)
        revision = await self._put(mail, talking, revision)

        async def before_data() -> None:
            nonlocal revision
            handing_over = talking.model_copy(update={"state": "data", "until": _later(self._host.data_seconds)})
            revision = await self._put(mail, handing_over, revision)
            reach("mailer", "before_send", mail.kind)

        after: dict[str, object]
        try:
            words = await self._deliver(mail, before_data)
        except (Refused, ValueError) as error:
            after = {"state": "done", "outcome": "refused", "words": str(error), "until": None}
        except (Deferred, BadKey) as error:
            log.warning("mail %s of run %s waits: %s", mail.id, mail.run_id, error)
            until = _later(pause(talking.tries, self._settings.mail_retry_base_seconds), margin=0)
            after = {"state": "waiting", "words": str(error), "until": until, "unsure": unsure or getattr(error, "unsure", False)}
        else:
            reach("mailer", "after_send", mail.kind)
            after = {"state": "done", "outcome": "sent", "words": f"{words} ({AGAIN})" if unsure else words, "until": None}
        known = talking.model_copy(update=after)
        await self._keep(mail, known, revision)
        reach("mailer", "after_row", mail.kind)
        return known

    async def _deliver(self, mail: OutgoingMail, before_data: Callable[[], Awaitable[None]]) -> str:
        """Build, sign and hand over. Bounces come to the reply address, which tells the run."""
        if not self._settings.sends:
            raise Deferred("no mail server is set up")
        message = await asyncio.to_thread(build, mail, self._settings.from_, self._sign)
        sender = mail.reply_to or parseaddr(self._settings.from_)[1]
        return await self._host.deliver(message, sender, deliverable(mail.recipient), before_data)

    async def _row(self, mail: OutgoingMail) -> tuple[Attempt, int]:
        found = await self._kv.get(f"mail.{token(mail.id)}")
        return (Attempt.model_validate_json(found[0]), found[1]) if found else (Attempt(), 0)

    async def _put(self, mail: OutgoingMail, row: Attempt, revision: int) -> int:
        return await self._kv.put(f"mail.{token(mail.id)}", row.model_dump_json(exclude_none=True).encode(), revision)

    async def _keep(self, mail: OutgoingMail, row: Attempt, revision: int) -> None:
        """Store what came of a try, through a restart of the bus as well: what is lost here is sent again. Raises Fenced."""
        for left in range(_KEEP_TRYING, -1, -1):
            try:
                await self._put(mail, row, revision)
            except Retryable:
                if left == 0:
                    raise
                await asyncio.sleep(0.5)
            else:
                return

    async def _record(self, mail: OutgoingMail, row: Attempt) -> None:
        assert row.outcome is not None
        about = {"kind": mail.kind, "of": mail.of, "recipient": mail.recipient, "message_id": mail.message_id}
        await record(self._bus, RunNotified(run_id=mail.run_id, **about, outcome=row.outcome, detail=row.words[:2000]))


def _later(seconds: float, margin: float = _MARGIN_SECONDS) -> datetime:
    return datetime.now(UTC) + timedelta(seconds=seconds + margin)


def _seconds(until: datetime) -> float:
    return max(0.0, (until - datetime.now(UTC)).total_seconds()) + 0.05


async def record(bus: Bus, notified: RunNotified) -> None:
    """Append `notified` unless the run's journal has that outcome of that mail already."""

    def decide(state: RunState, _: Sequence[Recorded]) -> RunNotified | None:
        known = any(n.message_id == notified.message_id and n.outcome == notified.outcome for n in state.notifications)
        return None if known else notified

    try:
        await bus.decide(notified.run_id, decide)
    except NoJournal:
        log.warning("run %s has no journal any more: it does not say that a mail was %s", notified.run_id, notified.outcome)
