"""The composition root of the mailer."""

import asyncio
from email.utils import parseaddr

from libs.bus import Asker, Delivery, Kv, Service
from libs.contracts.github import Integration
from libs.contracts.mail import DecideByLink, DecisionView, DescribeMailer
from libs.settings import BusSettings
from services.mailer.decisions import Decider, DecisionLinks
from services.mailer.describe import Describer, Dns
from services.mailer.dkim_key import DkimKey
from services.mailer.notify import Notifier
from services.mailer.quota import Quota
from services.mailer.reply_address import ReplyAddresses
from services.mailer.sending import Sender
from services.mailer.settings import MailerSettings
from services.mailer.taking import take_in


def build(settings: MailerSettings | None = None, dns: Dns | None = None) -> Service:
    """The service, wired."""
    settings = settings or MailerSettings()
    service = Service("mailer")
    out(service, settings, dns or Dns())
    take_in(service, settings)
    return service


def out(service: Service, settings: MailerSettings, dns: Dns) -> None:
    """Mail on its way out: who is told, sending, the links of mails, and whether all of it works."""
    key = dkim_key(settings)
    describer = Describer(settings, key, dns)

    def kv() -> Kv:
        return Kv(service.bus.connection, "MAIL")

    def quota() -> Quota:
        return Quota(kv(), per_run=settings.mail_per_run, per_recipient_hour=settings.mail_per_recipient_hour)

    def links() -> DecisionLinks:
        return DecisionLinks(kv(), settings.reply_secret, settings.public_url)

    @service.consume("notify", concurrency=8)
    async def notify(delivery: Delivery) -> None:
        addresses = ReplyAddresses(kv(), settings.reply_secret, settings.mail_domain or "", settings.mail_reply_days)
        await Notifier(service.bus, settings, quota(), addresses, links())(delivery)

    @service.consume("send", concurrency=16)
    async def send(delivery: Delivery) -> None:
        await Sender(service.bus, settings, quota(), key.sign if key else None)(delivery)

    @service.answer(DecideByLink)
    async def decide(question: DecideByLink, asker: Asker) -> DecisionView:
        return await Decider(service.bus, links(), quota())(question, asker)

    @service.answer(DescribeMailer, concurrency=4)
    async def describe(question: DescribeMailer, asker: Asker) -> Integration:
        return await describer(question, asker)


def dkim_key(settings: MailerSettings) -> DkimKey | None:
    """The key that signs what goes out, None when none is set."""
    if settings.mail_dkim_key_file is None or settings.mail_dkim_selector is None:
        return None
    return DkimKey(settings.mail_dkim_key_file, settings.mail_dkim_selector, parseaddr(settings.from_)[1].rpartition("@")[2])


def main() -> None:
    """Run until stopped."""
    asyncio.run(build().run(BusSettings()))


if __name__ == "__main__":
    main()
