"""Questions to the artifact service: git repositories, transport of commits, blobs, tokens.

Error codes: `repository_not_found`, `empty_repository`, `unknown_base`, `authentication_required`, `source_refused`, `too_large`,
`unreachable`, `away` (both retryable), `not_found`, `nothing_to_commit`, `bad_name`, `bad_token`, `bundle_refused`, `missing_prerequisite`,
`upload_refused`, `push_refused` (the remote's words), `not_fast_forward`.
"""

from typing import ClassVar, Literal

from pydantic import Field

from libs.contracts.envelope import BlobRef, Done, Identifier, Message, Question, Sha, Time
from libs.contracts.run import ChangedFile

EVERYBODY = ("gateway", "planner", "editor", "verifier", "sandbox", "assistant", "forge", "mailer")


class Imported(Message):
    """A repository of the store that holds the source's branches."""

    repository: str
    base_branch: str
    base_commit: Sha
    default_branch: str


class ImportRepository(Question[Imported]):
    """Bring a URL, a local path or an existing repository into the store and resolve the base branch."""

    subject: ClassVar[str] = "q.artifact.import"
    answer: ClassVar[type[Message]] = Imported
    askers: ClassVar[tuple[str, ...]] = ("planner", "gateway", "assistant", "forge")
    deadline_seconds: ClassVar[float] = 600.0

    source: str = Field(min_length=1, max_length=4096)
    base: str | None = None


class TreeEntry(Message):
    """A file of a commit; `mode` is git's (`100644`, `100755`, `120000` a link, `160000` a submodule)."""

    path: str
    mode: str
    size: int | None = None
    object_id: Sha


class Tree(Message):
    """The files of a commit in git's order; `truncated` when there are more than `limit`."""

    entries: tuple[TreeEntry, ...]
    truncated: bool = False


class ListTree(Question[Tree]):
    """List a commit's files."""

    subject: ClassVar[str] = "q.artifact.tree"
    answer: ClassVar[type[Message]] = Tree
    askers: ClassVar[tuple[str, ...]] = EVERYBODY

    repository: str
    commit: Sha
    limit: int = Field(default=20_000, ge=1, le=20_000)


class CommittedFile(Message):
    """A file's bytes at a commit."""

    path: str
    content: bytes
    size: int
    truncated: bool = False


class CommittedFiles(Message):
    """The files that exist, in the order asked; a missing one is left out."""

    files: tuple[CommittedFile, ...]


class ReadCommitted(Question[CommittedFiles]):
    """Read files of a commit; what passes `max_bytes` a file is cut, what passes 4 MB in all is left out."""

    subject: ClassVar[str] = "q.artifact.read"
    answer: ClassVar[type[Message]] = CommittedFiles
    askers: ClassVar[tuple[str, ...]] = EVERYBODY

    repository: str
    commit: Sha
    paths: tuple[str, ...] = Field(max_length=500)
    max_bytes: int = Field(default=200_000, ge=0, le=4_000_000)


class DiffResult(Message):
    """A unified diff and its files; `truncated` when `max_characters` cut it."""

    diff: str
    changed_files: tuple[ChangedFile, ...]
    truncated: bool = False


class Diff(Question[DiffResult]):
    """Compare two commits."""

    subject: ClassVar[str] = "q.artifact.diff"
    answer: ClassVar[type[Message]] = DiffResult
    askers: ClassVar[tuple[str, ...]] = EVERYBODY

    repository: str
    base: Sha
    head: Sha
    each_commit: bool = Field(
        default=False,
        description="the patches of each commit of `head` that neither `base` nor the source has, oldest first, binary too, without NULs",
    )
    max_characters: int = Field(default=2_000_000, ge=0, le=4_000_000)


class Chunk(Message):
    """A frame of bytes."""

    data: bytes


class FetchBundle(Question[Done]):
    """A git bundle of `commit`, less what the asker has."""

    subject: ClassVar[str] = "q.artifact.bundle"
    answer: ClassVar[type[Message]] = Done
    frame: ClassVar[type[Message] | None] = Chunk
    askers: ClassVar[tuple[str, ...]] = ("sandbox",)
    deadline_seconds: ClassVar[float] = 600.0

    repository: str
    commit: Sha
    have: tuple[Sha, ...] = ()


class StoreBundle(Question[Done]):
    """Take a git bundle that was put as a blob, check it, and point `refs/runs/<run_id>/<sequence>` at `commit`."""

    subject: ClassVar[str] = "q.artifact.store_bundle"
    answer: ClassVar[type[Message]] = Done
    askers: ClassVar[tuple[str, ...]] = ("sandbox",)
    deadline_seconds: ClassVar[float] = 300.0

    repository: str
    run_id: Identifier
    sequence: int
    commit: Sha
    bundle: BlobRef


