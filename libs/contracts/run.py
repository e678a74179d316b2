"""The events of the main job: an issue on its way to a verified commit, on `run.<run_id>.<event>`.

The events of one id, in stream order, are the whole truth about it (`libs.contracts.fold`).
"""

from typing import ClassVar, Literal

from pydantic import Field

from libs.contracts.envelope import Identifier, Message, Sha, Time, Usage
from libs.contracts.work import (
    Claim,
    End,
    FailedTry,
    Failure,
    Kind,
    ModelReply,
    PersonAsked,
    Resumes,
    Retries,
    StepName,
    ToolResult,
    ToolStart,
    WorkEvent,
)

NoTests = Literal["fail", "ask"]
MergeMethod = Literal["merge", "squash", "rebase"]
STEP_SERVICES = ("planner", "editor", "verifier", "artifact", "forge")


class Issue(Message):
    """What somebody wants changed, in their own words: untrusted text."""

    id: str = Field(min_length=1, max_length=200)
    title: str = Field(min_length=1, max_length=1000)
    body: str = Field(default="", max_length=65_536)


class Policy(Message):
    """What a run may do by itself and how much it may use."""

    max_attempts: int = Field(default=3, ge=1, le=10)
    plan_approval: bool = False
    no_tests: NoTests = "ask"
    on_existing_branch: Literal["continue", "suffix"] = "continue"
    model: str | None = Field(default=None, max_length=200)
    ceiling_usd: float = Field(default=5.0, ge=0, le=10_000)
    max_tokens: int = Field(default=2_000_000, ge=1)
    max_model_calls: int = Field(default=50, ge=1, le=1000, description="model calls of one editing attempt")
    edit_timeout_seconds: int = Field(default=600, ge=1, le=86_400)
    test_timeout_seconds: int = Field(default=300, ge=1, le=86_400)
    setup_timeout_seconds: int = Field(default=600, ge=1, le=86_400)
    setup_commands: tuple[str, ...] | None = Field(default=None, max_length=20)
    test_commands: tuple[str, ...] | None = Field(default=None, max_length=20)
    approval_expires_seconds: int = Field(default=7 * 86_400, ge=1, le=365 * 86_400)
    merge: Literal["on_approval", "never"] = "on_approval"
    merge_method: MergeMethod = "squash"
    merge_approvals: int = Field(default=1, ge=1, le=10, description="people with write permission, none of them the one who asked")


class GitHubTarget(Message):
    """The issue on GitHub that a run is about, and where its pull request goes."""

    repository: str = Field(max_length=300, description="owner/name")
    repository_id: int
    installation_id: int
    number: int = Field(description="of the issue")
    author: str = Field(default="", max_length=100)
    url: str = Field(default="", max_length=2048)


class MailThread(Message):
    """The mail that a run came from: answers go into its thread."""

    message_id: str = Field(max_length=998)
    references: tuple[str, ...] = Field(default=(), max_length=50)
    subject: str = Field(default="", max_length=998)


class ChatThread(Message):
    """The conversation that a run was asked for in, and what its turns are answered with: it is told how the run ends."""

    session_id: Identifier
    agent: str = "assistant"
    model: str | None = Field(default=None, max_length=200)
    plan: str | None = Field(default=None, max_length=64)


class PlanStep(Message):
    """One ordered step of a plan: what to do, why, and the files that it expects to touch."""

    title: str = Field(min_length=1, max_length=300)
    detail: str = Field(default="", max_length=4000)
    why: str = Field(default="", max_length=2000)
    files: tuple[str, ...] = Field(default=(), max_length=50)


class Plan(Message):
    """One to five steps."""

    summary: str = Field(default="", max_length=4000)
    steps: tuple[PlanStep, ...] = Field(min_length=1, max_length=5)


class ChangedFile(Message):
    """One file of a change; counts are lines, absent for a binary file."""

    path: str
    status: Literal["added", "modified", "deleted", "renamed", "mode_changed", "type_changed"]
    renamed_from: str | None = None
    added_lines: int | None = None
    deleted_lines: int | None = None


class CommandRun(Message):
    """A command that was run in the sandbox; `exit_code` is absent when the outcome is not `exited`."""

    command: str
    phase: Literal["setup", "baseline", "test", "rerun"]
    outcome: Literal["exited", "timeout", "output_limit", "memory_limit", "disk_limit", "killed", "unknown"]
    exit_code: int | None = None
    duration_seconds: float = 0.0
    output_tail: str = Field(default="", description="the last 4,000 characters")
    passed: int | None = None
    failed: int | None = None
    skipped: int | None = None


