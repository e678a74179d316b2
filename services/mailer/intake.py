"""Mail that opens a run: the addresses that take it, from `mail.toml` in the home folder, and the issue that a mail becomes.

The file is read again when it changes. While it is faulty nothing is taken and nothing is lost: senders' servers are told to come later.
"""

import logging
import tomllib
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from libs.contracts.ids import derived_id
from libs.contracts.mail import MailReceived
from libs.contracts.run import Issue, MailThread, RunOpened
from services.mailer.reply_address import plain

log = logging.getLogger(__name__)
FILE = "mail.toml"
_Address = Annotated[str, StringConstraints(pattern=r"^[^@\s<>]+@[^@\s<>]+$", to_lower=True, max_length=320)]


class Intake(BaseModel):
    """An address that opens runs on one repository for those who may: an address, or `*@domain` for everybody there."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    address: _Address
    repo: str = Field(min_length=1, max_length=4096)
    base: str | None = Field(default=None, max_length=255)
    allow: tuple[_Address, ...] = Field(min_length=1)
    attachments_mb: float = Field(default=10, ge=0, le=10)

    def allows(self, sender: str) -> bool:
        """Whether `sender` may open a run."""
        return any(a == sender or (a.startswith("*@") and a[1:] == sender[sender.rfind("@") :]) for a in self.allow)


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid")

    intake: tuple[Intake, ...] = ()


class FaultyIntake(Exception):
    """`mail.toml` cannot be used; the text names each fault."""


class Intakes:
    """The intake addresses of one installation."""

    def __init__(self, home: Path) -> None:
        self.path = home / FILE
        self._read_at: float | None = None
        self._found: dict[str, Intake] = {}
        self._fault = ""

    def all(self) -> dict[str, Intake]:
        """The intakes by address. Raises FaultyIntake."""
        changed = self.path.stat().st_mtime if self.path.is_file() else 0.0
        if changed != self._read_at:
            self._read_at, self._found, self._fault = changed, {}, ""
            try:
                self._found = self._read() if changed else {}
            except FaultyIntake as error:
                self._fault = str(error)
                log.error("%s", error)
        if self._fault:
            raise FaultyIntake(self._fault)
        return self._found

    def at(self, address: str) -> Intake | None:
        """The intake of an address. Raises FaultyIntake."""
        return self.all().get(plain(address))

    def _read(self) -> dict[str, Intake]:
        try:
            found = _File.model_validate(tomllib.loads(self.path.read_text("utf-8"))).intake
        except ValidationError as error:
            found_faults = error.errors(include_url=False, include_input=False)
            faults = "; ".join(f"{'.'.join(str(part) for part in fault['loc'])}: {fault['msg']}" for fault in found_faults)
            raise FaultyIntake(f"{self.path}: {faults}") from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
            raise FaultyIntake(f"{self.path} cannot be read: {error}") from error
        by_address = {intake.address: intake for intake in found}
        if len(by_address) != len(found):
            raise FaultyIntake(f"{self.path}: an address stands there twice")
        return by_address


def run_of(message_id: str, recipient: str) -> str:
    """The id of the run that a mail opens."""
    return derived_id("mail", message_id, plain(recipient))


def opening(fact: MailReceived) -> RunOpened:
    """The event that a mail to an intake address becomes. Pure."""
    assert fact.repo is not None
    run_id = run_of(fact.message_id, fact.recipient)
    files = [f"- {a.name} ({a.media_type}, {a.blob.size} bytes, sha256 {a.blob.sha256})" for a in fact.attachments]
    files += [f"- {dropped} (not kept)" for dropped in fact.dropped_attachments]
    listed = "\n\nAttached:\n" + "\n".join(files) if files else ""
    title = fact.subject.strip() or fact.text.strip().partition("\n")[0] or "(no subject)"
    return RunOpened(
        run_id=run_id,
        issue=Issue(id=f"mail-{run_id[:8].lower()}", title=title[:1000], body=fact.text[: 65_536 - len(listed)] + listed),
        repo=fact.repo,
        base=fact.base,
        reporter_email=fact.sender if len(fact.sender) <= 254 else None,
        requested_by=f"mail:{fact.sender}",
        origin="mail",
        mail=MailThread(message_id=fact.message_id, references=fact.references, subject=fact.subject),
        opened_at=fact.received_at,
    )
