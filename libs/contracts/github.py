"""The GitHub App between services: what a webhook said, and the questions to the forge.

Error codes: `not_configured`, `not_installed`, `bad_signature`, `bad_payload`, `too_large`, `not_found`, `unreachable` (retryable).
"""

from typing import ClassVar, Literal

from pydantic import Field

from libs.contracts.envelope import BlobRef, Identifier, Message, Question, Time

MAX_WEBHOOK_BYTES = 25 * 1024 * 1024


class GitHubDelivery(Message):
    """A webhook delivery whose signature was right, cut to what is used. On `hook.github.<delivery>`."""

    pattern: ClassVar[str] = "hook.github.*"

    delivery: Identifier = Field(description="GitHub's GUID of the delivery; a redelivery has the same")
    event: str = Field(max_length=100)
    action: str = Field(default="", max_length=100)
    repository: str = Field(default="", max_length=300, description="owner/name")
    repository_id: int | None = None
    default_branch: str = Field(default="", max_length=255)
    clone_url: str = Field(default="", max_length=2048)
    private: bool = False
    archived: bool = False
    installation_id: int | None = None
    sender: str = Field(default="", max_length=100)
    sender_type: str = Field(default="", max_length=40)
    number: int | None = Field(default=None, description="of the issue or the pull request")
    is_pull: bool = False
    title: str = Field(default="", max_length=1000)
    body: str = Field(default="", max_length=65_536, description="of the issue")
    author: str = Field(default="", max_length=100, description="who wrote the issue or the pull request")
    label: str = Field(default="", max_length=200)
    assignee: str = Field(default="", max_length=100)
    comment_id: int | None = Field(default=None, description="of the comment or the review")
    comment: str = Field(default="", max_length=65_536)
    comment_author: str = Field(default="", max_length=100)
    review_id: int | None = Field(default=None, description="the review that a review, or a comment of one, belongs to")
    association: str = Field(default="", max_length=40)
    url: str = Field(default="", max_length=2048)
    path: str = Field(default="", max_length=4096, description="of a review comment")
    line: int | None = None
    review_state: str = Field(default="", max_length=40)
    sha: str = Field(default="", max_length=64)
    head_ref: str = Field(default="", max_length=255)
    head_repository: str = Field(default="", max_length=300)
    conclusion: str = Field(default="", max_length=40)
    check_name: str = Field(default="", max_length=300)
    pulls: tuple[int, ...] = Field(default=(), max_length=20, description="the pull requests that a check belongs to")
    merged: bool = False
    merge_sha: str = Field(default="", max_length=64)
    payload: dict[str, str | int | bool | None] = Field(default_factory=dict, description="scalars of a repository_dispatch")
    received_at: Time


class WebhookAnswer(Message):
    """What GitHub is told: an HTTP status and a sentence."""

    status: int = Field(ge=200, le=599)
    detail: str = Field(default="", max_length=1000)


class ReceiveWebhook(Question[WebhookAnswer]):
    """One HTTP request of GitHub, its body raw: as it is, gzipped, or as a blob when it is over 5 MB gzipped."""

    subject: ClassVar[str] = "q.forge.webhook"
    answer: ClassVar[type[Message]] = WebhookAnswer
    askers: ClassVar[tuple[str, ...]] = ("gateway",)
    deadline_seconds: ClassVar[float] = 10.0

    headers: dict[str, str] = Field(description="in small letters; x-github-*, x-hub-signature-256, content-type")
    body: bytes = b""
    encoding: Literal["identity", "gzip"] = "identity"
    blob: BlobRef | None = None


class Credential(Message):
    """A short-lived credential for one repository, for git's HTTP basic authentication."""

    username: str
    token: str = Field(repr=False)
    expires_at: Time


class RepositoryCredential(Question[Credential]):
    """A token that may read (contents: read) one repository of an installation; refused with `not_installed` for any other address."""

    subject: ClassVar[str] = "q.forge.credential"
    answer: ClassVar[type[Message]] = Credential
    askers: ClassVar[tuple[str, ...]] = ("artifact",)

    url: str = Field(max_length=4096)


class IntegrationCheck(Message):
    """One thing that an administrator set up: whether it works, and what to do when it does not."""

    name: str = Field(max_length=200)
    ok: bool
    detail: str = Field(default="", max_length=2000)
    fix: str = Field(default="", max_length=2000)


class Integration(Message):
    """An integration's set-up; `configured` False: nobody set it up, which is no fault."""

    configured: bool
    summary: str = Field(default="", max_length=1000)
    checks: tuple[IntegrationCheck, ...] = ()


class DescribeForge(Question[Integration]):
    """Is the GitHub App set up, and does it work?"""

    subject: ClassVar[str] = "q.forge.describe"
    answer: ClassVar[type[Message]] = Integration
    askers: ClassVar[tuple[str, ...]] = ("gateway",)
    deadline_seconds: ClassVar[float] = 20.0