class RunEvent(WorkEvent):
    """An event of a run."""

    work: ClassVar[str] = "run"
    id_field: ClassVar[str] = "run_id"

    run_id: Identifier


class RunOpened(RunEvent):
    """Somebody asked for an issue to be solved."""

    subject: ClassVar[str] = "run.{run_id}.opened"
    type: ClassVar[str] = "run.opened"
    producers: ClassVar[tuple[str, ...]] = ("gateway", "forge", "mailer", "assistant")

    issue: Issue
    repo: str = Field(min_length=1, max_length=4096, description="URL, absolute path, or name of an artifact repository")
    base: str | None = Field(default=None, max_length=255)
    reporter_email: str | None = Field(default=None, max_length=254)
    policy: Policy = Policy()
    requested_by: str = "local"
    tenant: Identifier = "local"
    user: str = Field(default="local", max_length=200, description="whose run it is; nobody else of another tenant sees it")
    origin: Literal["http", "event", "github", "mail", "chat"] = "http"
    github: GitHubTarget | None = None
    mail: MailThread | None = None
    chat: ChatThread | None = None
    opened_at: Time
    request_digest: str | None = Field(default=None, description="SHA-256 of the request, to tell a repeated key from a different request")


class StepStarted(RunEvent, Claim):
    """A worker claims a step. The claim's own sequence is the fencing token of whatever the step touches."""

    subject: ClassVar[str] = "run.{run_id}.step_started"
    type: ClassVar[str] = "run.step_started"
    producers: ClassVar[tuple[str, ...]] = STEP_SERVICES


class StepFailed(RunEvent, FailedTry):
    """A step raised; it is tried again after `retry_in_seconds`, or never when that is absent."""

    subject: ClassVar[str] = "run.{run_id}.step_failed"
    type: ClassVar[str] = "run.step_failed"
    producers: ClassVar[tuple[str, ...]] = STEP_SERVICES


class RunPlanned(RunEvent):
    """A plan stands, on a repository that was imported."""

    subject: ClassVar[str] = "run.{run_id}.planned"
    type: ClassVar[str] = "run.planned"
    producers: ClassVar[tuple[str, ...]] = ("planner",)

    attempt: int = Field(ge=1)
    plan: Plan
    repository: str = Field(description="name in the artifact store")
    base_branch: str
    base_commit: Sha
    languages: tuple[str, ...] = ()
    setup_commands: tuple[str, ...] = ()
    test_commands: tuple[str, ...] = ()
    usage: Usage = Usage()


class RunEdited(RunEvent):
    """The plan was carried out; the tree is saved as a commit on a hidden ref."""

    subject: ClassVar[str] = "run.{run_id}.edited"
    type: ClassVar[str] = "run.edited"
    producers: ClassVar[tuple[str, ...]] = ("editor",)

    attempt: int = Field(ge=1)
    commit: Sha
    tree: Sha
    changed_files: tuple[ChangedFile, ...]
    summary: str = ""
    usage: Usage = Usage()


class Verdict(Message):
    """What the tests said of a change, compared with the untouched tree."""

    ok: bool
    outcome: Literal["passed", "failed", "no_tests", "timeout", "unknown", "flaky_passed", "tests_removed", "setup_failed", "no_change"]
    reasons: tuple[str, ...] = ()
    newly_failing: tuple[str, ...] = Field(default=(), max_length=200)
    newly_passing: tuple[str, ...] = Field(default=(), max_length=200)
    feedback: str = Field(default="", max_length=16_000)


class RunVerified(RunEvent):
    """The change passed."""

    subject: ClassVar[str] = "run.{run_id}.verified"
    type: ClassVar[str] = "run.verified"
    producers: ClassVar[tuple[str, ...]] = ("verifier",)

    attempt: int = Field(ge=1)
    commit: Sha
    verdict: Verdict
    commands: tuple[CommandRun, ...] = ()
    changed_files: tuple[ChangedFile, ...] = ()


class RunRejected(RunEvent):
    """The change did not pass; the feedback goes into the next plan."""

    subject: ClassVar[str] = "run.{run_id}.rejected"
    type: ClassVar[str] = "run.rejected"
    producers: ClassVar[tuple[str, ...]] = ("verifier", "editor")

    attempt: int = Field(ge=1)
    commit: Sha | None = None
    verdict: Verdict
    commands: tuple[CommandRun, ...] = ()


