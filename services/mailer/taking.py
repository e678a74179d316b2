"""The wiring of mail that comes in: the SMTP door, the HTTP door, and the consumer of what they kept."""

import json

from pydantic import ValidationError

from libs.bus import Asker, Bus, Delivery, Kv, Retryable, Service
from libs.bus.connection import status_of
from libs.contracts.github import WebhookAnswer
from libs.contracts.mail import MailReceived, ReceiveMail
from services.mailer import smtp_door
from services.mailer.authentication import SenderCheck
from services.mailer.inbound import Inbound
from services.mailer.intake import FaultyIntake, Intakes
from services.mailer.replies import Reader
from services.mailer.reply_address import ReplyAddresses
from services.mailer.settings import MailerSettings
from services.mailer.webhook import Pushed

NOT_SET = "no address takes mail: set AGENT_CODER_MAIL_DOMAIN for replies, or write intake addresses into mail.toml (docs/mail.md)"


class StoredFacts:
    """The mails that the stream HOOKS holds."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    async def of(self, id: str) -> MailReceived | None:  # noqa: A002 - the contract's own word
        """The stored fact of a mail. Raises Retryable."""
        request = json.dumps({"last_by_subj": f"hook.mail.{id}"}).encode()
        reply = await self._bus.connection.call("$JS.API.DIRECT.GET.HOOKS", request)
        if status_of(reply) not in (None, "404"):
            raise Retryable(f"HOOKS cannot be read: {status_of(reply)}")
        try:
            return MailReceived.model_validate_json(reply.data) if status_of(reply) is None else None
        except ValidationError:
            return None


def take_in(service: Service, settings: MailerSettings) -> None:
    """Register what takes mail in. Nothing listens unless `mail_listen` is set."""
    intakes, check = Intakes(settings.home), sender_check(settings)

    def inbound() -> Inbound:
        addresses = None
        if settings.mail_domain is not None:
            kv = Kv(service.bus.connection, "MAIL")
            addresses = ReplyAddresses(kv, settings.reply_secret, settings.mail_domain, settings.mail_reply_days)
        return Inbound(service.bus, StoredFacts(service.bus), addresses, intakes, check)

    @service.consume("hooks", concurrency=8)
    async def hooks(delivery: Delivery) -> None:
        await Reader(service.bus)(delivery)

    @service.answer(ReceiveMail, concurrency=8)
    async def receive(question: ReceiveMail, asker: Asker) -> WebhookAnswer:
        not_set = None if settings.mail_domain or has_intakes(intakes) else NOT_SET
        return await Pushed(service.bus, inbound(), settings.webhook_secret, settings.mail_max_bytes, not_set)(question, asker)

    if settings.mail_listen is not None:

        @service.background
        async def listen() -> None:
            await smtp_door.listen(inbound(), settings)


def has_intakes(intakes: Intakes) -> bool:
    """Whether an intake address is set up, or is meant to be and has a fault."""
    try:
        return bool(intakes.all())
    except FaultyIntake:
        return True


def sender_check(settings: MailerSettings) -> SenderCheck | None:
    """How senders are proven; None when the token in the address is enough."""
    if settings.mail_policy == "token_only":
        return None
    resolver = None
    if settings.mail_dns is not None:
        import dns.resolver

        host, _, port = settings.mail_dns.rpartition(":")
        resolver = dns.resolver.Resolver(configure=False)
        resolver.nameservers, resolver.port = [host.strip("[]")], int(port)
    return SenderCheck(settings.mail_trusted_relay, tuple(settings.mail_relay_networks.split()), resolver)
