"""Questions to the sandbox service: workspaces and commands.

Every call names its workspace and the fencing `token` of the step that makes it: a smaller token than the workspace has
seen is refused (`stale_lease`). A call with effects carries an `operation_id`; asked again, the recorded outcome answers.
Error codes: `stale_lease`, `no_workspace`, `bad_path`, `not_found`, `too_large`, `conflict`, `unavailable`, `bad_pattern`.
"""

from typing import ClassVar, Literal

from pydantic import Field

from libs.contracts.envelope import Done, Identifier, Message, Question, Sha
from libs.contracts.run import ChangedFile, CommandRun

WORKERS = ("editor", "verifier", "assistant")


class WorkspaceCall(Message):
    """What every workspace question carries."""

    workspace_id: Identifier
    token: int = Field(ge=0)


class Workspace(Message):
    """An open workspace. `generation` changes when its files were lost and laid anew from git."""

    workspace_id: Identifier
    generation: str
    commit: Sha
    setup_key: str | None = None


class OpenWorkspace(Question[Workspace], WorkspaceCall):
    """Make the workspace, or take it over; with `reset` its tracked and new files become those of `commit`, set-up results stay."""

    subject: ClassVar[str] = "q.sandbox.open"
    answer: ClassVar[type[Message]] = Workspace
    askers: ClassVar[tuple[str, ...]] = WORKERS
    deadline_seconds: ClassVar[float] = 300.0

    repository: str
    commit: Sha
    reset: bool = False


class CloseWorkspace(Question[Done], WorkspaceCall):
    """Remove the workspace and end what runs in it."""

    subject: ClassVar[str] = "q.sandbox.close"
    answer: ClassVar[type[Message]] = Done
    askers: ClassVar[tuple[str, ...]] = WORKERS


class FileContent(Message):
    """A file's bytes; `truncated` when `max_bytes` cut it."""

    path: str
    content: bytes
    size: int
    mode: int
    sha256: str
    truncated: bool = False


class ReadFile(Question[FileContent], WorkspaceCall):
    """Read a file of the workspace."""

    subject: ClassVar[str] = "q.sandbox.read"
    answer: ClassVar[type[Message]] = FileContent
    askers: ClassVar[tuple[str, ...]] = WORKERS

    path: str = Field(max_length=4096)
    max_bytes: int = Field(default=2_000_000, ge=0, le=4_000_000)


class FileWrite(Message):
    """One file to write; without content: delete. `expected_sha256` refuses a file changed meanwhile; "" means that it must not exist."""

    path: str = Field(max_length=4096)
    content: bytes | None = None
    mode: int | None = None
    renamed_from: str | None = None
    expected_sha256: str | None = None


class WriteFiles(Question[Done], WorkspaceCall):
    """Write several files, all or none."""

    subject: ClassVar[str] = "q.sandbox.write"
    answer: ClassVar[type[Message]] = Done
    askers: ClassVar[tuple[str, ...]] = WORKERS

    operation_id: str
    files: tuple[FileWrite, ...] = Field(min_length=1, max_length=200)


class DirectoryEntry(Message):
    """One entry of a folder."""

    name: str
    kind: Literal["file", "directory", "symlink", "other"]
    size: int = 0


class Listing(Message):
    """A folder's entries, sorted by name; `truncated` when there are more."""

    entries: tuple[DirectoryEntry, ...]
    truncated: bool = False


class ListDirectory(Question[Listing], WorkspaceCall):
    """List a folder."""

    subject: ClassVar[str] = "q.sandbox.list"
    answer: ClassVar[type[Message]] = Listing
    askers: ClassVar[tuple[str, ...]] = WORKERS

    path: str = Field(default=".", max_length=4096)


class Paths(Message):
    """Paths relative to the workspace, sorted; `truncated` when there are more."""

    paths: tuple[str, ...]
    truncated: bool = False


class Glob(Question[Paths], WorkspaceCall):
    """Find files by pattern (`**` crosses folders); what git ignores is left out."""

    subject: ClassVar[str] = "q.sandbox.glob"
    answer: ClassVar[type[Message]] = Paths
    askers: ClassVar[tuple[str, ...]] = WORKERS

    pattern: str = Field(min_length=1, max_length=1000)
    limit: int = Field(default=500, ge=1, le=20_000)


