"""Mail between services: what came in, what is to go out, and the questions to the mailer.

Error codes: `not_configured`, `bad_secret`, `too_large`, `not_found`, `missing`, `invalid`, `expired`, `wrong_sender`, `used`.
"""

from typing import ClassVar, Literal

from pydantic import Field

from libs.contracts.envelope import BlobRef, Identifier, Message, Question, Time
from libs.contracts.github import Integration, WebhookAnswer
from libs.contracts.team import Attachment

MAX_MAIL_BYTES = 25 * 1024 * 1024
MailKind = Literal["pr_ready", "needs_decision", "failed", "finished", "merged"]


class MailReceived(Message):
    """A mail that was accepted, cut to what is used. On `hook.mail.<digest of its Message-ID and recipient>`."""

    pattern: ClassVar[str] = "hook.mail.*"

    id: Identifier = Field(description="digest of Message-ID and recipient: the same mail has the same")
    message_id: str = Field(max_length=998)
    sender: str = Field(max_length=320, description="the address of From")
    recipient: str = Field(max_length=320)
    purpose: Literal["reply", "intake"]
    run_id: Identifier | None = Field(default=None, description="of the reply token")
    repo: str | None = Field(default=None, max_length=4096, description="of the intake address")
    subject: str = Field(default="", max_length=998)
    text: str = Field(default="", max_length=65_536, description="the new words: quotes and signature are cut")
    in_reply_to: str | None = Field(default=None, max_length=998)
    references: tuple[str, ...] = Field(default=(), max_length=50)
    automatic: str | None = Field(default=None, max_length=200, description="why it counts as automatic mail, which is never answered")
    asked: int | None = Field(default=None, description="sequence of the question that it answers, when that is what our mail was about")
    base: str | None = Field(default=None, max_length=255, description="branch of the intake address")
    bounced: str | None = Field(
        default=None, max_length=1000, description="the words of a report that the mail `in_reply_to` was not delivered"
    )
    authentication: str = Field(default="", max_length=500, description="how the sender was checked")
    attachments: tuple[Attachment, ...] = Field(default=(), max_length=20)
    dropped_attachments: tuple[str, ...] = Field(default=(), max_length=100, description="name and reason")
    received_at: Time


class OutgoingMail(Message):
    """A mail that must go out. On `mail.out.<id>`; its Message-ID follows from the event that it is about."""

    pattern: ClassVar[str] = "mail.out.*"

    id: Identifier
    run_id: Identifier
    of: int = Field(description="sequence of the event that it is about")
    kind: MailKind
    recipient: str = Field(max_length=320)
    reply_to: str = Field(default="", max_length=320)
    message_id: str = Field(max_length=998)
    in_reply_to: str | None = Field(default=None, max_length=998)
    references: tuple[str, ...] = Field(default=(), max_length=50)
    subject: str = Field(max_length=998)
    text: str = Field(max_length=100_000)
    html: str = Field(max_length=200_000)
    unsubscribe_url: str | None = Field(default=None, max_length=2048)
    made_at: Time


class ReceiveMail(Question[WebhookAnswer]):
    """One raw RFC 5322 message that a provider pushed over HTTP: as it is, gzipped, or as a blob when it is over 5 MB gzipped."""

    subject: ClassVar[str] = "q.mailer.webhook"
    answer: ClassVar[type[Message]] = WebhookAnswer
    askers: ClassVar[tuple[str, ...]] = ("gateway",)
    deadline_seconds: ClassVar[float] = 30.0

    authorization: str = Field(default="", max_length=1000, repr=False, description="the request's Authorization header")
    sender: str = Field(default="", max_length=320, description="the envelope's, when the provider names it")
    recipient: str = Field(default="", max_length=320, description="the envelope's, when the provider names it")
    body: bytes = b""
    encoding: Literal["identity", "gzip"] = "identity"
    blob: BlobRef | None = None


class DecisionView(Message):
    """What a link of a mail is about. `done` says what came of it, when it was acted on."""

    run_id: Identifier
    title: str = Field(max_length=1000)
    question: str = Field(default="", max_length=8000)
    action: Literal["approve", "deny", "unsubscribe"]
    recipient: str = Field(max_length=320)
    done: str | None = Field(default=None, max_length=1000)


class DecideByLink(Question[DecisionView]):
    """Look at a link of a mail, or act on it when `confirmed`."""

    subject: ClassVar[str] = "q.mailer.decide"
    answer: ClassVar[type[Message]] = DecisionView
    askers: ClassVar[tuple[str, ...]] = ("gateway",)

    token: str = Field(min_length=1, max_length=512, repr=False)
    confirmed: bool = False


class DescribeMailer(Question[Integration]):
    """Is mail set up, and does it work both ways?"""

    subject: ClassVar[str] = "q.mailer.describe"
    answer: ClassVar[type[Message]] = Integration
    askers: ClassVar[tuple[str, ...]] = ("gateway",)
    deadline_seconds: ClassVar[float] = 20.0
