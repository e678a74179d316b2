"""The events of a run that is out with the team: what came back to it, who was told, and how it was merged.

All but `follow_up`, `merge_approved`, `checks_passed` and `merged` are inner records: they decide nothing by themselves.
"""

from typing import ClassVar, Literal

from pydantic import Field

from libs.contracts.envelope import BlobRef, Message, Sha
from libs.contracts.run import MergeMethod, RunEvent
from libs.contracts.work import Inner

TEXT = 16_000
ReplyAction = Literal["comment", "message", "approve", "deny", "retry", "cancel"]


class Attachment(Message):
    """A file that came with a mail, kept in the artifact store."""

    name: str = Field(min_length=1, max_length=255)
    media_type: str = Field(max_length=255)
    blob: BlobRef


class RunFollowedUp(RunEvent):
    """Somebody, or a failed check, asks for more on the same branch: the planner makes the next attempt of it."""

    subject: ClassVar[str] = "run.{run_id}.follow_up"
    type: ClassVar[str] = "run.follow_up"
    producers: ClassVar[tuple[str, ...]] = ("forge", "mailer", "gateway")

    by: str = Field(max_length=320)
    source: Literal["review", "review_comment", "check", "comment", "mail", "http"]
    feedback: str = Field(min_length=1, max_length=TEXT)
    url: str | None = Field(default=None, max_length=2048)
    key: str = Field(default="", max_length=300, description="what it is known by where it came from: the same key asks for the same")


class RunCommented(RunEvent, Inner):
    """Words for the run that came while it was at work, or without a pull request to put them on.

    The next prompt of the run shows them; the ones that no editing step has seen when the change is out become a follow-up.
    """

    subject: ClassVar[str] = "run.{run_id}.commented"
    type: ClassVar[str] = "run.commented"
    producers: ClassVar[tuple[str, ...]] = ("forge", "mailer", "gateway")

    by: str = Field(max_length=320)
    source: Literal["review", "review_comment", "check", "comment", "mail", "http"]
    text: str = Field(min_length=1, max_length=TEXT)
    url: str | None = Field(default=None, max_length=2048)
    key: str = Field(max_length=300, description="what it is known by where it came from: the same key is the same comment")


class RunNotified(RunEvent, Inner):
    """Somebody was told by mail, or could not be."""

    subject: ClassVar[str] = "run.{run_id}.notified"
    type: ClassVar[str] = "run.notified"
    producers: ClassVar[tuple[str, ...]] = ("mailer",)

    kind: Literal["pr_ready", "needs_decision", "failed", "finished", "merged"]
    of: int = Field(description="sequence of the event that the mail is about")
    recipient: str = Field(max_length=320)
    message_id: str = Field(max_length=998)
    outcome: Literal["sent", "refused", "gave_up", "suppressed"]
    detail: str = Field(default="", max_length=2000, description="the mail server's words, or why no mail went out")


class ReplyReceived(RunEvent, Inner):
    """A mail that answers one of ours was taken."""

    subject: ClassVar[str] = "run.{run_id}.reply_received"
    type: ClassVar[str] = "run.reply_received"
    producers: ClassVar[tuple[str, ...]] = ("mailer",)

    sender: str = Field(max_length=320)
    message_id: str = Field(max_length=998)
    action: ReplyAction
    text: str = Field(default="", max_length=TEXT)
    attachments: tuple[Attachment, ...] = Field(default=(), max_length=20)


class MergeApproved(RunEvent):
    """A person with write permission, who is not the one who asked, approved this very commit."""

    subject: ClassVar[str] = "run.{run_id}.merge_approved"
    type: ClassVar[str] = "run.merge_approved"
    producers: ClassVar[tuple[str, ...]] = ("forge",)

    by: str = Field(max_length=320)
    sha: Sha
    url: str | None = Field(default=None, max_length=2048)


class MergeWithdrawn(RunEvent, Inner):
    """The approval of a person was dismissed, or the person asked for changes since."""

    subject: ClassVar[str] = "run.{run_id}.merge_withdrawn"
    type: ClassVar[str] = "run.merge_withdrawn"
    producers: ClassVar[tuple[str, ...]] = ("forge",)

    by: str = Field(max_length=320)


class ChecksPassed(RunEvent):
    """The repository's own checks are green for this commit."""

    subject: ClassVar[str] = "run.{run_id}.checks_passed"
    type: ClassVar[str] = "run.checks_passed"
    producers: ClassVar[tuple[str, ...]] = ("forge",)

    sha: Sha


class RunMerged(RunEvent):
    """The change is part of the base branch."""

    subject: ClassVar[str] = "run.{run_id}.merged"
    type: ClassVar[str] = "run.merged"
    producers: ClassVar[tuple[str, ...]] = ("forge",)

    sha: Sha = Field(description="the commit that was approved")
    merge_sha: Sha | None = None
    method: MergeMethod | None = Field(default=None, description="absent when a person merged it by hand")
    by: tuple[str, ...] = Field(default=(), max_length=20, description="who approved, or who merged by hand")


class RunClosed(RunEvent, Inner):
    """The pull request was closed without a merge."""

    subject: ClassVar[str] = "run.{run_id}.closed"
    type: ClassVar[str] = "run.closed"
    producers: ClassVar[tuple[str, ...]] = ("forge",)

    by: str = Field(max_length=320)
