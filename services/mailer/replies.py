"""The consumer of kept mails: an answer becomes a record on the run's journal and then its effect; a mail to an intake opens a run.

Handled twice it acts once: the record is found by its Message-ID, the effect by its key or by what the person has done since the record.
"""

import logging
import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from pydantic import ValidationError

from libs.bus import Backoff, Bus, Decide, Delivery, Fenced, NoJournal, Permanent
from libs.bus.dead_letters import ErrorKind
from libs.bus.errors import GiveUp, Retry, decide
from libs.bus.faults import reach
from libs.contracts import decisions
from libs.contracts.decisions import NotPossible
from libs.contracts.fold import Recorded, RunState
from libs.contracts.mail import MailReceived
from libs.contracts.run import RunApproved, RunCancelled, RunDenied, RunEvent, RunRetried
from libs.contracts.team import TEXT, ReplyAction, ReplyReceived, RunCommented, RunFollowedUp, RunNotified
from libs.telemetry import extract
from services.mailer.intake import opening

log = logging.getLogger(__name__)
RETRIES = 15
_BACKOFF = Backoff(1.0, 300.0)
_COMMAND = re.compile(r"\s*/(approve|deny|retry|cancel)\b[ \t]*(.*)", re.IGNORECASE | re.DOTALL)
_AGAIN = "Asked for another attempt by mail."
_MADE: tuple[type[RunEvent], ...] = (RunApproved, RunDenied, RunRetried, RunCancelled, RunFollowedUp)


