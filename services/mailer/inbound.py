"""Taking a mail in, whichever door it came by: who may send here, what it says, and the fact of it on `hook.mail.<id>`.

Invariant: a yes is said only after the fact is stored; a no is said to whoever hands the mail over and never by a mail.
"""

import asyncio
import hashlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol

from libs.bus import Bus, NoAnswer, Refusal, Retryable
from libs.bus.faults import reach
from libs.contracts.mail import MailReceived
from services.mailer import attachments, automatic
from services.mailer.authentication import Peer, SenderCheck, Unproven
from services.mailer.intake import FaultyIntake, Intake, Intakes, run_of
from services.mailer.parsing import Mail, Unreadable, parse
from services.mailer.reply_address import ReplyAddresses, ReplyGrant, ReplyRefused, plain

log = logging.getLogger(__name__)
MAX_RECIPIENTS = 20


class NotTaken(Exception):
    """A mail or an address is refused: the SMTP code, the enhanced code (RFC 3463), and why."""

    def __init__(self, code: int, status: str, why: str) -> None:
        super().__init__(f"{code} {status} {why}")
        self.code = code
        self.status = status
        self.why = why


@dataclass(frozen=True)
class Route:
    """Where mail to an address goes: an answer to one of our mails, or an intake."""

    address: str
    grant: ReplyGrant | None = None
    intake: Intake | None = None


class Facts(Protocol):
    """What is already known of a mail."""

    async def of(self, id: str) -> MailReceived | None:  # noqa: A002 - the contract's own word
        """The stored fact. Raises Retryable."""
        ...


