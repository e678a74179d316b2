"""What HTTP requests and answers look like. Requests refuse fields that they do not know; answers are the contract of `/openapi.json`."""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from libs.contracts.dead import DeadLetter
from libs.contracts.envelope import Time, Usage
from libs.contracts.fold import Failure, PendingApproval, RunStatus, Thought
from libs.contracts.github import Integration
from libs.contracts.inbound import SolveIssue
from libs.contracts.run import ChangedFile, CommandRun, Issue, Plan, Policy, RunPublished, RunRejected, Verdict
from libs.contracts.team import MergeApproved, ReplyReceived, RunCommented, RunFollowedUp, RunMerged, RunNotified
from libs.contracts.work import StepName
from services.gateway.domain import branch_name, not_blank, one_line, plain_text, repository_source

_CONTROL = r"\x00-\x1f\x7f-\x9f\u2028\u2029"
Line = Annotated[str, AfterValidator(one_line), Field(json_schema_extra={"pattern": f"^[^{_CONTROL}]*$"})]
Words = Annotated[
    str,
    AfterValidator(one_line),
    AfterValidator(not_blank),
    Field(json_schema_extra={"pattern": rf"^[^{_CONTROL}]*[^{_CONTROL}\s][^{_CONTROL}]*$"}),
]
Text = Annotated[str, AfterValidator(plain_text), Field(json_schema_extra={"pattern": r"^[^\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]*$"})]


class Request(BaseModel):
    """A request body: an unknown field is refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class PolicyRequest(Policy):
    """What the run may do by itself and how much it may use."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: Annotated[str, AfterValidator(one_line)] | None = Field(default=None, max_length=200)
    setup_commands: tuple[Annotated[str, AfterValidator(plain_text)], ...] | None = Field(default=None, max_length=20)
    test_commands: tuple[Annotated[str, AfterValidator(plain_text)], ...] | None = Field(default=None, max_length=20)


class SolveRequest(Request):
    """An issue to solve."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"title": "README spells Worker as Wrokr", "body": "Fix line 7 and add a test.", "repo": "https://example.org/team/app.git"}
            ]
        }
    )

    title: Words = Field(min_length=1, max_length=1000)
    body: Text = Field(default="", max_length=65_536)
    repo: Annotated[str, AfterValidator(repository_source)] = Field(
        min_length=1, max_length=4096, description="a URL, an absolute path on the server, or the name of an artifact repository"
    )
    base: Annotated[str, AfterValidator(branch_name)] | None = Field(default=None, min_length=1, max_length=255)
    reporter_email: Line | None = Field(default=None, max_length=254, pattern=r"^[^@\s<>,;]+@[^@\s<>,;]+$")
    policy: PolicyRequest = PolicyRequest()

    def command(self, issue_id: str) -> SolveIssue:
        """The command that this request gives."""
        issue = Issue(id=issue_id, title=self.title, body=self.body)
        policy = Policy.model_validate(self.policy.model_dump())
        return SolveIssue(issue=issue, repo=self.repo, base=self.base, reporter_email=self.reporter_email, policy=policy)


class Links(BaseModel):
    """Where the parts of a run are."""

    status_url: str
    events_url: str
    diff_url: str
    trace_url: str


class Accepted(Links):
    """The run is opened, or was opened before by the same request."""

    instanceId: str = Field(description="the run's id", examples=["01JDSPVQ6T0000000000000000"])  # noqa: N815 - name of the public API
    status: RunStatus = "queued"


class ArtifactCommit(BaseModel):
    """The commit that holds the change."""

    sha: str
    ref: str = Field(examples=["refs/heads/fix/issue-42"])


class Result(BaseModel):
    """What came out of a run that has ended."""

    ok: bool
    attempts: int
    changedFiles: list[str] = []  # noqa: N815 - name of the public API
    artifactCommit: ArtifactCommit | None = None  # noqa: N815 - name of the public API
    testSummary: str = ""  # noqa: N815 - name of the public API


class Change(BaseModel):
    """The commit on its branch, and how to get it."""

    repository: str
    branch: str
    sha: str
    message: str
    clone_url: str = Field(description="POST /api/repos/{name}/token makes a password for it")


class RunView(BaseModel):
    """Everything about a run."""

    instanceId: str  # noqa: N815 - name of the public API
    status: RunStatus
    attempt: int
    issue: Issue
    repo: str
    base: str | None = None
    policy: Policy
    requested_by: str
    created_at: Time
    updated_at: Time
    sequence: int = Field(description="journal sequence of the last event")
    plan: Plan | None = None
    base_branch: str | None = None
    base_commit: str | None = None
    changed_files: list[ChangedFile] = []
    commands: list[CommandRun] = []
    verdict: Verdict | None = None
    rejections: list[RunRejected] = Field(default=[], description="what was wrong with the earlier attempts")
    commit: Change | None = None
    pull_request_url: str | None = None
    published: RunPublished | None = Field(default=None, description="the pull request")
    merged: RunMerged | None = None
    closed: bool = Field(default=False, description="the pull request was closed without a merge")
    merge_approvals: list[MergeApproved] = Field(default=[], description="who approved which commit")
    follow_ups: list[RunFollowedUp] = Field(default=[], description="what was asked for after the run was over")
    comments: list[RunCommented] = []
    notifications: list[RunNotified] = Field(default=[], description="who was told by mail, or why not")
    replies: list[ReplyReceived] = Field(default=[], description="mails that answered ours")
    usage: Usage
    why: str = Field(default="", description="why the run is where it is")
    pending: PendingApproval | None = Field(default=None, description="the question that waits for approve or deny")
    failures: list[Failure] = Field(default=[], description="tries of steps that failed and were made again")
    thoughts: list[Thought] = []
    dead_letter: int | None = None
    result: Result | None = None
    links: Links


class DecisionRequest(Request):
    """A person's word."""

    comment: Text = Field(default="", max_length=4000)
    by: Words | None = Field(default=None, max_length=200, description="a signature for the owner's token; others sign as themselves")