class Reader:
    """Handles the facts on `hook.mail`."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    async def __call__(self, delivery: Delivery) -> None:
        """Handle one kept mail and settle its message."""
        try:
            fact = MailReceived.model_validate_json(delivery.payload)
        except ValidationError as error:
            await self._bury(delivery, Permanent(f"it does not match its schema: {error.error_count()} faults"), "schema")
            return
        try:
            with self._bus.telemetry.span(f"process mail {fact.purpose}", "consumer", parent=extract(delivery.headers)):
                await self._handle(fact, delivery)
        except NoJournal:
            log.warning("mail %s is for the run %s, which is no longer there", fact.id, fact.run_id)
            await delivery.ack()
        except Exception as error:  # noqa: BLE001 - the one place that decides about every error of a handler
            await self._failed(delivery, error)
        else:
            await delivery.ack()

    async def _handle(self, fact: MailReceived, delivery: Delivery) -> None:
        if fact.automatic is not None:
            log.info("mail %s is automatic (%s): recorded, not answered", fact.id, fact.automatic)
            if fact.bounced is not None and fact.run_id is not None:
                await self._bus.decide(fact.run_id, bounced(fact), delivery.headers)
        elif fact.run_id is None:
            await self._open(fact)
        else:
            await self._bus.decide(fact.run_id, received(fact), delivery.headers)
            reach("mailer", "after_record", "reply")
            while await self._bus.decide(fact.run_id, effect(fact), delivery.headers):
                pass  # words first, then the step that is to heed them

    async def _open(self, fact: MailReceived) -> None:
        event = opening(fact)
        try:
            await self._bus.journal.append(event, follows=0)
        except Fenced:
            log.info("mail %s came again: run %s is there", fact.id, event.run_id)

    async def _failed(self, delivery: Delivery, error: Exception) -> None:
        match decide(error, delivery.number, RETRIES, _BACKOFF, delivery.sequence):
            case Retry(delay):
                bug = error if type(error).__module__ != "libs.bus.errors" else None
                log.warning("%s is put back for %.1f s: %s", delivery.subject, delay, error, exc_info=bug)
                await delivery.nak(delay)
            case GiveUp() as end:
                await self._bury(delivery, error, "exhausted" if end.dead else "permanent")
            case _:
                await self._bury(delivery, error, "permanent")

    async def _bury(self, delivery: Delivery, error: Exception, kind: ErrorKind) -> None:
        log.warning("%s is given up: %s", delivery.subject, error)
        await self._bus.dead_letters.bury(delivery, str(error), kind, "mail")
        await delivery.ack()


def asked(fact: MailReceived, state: RunState) -> tuple[ReplyAction, str]:
    """What a reply asks for, by its first line, and its other words. Without a pull request to comment on, words go to the run itself."""
    found = _COMMAND.match(fact.text)
    if found:
        return found[1].lower(), found[2].strip()  # type: ignore[return-value]  # the pattern holds these words only
    return ("comment" if state.published is not None else "message"), fact.text.strip()


def received(fact: MailReceived) -> Decide:
    """The record of a reply, once for its Message-ID. Nothing is recorded of a reply without words and files."""

    def decide(state: RunState, _: Sequence[Recorded]) -> RunEvent | None:
        action, words = asked(fact, state)
        empty = not words and not fact.attachments and action in ("comment", "message")
        if empty or any(r.message_id == fact.message_id for r in state.replies):
            return None
        return ReplyReceived(
            run_id=state.run_id,
            sender=fact.sender,
            message_id=fact.message_id,
            action=action,
            text=words[:TEXT],
            attachments=fact.attachments,
        )

    return decide


def effect(fact: MailReceived) -> Decide:
    """What is still to be done for a recorded reply; the forge puts comments on the pull request."""
    by = f"mail:{fact.sender}"

    def decide(state: RunState, history: Sequence[Recorded]) -> RunEvent | None:
        record = next((r for r in history if isinstance(r.event, ReplyReceived) and r.event.message_id == fact.message_id), None)
        if record is None or any(_did(r, by, fact.message_id) for r in history if r.sequence > record.sequence):
            return None
        assert isinstance(record.event, ReplyReceived)
        try:
            return _made(record.event, record.sequence, fact, state, history)
        except NotPossible as reason:
            log.info("mail %s asks for %s, which is not possible now: %s", fact.id, record.event.action, reason.detail)
            return None

    return decide


def _did(recorded: Recorded, by: str, key: str) -> bool:
    """Whether the person's word was acted on: whatever ends a reply's effect."""
    event = recorded.event
    if isinstance(event, RunFollowedUp):
        return event.key == key
    return isinstance(event, _MADE) and getattr(event, "by", "") == by


def _made(reply: ReplyReceived, at: int, fact: MailReceived, state: RunState, history: Sequence[Recorded]) -> RunEvent | None:
    by, words = f"mail:{reply.sender}", _words(reply)
    match reply.action:
        case "message":
            return _told(state, by, words, reply.message_id)
        case "approve" | "deny":
            act = decisions.approve if reply.action == "approve" else decisions.deny
            return act(state, by, reply.text[:4000]) if _is_asked(fact, at, state) else None
        case "cancel":
            return decisions.cancel(state, by, reply.text[:4000])
        case "retry":
            return _again(reply, state, history)
    return None


def _is_asked(fact: MailReceived, at: int, state: RunState) -> bool:
    """Whether the open question is the one that was answered: the one of our mail, or one that stood when the reply came."""
    if state.pending is None:
        return False
    return state.pending.sequence == fact.asked if fact.asked is not None else state.pending.sequence < at


def _again(reply: ReplyReceived, state: RunState, history: Sequence[Recorded]) -> RunEvent | None:
    """A failed run tries its step again, after it was told the words; one that is out makes another round of its branch."""
    by, words = f"mail:{reply.sender}", _words(reply)
    if not state.ended or (state.committed is not None and (words or state.failed is None)):
        return _told(state, by, words or (_AGAIN if state.ended else ""), reply.message_id)
    if words and not any(c.event.key == reply.message_id for c in state.comments):
        return RunCommented(run_id=state.run_id, by=by, source="mail", text=words, key=reply.message_id)
    return decisions.retry(state, history, None, by, datetime.now(UTC), timedelta.max)


def _told(state: RunState, by: str, words: str, key: str) -> RunEvent | None:
    """A comment while the run is at work, another round of its branch when it is over."""
    known = {c.event.key for c in state.comments} | {f.key for f in state.follow_ups}
    if key in known or not words:
        return None
    if state.ended and state.committed is not None and state.merged is None:
        return RunFollowedUp(run_id=state.run_id, by=by, source="mail", feedback=words, key=key)
    return RunCommented(run_id=state.run_id, by=by, source="mail", text=words, key=key)


def _words(reply: ReplyReceived) -> str:
    files = "".join(f"\n[attached: {a.name}, {a.media_type}, sha256 {a.blob.sha256}]" for a in reply.attachments)
    return (reply.text[: TEXT - len(files)] + files).strip()[:TEXT]


def bounced(fact: MailReceived) -> Decide:
    """A mail of ours was not delivered: the one that the report names, else the last one that was sent."""

    def decide(state: RunState, _: Sequence[Recorded]) -> RunEvent | None:
        sent = [n for n in state.notifications if n.outcome == "sent"]
        about = next((n for n in sent if n.message_id == fact.in_reply_to), sent[-1] if sent and not fact.in_reply_to else None)
        if about is None or any(n.message_id == about.message_id and n.outcome == "refused" for n in state.notifications):
            return None
        return RunNotified.model_validate(about.model_dump() | {"outcome": "refused", "detail": f"came back: {fact.bounced}"[:2000]})

    return decide