class PutChunk(Question["BlobPut"]):
    """Send one chunk of a blob, in order; the last one closes it and the answer names it. A repeated chunk is taken once."""

    subject: ClassVar[str] = "q.artifact.blob_put"
    askers: ClassVar[tuple[str, ...]] = EVERYBODY

    upload_id: Identifier
    owner: Identifier = Field(description="the run or conversation that the blob belongs to")
    offset: int = Field(ge=0)
    data: bytes
    last: bool = False


class BlobPut(Message):
    """How far an upload is; `blob` when it is closed."""

    received: int
    blob: BlobRef | None = None


PutChunk.answer = BlobPut


class GetBlob(Question[Done]):
    """Read a blob."""

    subject: ClassVar[str] = "q.artifact.blob_get"
    answer: ClassVar[type[Message]] = Done
    frame: ClassVar[type[Message] | None] = Chunk
    askers: ClassVar[tuple[str, ...]] = EVERYBODY
    deadline_seconds: ClassVar[float] = 300.0

    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    offset: int = Field(default=0, ge=0)


class ReleaseBlobs(Question[Done]):
    """Let go of what came in by a webhook; done twice it is done once."""

    subject: ClassVar[str] = "q.artifact.blob_release"
    answer: ClassVar[type[Message]] = Done
    askers: ClassVar[tuple[str, ...]] = ("gateway",)

    webhook: str = Field(pattern=r"^[0-9a-f]{16}$", description="the owner of its blobs is `webhook-<this>`")


class GitToken(Message):
    """A token for one repository: `https://x:<token>@host/git/<repository>.git`."""

    token: str = Field(repr=False)
    repository: str
    scope: Literal["read", "write"]
    expires_at: Time


class IssueGitToken(Question[GitToken]):
    """Make a short-lived token."""

    subject: ClassVar[str] = "q.artifact.token"
    answer: ClassVar[type[Message]] = GitToken
    askers: ClassVar[tuple[str, ...]] = ("gateway", "forge")

    repository: str
    scope: Literal["read", "write"] = "read"
    expires_in_seconds: int = Field(default=3600, ge=60, le=86_400)


class GitHead(Message):
    """The first frame of a git HTTP answer."""

    status: int
    headers: tuple[tuple[str, str], ...]


class GitFrame(Message):
    """A frame of a git HTTP answer: the head once, then data."""

    head: GitHead | None = None
    data: bytes = b""


class ServeGit(Question[Done]):
    """One git smart-HTTP request. The body comes inline, or as a blob when it is over 512 KB."""

    subject: ClassVar[str] = "q.artifact.git"
    answer: ClassVar[type[Message]] = Done
    frame: ClassVar[type[Message] | None] = GitFrame
    askers: ClassVar[tuple[str, ...]] = ("gateway",)
    deadline_seconds: ClassVar[float] = 3600.0

    repository: str
    method: Literal["GET", "POST"]
    service_path: Literal["info/refs", "git-upload-pack", "git-receive-pack"]
    query: str = ""
    headers: dict[str, str] = Field(default_factory=dict)
    token: str | None = Field(default=None, repr=False)
    trusted: bool = Field(default=False, description="the gateway has checked the owner's own token")
    body: bytes = b""
    body_blob: BlobRef | None = None


class Pushed(Message):
    """The branch on the remote is at `sha`; `moved` False: it was there already."""

    sha: Sha
    moved: bool


class PushBranch(Question[Pushed]):
    """Push one commit of a repository to a branch of a remote, over HTTPS and never by force. The credential is used and forgotten."""

    subject: ClassVar[str] = "q.artifact.push"
    answer: ClassVar[type[Message]] = Pushed
    askers: ClassVar[tuple[str, ...]] = ("forge",)
    deadline_seconds: ClassVar[float] = 600.0

    repository: str
    url: str = Field(max_length=4096)
    branch: str = Field(min_length=1, max_length=255)
    sha: Sha
    username: str = Field(max_length=100)
    token: str = Field(max_length=1000, repr=False)


class RepositoryDescription(Message):
    """One repository of the store."""

    name: str
    source: str | None = None
    default_branch: str | None = None
    branches: tuple[str, ...] = ()


class Repositories(Message):
    """A page of repositories by name; `next_cursor` when there are more."""

    repositories: tuple[RepositoryDescription, ...]
    next_cursor: str | None = None


class ListRepositories(Question[Repositories]):
    """Which repositories are there?"""

    subject: ClassVar[str] = "q.artifact.repositories"
    answer: ClassVar[type[Message]] = Repositories
    askers: ClassVar[tuple[str, ...]] = ("gateway", "assistant")

    cursor: str | None = None
    limit: int = Field(default=50, ge=1, le=100)


class CreateRepository(Question[RepositoryDescription]):
    """Make an empty repository to push into; one that exists is the answer."""

    subject: ClassVar[str] = "q.artifact.create"
    answer: ClassVar[type[Message]] = RepositoryDescription
    askers: ClassVar[tuple[str, ...]] = ("gateway",)

    name: str = Field(min_length=1, max_length=200)
