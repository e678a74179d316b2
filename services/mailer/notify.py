"""Consumer `mailer-notify`: who is told of an event of a run, in which thread; each mail is put on `mail.out` once.

The id of a mail follows from the run, the news and the recipient: the same event twice, or two events that are the same news, is one mail.
"""

import asyncio
import contextlib
import logging
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from libs.bus import Bus, Delivery, NoAnswer, Retryable
from libs.bus.faults import reach
from libs.bus.journal import BrokenEvent, decode
from libs.contracts.fold import Recorded, RunState, fold
from libs.contracts.ids import derived_id
from libs.contracts.mail import OutgoingMail
from libs.contracts.run import ApprovalRequested, RunEvent
from libs.contracts.team import RunNotified
from libs.scanner import describe, scan
from libs.telemetry import extract
from services.mailer import letters, templates
from services.mailer.decisions import KEPT, DecisionLinks, Link
from services.mailer.outbound import BadAddress, deliverable, message_ids
from services.mailer.quota import Quota
from services.mailer.reply_address import Purpose, ReplyAddresses, plain
from services.mailer.sending import record
from services.mailer.settings import MailerSettings

log = logging.getLogger(__name__)
_TEXT, _HTML, _SUBJECT = 100_000, 200_000, 250
_RE = re.compile(r"^(\s*(re|aw|sv|回复|答复|回覆|返信)\s*[:：])+\s*", re.IGNORECASE)


def recipients(state: RunState) -> tuple[str, ...]:
    """Who is told of a run: the reporter, and whose mail started it; each address once."""
    if state.opened is None:
        return ()
    by = state.opened.requested_by
    found = (state.opened.reporter_email or "", by.removeprefix("mail:") if by.startswith("mail:") else "")
    return tuple(dict.fromkeys(plain(address) for address in found if address))