class RunCommitted(RunEvent):
    """The verified change is one commit on a branch of the artifact repository."""

    subject: ClassVar[str] = "run.{run_id}.committed"
    type: ClassVar[str] = "run.committed"
    producers: ClassVar[tuple[str, ...]] = ("artifact",)

    attempt: int = Field(ge=1)
    repository: str
    branch: str
    sha: Sha
    message: str


class RunPublished(RunEvent):
    """A pull request shows the change where the team works."""

    subject: ClassVar[str] = "run.{run_id}.published"
    type: ClassVar[str] = "run.published"
    producers: ClassVar[tuple[str, ...]] = ("forge",)

    url: str
    number: int
    sha: Sha
    repository: str = Field(default="", max_length=300, description="owner/name")
    repository_id: int | None = None
    branch: str = Field(default="", max_length=255)
    draft: bool = False


class ApprovalRequested(RunEvent, PersonAsked):
    """A step needs a person: the run waits, costs nothing and survives restarts until it is answered."""

    subject: ClassVar[str] = "run.{run_id}.approval_requested"
    type: ClassVar[str] = "run.approval_requested"
    producers: ClassVar[tuple[str, ...]] = STEP_SERVICES


class RunApproved(RunEvent, Resumes):
    """A person said yes; the step that asked handles its event again."""

    subject: ClassVar[str] = "run.{run_id}.approved.{step}"
    type: ClassVar[str] = "run.approved"
    producers: ClassVar[tuple[str, ...]] = ("gateway", "forge", "mailer")

    by: str
    comment: str = Field(default="", max_length=4000)


class RunDenied(RunEvent, End):
    """A person said no: the run is over."""

    subject: ClassVar[str] = "run.{run_id}.denied"
    type: ClassVar[str] = "run.denied"
    producers: ClassVar[tuple[str, ...]] = ("gateway", "forge", "mailer")

    step: StepName
    by: str
    comment: str = Field(default="", max_length=4000)


class RunRetried(RunEvent, Retries):
    """A person sends a step to work once more on the event that it was handling."""

    subject: ClassVar[str] = "run.{run_id}.retried.{step}"
    type: ClassVar[str] = "run.retried"
    producers: ClassVar[tuple[str, ...]] = ("gateway", "forge", "mailer")

    by: str


class RunFailed(RunEvent, Failure):
    """The run is over without a result; the reason says what to do next."""

    subject: ClassVar[str] = "run.{run_id}.failed"
    type: ClassVar[str] = "run.failed"
    producers: ClassVar[tuple[str, ...]] = (*STEP_SERVICES, "gateway")

    kind: Literal["permanent", "exhausted", "attempts", "limit", "expired", "schema"] = "permanent"


class RunCancelled(RunEvent, End):
    """A person stopped the run."""

    subject: ClassVar[str] = "run.{run_id}.cancelled"
    type: ClassVar[str] = "run.cancelled"
    producers: ClassVar[tuple[str, ...]] = ("gateway", "forge", "mailer")

    by: str
    reason: str = Field(default="", max_length=4000)


class RunFinished(RunEvent, End):
    """The run is over with its result."""

    subject: ClassVar[str] = "run.{run_id}.finished"
    type: ClassVar[str] = "run.finished"
    producers: ClassVar[tuple[str, ...]] = ("forge",)

    attempts: int
    changed_files: tuple[ChangedFile, ...] = ()
    branch: str
    sha: Sha
    test_summary: str = ""
    usage: Usage = Usage()


class ModelReplied(RunEvent, ModelReply):
    """One model reply inside a step's loop, recorded before it is acted on, so that it is paid for once."""

    subject: ClassVar[str] = "run.{run_id}.model_replied"
    type: ClassVar[str] = "run.model_replied"
    producers: ClassVar[tuple[str, ...]] = ("planner", "editor")


class ToolStarted(RunEvent, ToolStart):
    """A tool call with effects is about to run."""

    subject: ClassVar[str] = "run.{run_id}.tool_started"
    type: ClassVar[str] = "run.tool_started"
    producers: ClassVar[tuple[str, ...]] = ("planner", "editor")


class ToolReturned(RunEvent, ToolResult):
    """What a tool call gave back to the model."""

    subject: ClassVar[str] = "run.{run_id}.tool_returned"
    type: ClassVar[str] = "run.tool_returned"
    producers: ClassVar[tuple[str, ...]] = ("planner", "editor")


RUN = Kind(
    "run",
    "RUN",
    "run_id",
    {
        Claim: StepStarted,
        FailedTry: StepFailed,
        PersonAsked: ApprovalRequested,
        Failure: RunFailed,
        ModelReply: ModelReplied,
        ToolStart: ToolStarted,
        ToolResult: ToolReturned,
    },
)