class Decided(BaseModel):
    """The decision is on the journal."""

    instanceId: str  # noqa: N815 - name of the public API
    sequence: int
    type: str = Field(examples=["run.cancelled"])
    step: StepName | None = None


class EventView(BaseModel):
    """One event of a journal; `data` is described by its schema in `proto/`."""

    sequence: int
    at: Time
    type: str = Field(examples=["run.planned"])
    causation: int | None = None
    data: dict[str, Any]


class EventPage(BaseModel):
    """Events in order; `next_after` when there are more."""

    events: list[EventView]
    next_after: int | None = None
    ended: bool = Field(description="whether nothing follows unless a person asks for it")


class DiffView(BaseModel):
    """The change against the base commit."""

    base: str
    head: str
    diff: str
    changed_files: list[ChangedFile]
    truncated: bool = False


class EventAccepted(BaseModel):
    """A CloudEvent that is stored; `instanceId` when it asks for a run."""

    id: str
    source: str
    sequence: int
    instanceId: str | None = None  # noqa: N815 - name of the public API
    status_url: str | None = None


class EventsAccepted(BaseModel):
    """The stored CloudEvents, in the order sent."""

    events: list[EventAccepted]


class RepositoryRequest(Request):
    """A repository to make."""

    name: Words = Field(max_length=200, examples=["team/app"])


class RepositoryView(BaseModel):
    """One repository of the store."""

    name: str
    source: str | None = None
    default_branch: str | None = None
    branches: list[str] = []
    clone_url: str


class RepositoryPage(BaseModel):
    """Repositories by name; `next_cursor` when there are more."""

    repositories: list[RepositoryView]
    next_cursor: str | None = None


class TokenRequest(Request):
    """A short-lived token for one repository."""

    scope: Literal["read", "write"] = "read"
    expires_in_seconds: int = Field(default=3600, ge=60, le=86_400)


class TokenView(BaseModel):
    """The token is the password of basic authentication; any user name."""

    token: str
    repository: str
    scope: Literal["read", "write"]
    expires_at: Time
    clone_url: str


class DeadLetters(BaseModel):
    """Dead letters, oldest first; `next_after` when there are more."""

    letters: list[DeadLetter]
    next_after: int | None = None


class Replayed(BaseModel):
    """The letter's message is on its way again; the letter is removed."""

    sequence: int = Field(description="sequence on the stream that it was put back to")
    stream: str


class Acknowledged(BaseModel):
    """It is stored, or known already, or of no interest: the sender need not send it again."""

    detail: str = ""


class Integrations(BaseModel):
    """The set-up of what connects this installation with others."""

    github: Integration
    mail: Integration


class Health(BaseModel):
    """The process answers."""

    status: Literal["ok"] = "ok"


class Readiness(BaseModel):
    """Whether work can be done: what each needed service says, "ok" or what is wrong."""

    ready: bool
    checks: dict[str, str] = Field(examples=[{"nats": "ok", "inference": "ok", "sandbox": "ok"}])
