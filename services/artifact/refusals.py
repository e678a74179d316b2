"""How the store's errors leave the service: as refusals of questions, as one of the three words of a step."""

from collections.abc import Iterator
from contextlib import contextmanager

from libs.bus import Permanent, Refusal, Retryable
from libs.bus.errors import AWAY
from services.artifact import errors

# The first class that an error is an instance of decides.
_CODES: tuple[tuple[type[errors.ArtifactError], str], ...] = (
    (errors.InvalidName, "bad_name"),
    (errors.RepositoryNotFound, "repository_not_found"),
    (errors.EmptyRepository, "empty_repository"),
    (errors.UnknownBase, "unknown_base"),
    (errors.AuthenticationRequired, "authentication_required"),
    (errors.NotARepository, "source_refused"),
    (errors.SourceRefused, "source_refused"),
    (errors.TooLarge, "too_large"),
    (errors.CredentialAway, AWAY),
    (errors.SourceUnreachable, "unreachable"),
    (errors.NotFastForward, "not_fast_forward"),
    (errors.PushRefused, "push_refused"),
    (errors.UnknownCommit, "not_found"),
    (errors.NotAFile, "not_found"),
    (errors.BlobNotFound, "not_found"),
    (errors.NothingToCommit, "nothing_to_commit"),
    (errors.TokenRefused, "bad_token"),
    (errors.MissingPrerequisite, "missing_prerequisite"),
    (errors.BundleRefused, "bundle_refused"),
    (errors.UploadRefused, "upload_refused"),
)


@contextmanager
def as_refusals() -> Iterator[None]:
    """Turns an error of the store into the refusal of a question."""
    try:
        yield
    except errors.ArtifactError as error:
        code = next((code for kind, code in _CODES if isinstance(error, kind)), "unavailable")
        raise Refusal(code, str(error), retryable=error.retryable, after=getattr(error, "after", None)) from error


@contextmanager
def as_words() -> Iterator[None]:
    """Turns an error of the store into Retryable or Permanent."""
    try:
        yield
    except errors.ArtifactError as error:
        raise (Retryable(str(error)) if error.retryable else Permanent(str(error))) from error