class GrepMatch(Message):
    """One matching line."""

    path: str
    line: int
    text: str = Field(description="cut at 500 characters")


class GrepResult(Message):
    """Matches in order of path and line; `truncated` when there are more."""

    matches: tuple[GrepMatch, ...]
    truncated: bool = False


class Grep(Question[GrepResult], WorkspaceCall):
    """Search file contents by extended regular expression."""

    subject: ClassVar[str] = "q.sandbox.grep"
    answer: ClassVar[type[Message]] = GrepResult
    askers: ClassVar[tuple[str, ...]] = WORKERS

    pattern: str = Field(min_length=1, max_length=1000)
    path: str = Field(default=".", max_length=4096)
    limit: int = Field(default=200, ge=1, le=2000)


class OutputChunk(Message):
    """A frame of a running command."""

    stream: Literal["stdout", "stderr"]
    data: bytes


class Executed(Message):
    """How a command ended. An outcome other than `exited` has no exit code; `unknown` means that nobody can tell."""

    outcome: Literal["exited", "timeout", "output_limit", "memory_limit", "disk_limit", "killed", "unknown"]
    exit_code: int | None = None
    stdout: str = Field(default="", description="decoded, cut to `tail_characters` with a note")
    stderr: str = ""
    duration_seconds: float = 0.0
    replayed: bool = False


class Execute(Question[Executed], WorkspaceCall):
    """Run a shell command in the workspace, without network. Frames come when `stream` is set."""

    subject: ClassVar[str] = "q.sandbox.execute"
    answer: ClassVar[type[Message]] = Executed
    frame: ClassVar[type[Message] | None] = OutputChunk
    askers: ClassVar[tuple[str, ...]] = WORKERS
    deadline_seconds: ClassVar[float] = 86_400.0

    operation_id: str
    command: str = Field(min_length=1, max_length=100_000)
    timeout_seconds: float = Field(default=120, gt=0, le=86_400)
    tail_characters: int = Field(default=200_000, ge=0, le=1_000_000)
    stream: bool = False


class SetUp(Question["SetUpResult"], WorkspaceCall):
    """Run set-up commands once per workspace and `key` (a digest of the lock files), reaching the package registries only."""

    subject: ClassVar[str] = "q.sandbox.setup"
    askers: ClassVar[tuple[str, ...]] = WORKERS
    deadline_seconds: ClassVar[float] = 86_400.0

    operation_id: str
    key: str = Field(max_length=128)
    commands: tuple[str, ...]
    timeout_seconds: float = Field(default=600, gt=0, le=86_400)


class SetUpResult(Message):
    """What set-up did; `ran` is False when it had been done before, and `commands` are those of that time."""

    ok: bool
    ran: bool
    commands: tuple[CommandRun, ...] = ()


SetUp.answer = SetUpResult


class Snapshot(Message):
    """The workspace's tree as a commit, saved in the artifact store under a hidden ref."""

    commit: Sha
    tree: Sha
    changed_files: tuple[ChangedFile, ...] = ()


class TakeSnapshot(Question[Snapshot], WorkspaceCall):
    """Save the tree as `refs/runs/<run_id>/<sequence>`; the commit's parent is the commit that the workspace was opened at."""

    subject: ClassVar[str] = "q.sandbox.snapshot"
    answer: ClassVar[type[Message]] = Snapshot
    askers: ClassVar[tuple[str, ...]] = WORKERS
    deadline_seconds: ClassVar[float] = 300.0

    run_id: Identifier
    sequence: int
    message: str


class Health(Message):
    """Whether sandboxes work here; `advice` says what to do when they do not."""

    ok: bool
    backend: str
    advice: str = ""


class CheckSandbox(Question[Health]):
    """Do sandboxes work on this machine?"""

    subject: ClassVar[str] = "q.sandbox.check"
    answer: ClassVar[type[Message]] = Health
    askers: ClassVar[tuple[str, ...]] = ("gateway",)
