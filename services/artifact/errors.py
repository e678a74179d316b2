"""What can go wrong in the artifact store. Each text says what happened and what to do next; none holds a credential.

ArtifactError
├── InvalidName · RepositoryNotFound · RepositoryExists · NotARepository · EmptyRepository
├── UnknownBase · UnknownCommit · NotAFile · NothingToCommit · BranchMoved
├── SourceRefused · AuthenticationRequired · SourceUnreachable (retryable) ── CredentialAway
├── PushRefused ── NotFastForward
├── TooLarge ── FileTooLarge
├── BundleRefused ── MissingPrerequisite · TokenRefused · UploadRefused · BlobNotFound
└── GitFailed (retryable) ── GitTimedOut · Contended
"""

from typing import ClassVar


class ArtifactError(Exception):
    """Something about a repository, a token or a blob is wrong."""

    retryable: ClassVar[bool] = False


class InvalidName(ArtifactError):
    """A repository name, an id or a reference has a shape that is not accepted."""


class RepositoryNotFound(ArtifactError):
    """There is no such repository here, or nothing at that address."""


class RepositoryExists(ArtifactError):
    """A repository of that name exists already."""


class NotARepository(ArtifactError):
    """Something is there, but it is not a git repository."""


class EmptyRepository(ArtifactError):
    """The repository holds no commit."""


class UnknownBase(ArtifactError):
    """The base names no branch, tag or commit of the repository."""


class UnknownCommit(ArtifactError):
    """The repository does not hold that commit."""


class NotAFile(ArtifactError):
    """The path names no file in that commit."""


class NothingToCommit(ArtifactError):
    """The tree equals the tree of the base commit."""


class BranchMoved(ArtifactError):
    """The run's own branch was changed meanwhile in a way that does not go together with the run's change."""


class SourceRefused(ArtifactError):
    """The source is of a kind that is not imported."""


class AuthenticationRequired(ArtifactError):
    """The source wants a credential, or refused the one that was given."""


class PushRefused(ArtifactError):
    """The other side did not take the push."""


class NotFastForward(PushRefused):
    """The branch there holds commits that the pushed one does not build on."""


class SourceUnreachable(ArtifactError):
    """The source did not answer, or broke off."""

    retryable = True


class CredentialAway(SourceUnreachable):
    """Who has the credential of the source is away, or asks to come back `after` seconds."""

    def __init__(self, message: str, after: float | None = None) -> None:
        super().__init__(message)
        self.after = after


class TooLarge(ArtifactError):
    """More bytes than the limit allows."""


class FileTooLarge(TooLarge):
    """One file is over the limit a file."""

    def __init__(self, path: str, size_bytes: int, limit_bytes: int) -> None:
        super().__init__(
            f"{path!r} has {size_bytes:,} bytes, over the limit of {limit_bytes:,} bytes a file. "
            "Leave it out of the commit, or raise the limit."
        )
        self.path, self.size_bytes, self.limit_bytes = path, size_bytes, limit_bytes


class BundleRefused(ArtifactError):
    """The bundle is malformed, incomplete, or holds objects that git's own checks refuse."""


class MissingPrerequisite(BundleRefused):
    """The bundle builds on a commit that is not here."""


class TokenRefused(ArtifactError):
    """The token is unknown, expired, or not for this repository and action."""


class UploadRefused(ArtifactError):
    """A chunk does not continue its upload, or the whole does not have the digest that was announced."""


class BlobNotFound(ArtifactError):
    """The owner has no such blob."""


class GitFailed(ArtifactError):
    """A git command failed in a way that no other error covers: a full disk, a crash."""

    retryable = True


class GitTimedOut(GitFailed):
    """A git command did not end before its deadline."""


class Contended(GitFailed):
    """The reference kept changing under the update."""
