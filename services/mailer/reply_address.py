"""Reply addresses: `agent+<token>@domain`, each bound to one run, purpose and recipient, valid for a while (RFC 5233 subaddress).

A local part holds 64 octets (RFC 5321, 4.5.3.1.1), a run's id alone up to 64: so the token is one of `grants`, and what it is bound to
stands in a row that its code covers.
"""

import hmac
from datetime import UTC, datetime, timedelta
from typing import Literal

from pydantic import Field

from libs.bus import Kv
from libs.contracts.envelope import Identifier, Message, Time
from services.mailer.grants import Grants

LOCAL = "agent"
Purpose = Literal["reply", "decision"]
ReplyFault = Literal["missing", "invalid", "expired", "wrong_sender"]
WORDS: dict[ReplyFault, str] = {
    "missing": "this address takes only replies to mails of its own",
    "invalid": "this reply address was never given out",
    "expired": "this reply address is no longer valid",
    "wrong_sender": "this reply address belongs to another sender",
}


class ReplyRefused(Exception):
    """Mail to an address is not taken; `fault` says why."""

    def __init__(self, fault: ReplyFault) -> None:
        super().__init__(WORDS[fault])
        self.fault: ReplyFault = fault


class ReplyGrant(Message):
    """What a reply address was given out for. `of`: sequence of the event that the mail was about; of the question for a decision."""

    run_id: Identifier
    purpose: Purpose
    of: int = Field(ge=0)
    recipient: str = Field(max_length=320)
    expires_at: Time

    def require_sender(self, sender: str) -> None:
        """Raises ReplyRefused `wrong_sender` unless `sender` is who got the mail."""
        if not hmac.compare_digest(_octets(plain(sender)), _octets(self.recipient)):
            raise ReplyRefused("wrong_sender")


def plain(address: str) -> str:
    """An address as it is compared: trimmed, without angle brackets, in small letters."""
    return address.strip().removeprefix("<").removesuffix(">").lower()


class ReplyAddresses:
    """Gives out reply addresses of `domain` and knows them again."""

    def __init__(self, kv: Kv, secret: bytes, domain: str, days: float) -> None:
        self._grants = Grants(kv, secret, "reply")
        self._domain = domain.lower()
        self._valid_for = timedelta(days=days)

    def is_own(self, address: str) -> bool:
        """Whether `address` is `agent@domain` or `agent+…@domain`."""
        local, _, domain = plain(address).rpartition("@")
        return domain == self._domain and local.partition("+")[0] == LOCAL

    async def give(self, run_id: str, purpose: Purpose, of: int, recipient: str, now: datetime) -> str:
        """The address of `recipient` for a run; the same for the same arguments on the same day, since it is valid until a midnight UTC."""
        day = (now.astimezone(UTC) + self._valid_for + timedelta(days=1)).replace(hour=0, minute=0, second=0, microsecond=0)
        grant = ReplyGrant(run_id=run_id, purpose=purpose, of=of, recipient=plain(recipient), expires_at=day)
        return f"{LOCAL}+{await self._grants.give(grant.model_dump_json().encode())}@{self._domain}"

    async def open(self, address: str, now: datetime) -> ReplyGrant:
        """What `address` was given out for; who sent is still to be checked by `require_sender`.

        Raises:
            ReplyRefused: `missing`, `invalid` or `expired`.
        """
        local = plain(address).rpartition("@")[0]
        if not self.is_own(address) or "+" not in local:
            raise ReplyRefused("missing")
        row = await self._grants.open(local.partition("+")[2])
        if row is None:
            raise ReplyRefused("invalid")
        grant = ReplyGrant.model_validate_json(row)
        if now >= grant.expires_at:
            raise ReplyRefused("expired")
        return grant


def _octets(text: str) -> bytes:
    return text.encode("utf-8", "backslashreplace")  # headers of strangers hold halves of characters