class Inbound:
    """Takes mails in."""

    def __init__(self, bus: Bus, facts: Facts, addresses: ReplyAddresses | None, intakes: Intakes, check: SenderCheck | None) -> None:
        self._bus = bus
        self._facts = facts
        self._addresses = addresses
        self._intakes = intakes
        self._check = check

    async def route(self, address: str) -> Route:
        """Where mail to `address` goes.

        Raises:
            NotTaken: 550 for an address that takes none, with the reason, 451 when that cannot be told now.
        """
        try:
            intake = self._intakes.at(address)
            if intake is not None:
                return Route(plain(address), intake=intake)
            if self._addresses is None:
                raise NotTaken(550, "5.1.1", "missing: no mail is taken at this address")
            return Route(plain(address), grant=await self._addresses.open(address, datetime.now(UTC)))
        except FaultyIntake as error:
            raise NotTaken(451, "4.3.5", "the set-up of this mail server has a fault, try again later") from error
        except ReplyRefused as error:
            raise NotTaken(550, "5.1.1", f"{error.fault}: {error}") from error
        except Retryable as error:
            raise _later(error) from error

    async def take(self, raw: bytes, routes: Sequence[Route], peer: Peer, *, envelope: bool = True) -> str:
        """Store what a mail says, once for each recipient; a sentence about it. `envelope` False: its envelope sender is not known.

        Raises:
            NotTaken: with the reason; a code from 400 to 499 when it may be taken later.
        """
        try:
            mail = await asyncio.to_thread(parse, raw)
        except Unreadable as error:
            raise NotTaken(554, "5.6.0", f"unreadable: {error}") from error
        by_program = automatic.reason(mail, peer.sender if envelope else None)
        if mail.twice is not None and by_program is None:
            raise NotTaken(550, "5.6.0", f"unreadable: it has more than one {mail.twice}")
        shown = await self._proven(raw, mail, routes, peer, by_program)
        if by_program is None and any([route.intake is not None and await _says_nothing(mail, route) for route in routes]):
            raise NotTaken(550, "5.6.0", "empty: say what should change, in the subject or in the text")
        reach("mailer", "before_fact", "mail")
        try:
            with self._bus.telemetry.span("mail in", "server", messaging__message__body__size=len(raw)):
                for route in routes:
                    await self._store(await self._fact(raw, mail, route, by_program, shown))
        except (Retryable, Refusal) as error:
            raise _later(error) from error
        reach("mailer", "after_fact", "mail")
        return "taken"

    async def _proven(self, raw: bytes, mail: Mail, routes: Sequence[Route], peer: Peer, by_program: str | None) -> str:
        """How the sender is known. A report of a mail system is from nobody that we wrote to: the token in the address vouches for it."""
        if by_program is not None and all(route.grant for route in routes):
            return "the address's token"
        sender = mail.sender
        if sender is None:
            raise NotTaken(550, "5.7.1", "no_sender: From must hold exactly one address")
        for route in routes:
            if route.intake is not None and not route.intake.allows(sender):
                raise NotTaken(550, "5.7.1", "not_allowed: you may not open runs here")
            if route.grant is not None and by_program is None:
                _bound(route.grant, sender)
        if self._check is None:
            return "the address's token only"
        try:
            return await self._check.proven(raw, mail, peer)
        except Unproven as error:
            code, status = (451, "4.7.0") if error.temporary else (550, "5.7.26")
            raise NotTaken(code, status, f"unproven: {error}") from error

    async def _fact(self, raw: bytes, mail: Mail, route: Route, by_program: str | None, shown: str) -> MailReceived:
        message_id = mail.message_id or f"<{hashlib.sha256(raw).hexdigest()[:40]}@no-message-id>"
        run_id = route.grant.run_id if route.grant else run_of(message_id, route.address)
        limit = int(route.intake.attachments_mb * 1024 * 1024) if route.intake else attachments.MAX_BYTES
        files = await asyncio.to_thread(attachments.sort, () if by_program else mail.files, limit)
        bounced = automatic.bounce(mail) if by_program else None
        return MailReceived(
            id=hashlib.sha256(f"{message_id}\0{route.address}".encode("utf-8", "replace")).hexdigest()[:40],
            message_id=message_id,
            sender=(mail.sender or "")[:320],
            recipient=route.address,
            purpose="reply" if route.grant else "intake",
            run_id=run_id if route.grant else None,
            asked=route.grant.of if route.grant and route.grant.purpose == "decision" else None,
            repo=route.intake.repo if route.intake else None,
            base=route.intake.base if route.intake else None,
            subject=mail.words("Subject")[:998],
            text=(await asyncio.to_thread(_words, mail, route))[:65_536],
            in_reply_to=(bounced.message_id if bounced else next(iter(mail.references[-1:]), None)),
            references=mail.references,
            automatic=by_program[:200] if by_program else None,
            bounced=bounced.words[:1000] if bounced else None,
            authentication=shown[:500],
            attachments=await attachments.store(self._bus.ask, run_id, files.kept),
            dropped_attachments=files.dropped,
            received_at=datetime.now(UTC),
        )

    async def _store(self, fact: MailReceived) -> None:
        """Store a fact once. The same mail again is taken as well, since its sender may not have heard our yes."""
        if await self._bus.publish_once("HOOKS", f"hook.mail.{fact.id}", fact):
            log.info("mail %s: %s, %s", fact.id, fact.purpose, fact.automatic or fact.authentication)
            return
        before = await self._facts.of(fact.id)
        if before is not None and (before.sender, before.text, before.subject) != (fact.sender, fact.text, fact.subject):
            raise NotTaken(550, "5.7.1", "replayed: another mail with this Message-ID was taken before")


def _bound(grant: ReplyGrant, sender: str) -> None:
    try:
        grant.require_sender(sender)
    except ReplyRefused as error:
        raise NotTaken(550, "5.7.1", f"{error.fault}: {error}") from error


def _words(mail: Mail, route: Route) -> str:
    """What the mail says: all of it for a new issue, which may well be a forwarded mail; the writer's own words for a reply."""
    from services.mailer.html_text import html_to_text
    from services.mailer.reply_text import new_words

    text = mail.plain if mail.plain.strip() else html_to_text(mail.html)
    said = new_words(text) if route.grant else text.strip()
    return said.replace("\0", "").encode("utf-8", "replace").decode()


async def _says_nothing(mail: Mail, route: Route) -> bool:
    return not (mail.words("Subject").strip() or mail.files or await asyncio.to_thread(_words, mail, route))


def _later(error: Exception) -> NotTaken:
    log.warning("a mail is put off: %s", error)
    code = "4.3.0" if isinstance(error, NoAnswer) or not isinstance(error, Refusal) or error.retryable else "4.3.5"
    return NotTaken(451, code, "the mail cannot be stored now, try again later")