class Notifier:
    """Turns events of runs into mails."""

    def __init__(self, bus: Bus, settings: MailerSettings, quota: Quota, addresses: ReplyAddresses, links: DecisionLinks) -> None:
        self._bus = bus
        self._settings = settings
        self._quota = quota
        self._addresses = addresses
        self._links = links

    async def __call__(self, delivery: Delivery) -> None:
        """Tell everybody of one event; put back when the bus cannot keep what must be kept. Old news, and all without a server, is left."""
        event = None
        with contextlib.suppress(BrokenEvent):  # the step that handles it buries it
            event = decode(delivery.subject, delivery.payload)
        old = datetime.now(UTC) - delivery.at > timedelta(hours=self._settings.mail_retry_hours)
        if not isinstance(event, RunEvent) or old or not self._settings.sends:
            await delivery.ack()
            return
        try:
            await self._tell(event, delivery)
        except (Retryable, NoAnswer) as error:
            log.warning("run %s: nobody is told of %s yet: %s", event.run_id, type(event).type, error)
            await delivery.nak(min(60.0, 2.0 ** min(delivery.number, 6)))
        else:
            await delivery.ack()

    async def _tell(self, event: RunEvent, delivery: Delivery) -> None:
        history = await self._bus.journal.read(event.run_id)
        now = fold(history, event.run_id)
        then = fold((r for r in history if r.sequence <= delivery.sequence), event.run_id)
        topic = letters.topic(event, delivery.sequence, then, now)
        if topic is None or not recipients(now):
            return
        recorded = Recorded(sequence=delivery.sequence, at=delivery.at, event=event)
        sent = extract(delivery.headers)
        with self._bus.telemetry.span(f"notify {type(event).type}", "consumer", parent=sent, link=sent):
            for recipient in recipients(now):
                await self._tell_one(recorded, then, topic, recipient)

    async def _tell_one(self, recorded: Recorded, then: RunState, topic: letters.Topic, recipient: str) -> None:
        mail_id = derived_id("mail", then.run_id, topic.kind, topic.key, recipient)
        message_id = f"<{then.run_id}.{recorded.sequence}.{mail_id[:8].lower()}@{self._settings.mail_domain}>"

        async def leave_out(outcome: str, why: str) -> None:
            about = {"kind": topic.kind, "of": recorded.sequence, "recipient": recipient, "message_id": message_id}
            await record(self._bus, RunNotified.model_validate({"run_id": then.run_id, **about, "outcome": outcome, "detail": why}))

        try:
            deliverable(recipient)
        except BadAddress as error:
            return await leave_out("refused", str(error))
        if self._addresses.is_own(recipient):
            return await leave_out("suppressed", "this is an address of the mailer itself")
        if await self._unwanted(recipient, then):
            return await leave_out("suppressed", "the recipient asked for no more mail")
        thread = await self._quota.join(then.run_id, mail_id, recipient, message_id)
        if thread is None:
            return await leave_out("suppressed", f"the run has had its {self._settings.mail_per_run} mails")
        first = thread.first_to(recipient)
        root = first if first != message_id else None
        mail = await self._compose(recorded, then, topic, recipient, (mail_id, message_id), root)
        reach("mailer", "before_queue", topic.kind)
        await self._bus.publish_once("MAIL", f"mail.out.{mail_id}", mail)
        reach("mailer", "after_queue", topic.kind)
        return None

    async def _unwanted(self, recipient: str, state: RunState) -> bool:
        """Whether the recipient asked for no more mail, and has not asked for this run by mail since."""
        since = await self._quota.suppressed(recipient)
        if since is None or state.opened is None:
            return False
        asked_again = state.opened.requested_by.lower() == f"mail:{recipient}" and state.opened.opened_at > since
        return not asked_again

    async def _compose(
        self, recorded: Recorded, then: RunState, topic: letters.Topic, recipient: str, ids: tuple[str, str], root: str | None
    ) -> OutgoingMail:
        event, at = recorded.event, recorded.at
        assert isinstance(event, RunEvent)
        assert then.opened is not None
        purpose: Purpose = "decision" if isinstance(event, ApprovalRequested) else "reply"
        reply_to = await self._addresses.give(then.run_id, purpose, recorded.sequence, recipient, at)
        ways = await self._ways(recorded, then.run_id, recipient)
        origin = then.opened.mail
        told = letters.letter(event, then, ways)
        if origin and origin.subject:
            told = replace(told, subject=f"Re: {_RE.sub('', origin.subject)}")
        if found := await asyncio.to_thread(scan, f"{told.subject}\n{templates.as_text(told)}"):
            told = letters.withheld(told, describe(found))
        references = message_ids(*(origin.references[-20:] if origin else ()), origin.message_id if origin else None, root)
        return OutgoingMail(
            id=ids[0],
            run_id=then.run_id,
            of=recorded.sequence,
            kind=topic.kind,
            recipient=recipient,
            reply_to=reply_to,
            message_id=ids[1],
            in_reply_to=next(iter(message_ids(origin.message_id if origin else None, root)), None),
            references=references,
            subject=templates.one_line(told.subject, _SUBJECT),
            text=templates.as_text(told)[:_TEXT],
            html=templates.as_html(told)[:_HTML],
            unsubscribe_url=ways.unsubscribe,
            made_at=datetime.now(UTC),
        )

    async def _ways(self, recorded: Recorded, run_id: str, recipient: str) -> letters.Ways:
        off = Link(action="unsubscribe", run_id=run_id, recipient=recipient, expires_at=_midnight(recorded.at + KEPT))
        ways = letters.Ways(self._settings.public_url, unsubscribe=await self._links.url(off))
        event = recorded.event
        if not isinstance(event, ApprovalRequested):
            return ways
        about = {"run_id": run_id, "recipient": recipient, "step": event.step, "of": event.of, "asked": recorded.sequence}
        yes, no = (Link.model_validate({**about, "action": a, "expires_at": event.expires_at}) for a in ("approve", "deny"))
        return letters.Ways(ways.public_url, await self._links.url(yes), await self._links.url(no), ways.unsubscribe)


def _midnight(at: datetime) -> datetime:
    return at.replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=1)
