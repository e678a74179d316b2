"""An `OutgoingMail` as the bytes that go over SMTP: headers that cannot be injected into, text and HTML in 7 bits, a DKIM signature."""

import re
from collections.abc import Callable
from email.headerregistry import Address
from email.message import EmailMessage
from email.policy import SMTP, EmailPolicy
from email.utils import format_datetime, parseaddr

from libs.contracts.mail import OutgoingMail
from services.mailer.templates import one_line

Sign = Callable[[bytes], bytes]
_VERBATIM = frozenset({"message-id", "in-reply-to", "references", "reply-to", "to", "list-unsubscribe"})
_ID = re.compile(r"<[!-;=?-~]{1,900}>")
_LOCAL = re.compile(r"[A-Za-z0-9.!#$%&'*+/=?^_`{|}~\u00a1-\U0010ffff-]{1,64}")
_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", re.IGNORECASE)


class BadAddress(ValueError):
    """This is no mail address that mail can be sent to."""


class _Policy(EmailPolicy):
    """Ids and addresses are never folded within and never encoded: each stands on a line of its own (RFC 5322, 2.2.3)."""

    def fold(self, name: str, value: str) -> str:
        if name.lower() in _VERBATIM:
            return f"{name}: {(self.linesep + ' ').join(str(value).split())}{self.linesep}"
        return str(super().fold(name, value))

    def fold_binary(self, name: str, value: str) -> bytes:
        if name.lower() in _VERBATIM:
            return self.fold(name, value).encode("utf-8" if self.utf8 else "ascii")
        return bytes(super().fold_binary(name, value))


def deliverable(address: str) -> str:
    """`address` as it is used on the wire, the domain in ASCII (RFC 5890).

    Raises:
        BadAddress: it is none, or one that headers or an SMTP command could be smuggled in with.
    """
    local, _, domain = address.strip().rpartition("@")
    try:
        ascii_domain = domain.encode("idna").decode() if domain else ""
    except UnicodeError as error:
        raise BadAddress(f"{one_line(address, 100)!r} is no mail address: its domain is none") from error
    labels = ascii_domain.split(".")
    good = len(ascii_domain) <= 253 and all(_LABEL.fullmatch(label) for label in labels)
    if not good or not _LOCAL.fullmatch(local) or any(part == "" for part in local.split(".")):
        raise BadAddress(f"{one_line(address, 100)!r} is no mail address")
    return f"{local}@{ascii_domain}"


def message_ids(*texts: str | None) -> tuple[str, ...]:
    """The Message-IDs in `texts`, each once, in order; anything else is left out."""
    return tuple(dict.fromkeys(found for text in texts if text for found in _ID.findall(text)))


def build(mail: OutgoingMail, sender: str, sign: Sign | None = None) -> bytes:
    """The message with CRLF line ends. `sender` is the From header.

    Raises:
        BadAddress: the recipient or the sender is no address.
        ValueError: a header has a line end in it.
    """
    to = deliverable(mail.recipient)
    message = EmailMessage(policy=_Policy(linesep="\r\n", utf8=not to.isascii(), max_line_length=SMTP.max_line_length))
    for name, value in _headers(mail, sender, to).items():
        if re.search(r"[\r\n\x00]", value):
            raise ValueError(f"the header {name} has a line end in it")
        message[name] = value
    message.set_content(mail.text, cte=_encoding(mail.text))
    message.add_alternative(mail.html, subtype="html", cte=_encoding(mail.html))
    raw = message.as_bytes()
    return sign(raw) if sign else raw


def _headers(mail: OutgoingMail, sender: str, to: str) -> dict[str, str]:
    references = message_ids(*mail.references, mail.in_reply_to)
    https = (mail.unsubscribe_url or "").startswith("https://")  # RFC 8058 wants it for one click
    optional = {
        "In-Reply-To": mail.in_reply_to,
        "References": " ".join(references),
        "Reply-To": mail.reply_to,
        "List-Unsubscribe": f"<{mail.unsubscribe_url}>" if mail.unsubscribe_url else "",
        "List-Unsubscribe-Post": "List-Unsubscribe=One-Click" if https else "",
    }
    return {
        "From": from_header(sender),
        "To": to,
        "Subject": mail.subject,
        "Date": format_datetime(mail.made_at),
        "Message-ID": mail.message_id,
        "Auto-Submitted": "auto-generated",  # RFC 3834
        "X-Auto-Response-Suppress": "All",
        **{name: value for name, value in optional.items() if value},
    }


def from_header(sender: str) -> str:
    """The From header of `agent-coder <agent@example.org>`, or of the address alone. Raises BadAddress."""
    name, address = parseaddr(sender)
    local, _, domain = deliverable(address).rpartition("@")
    return str(Address(name, local, domain))


def _encoding(text: str) -> str:
    """The shorter of the two 7-bit encodings, so that no relay breaks a signature by encoding anew (RFC 6376, 5.3)."""
    return "quoted-printable" if sum(not c.isascii() for c in text) * 6 < len(text) else "base64"
