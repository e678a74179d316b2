"""How this service's errors are said on the bus (codes in `libs.contracts.sandbox`)."""

import contextlib
from collections.abc import Iterator

from libs.bus import Refusal
from services.sandbox import errors

CODES: tuple[tuple[type[errors.SandboxError], str, bool], ...] = (
    (errors.StaleLease, "stale_lease", False),
    (errors.WorkspaceMissing, "no_workspace", False),
    (errors.FileMissing, "not_found", False),
    (errors.FileChanged, "conflict", False),
    (errors.OperationConflict, "conflict", False),
    (errors.OutcomeUnknown, "conflict", False),
    (errors.FilesTooLarge, "too_large", False),
    (errors.BadPattern, "bad_pattern", False),
    (errors.BadPath, "bad_path", False),
    (errors.BadRequest, "bad_request", False),
    (errors.BackendUnavailable, "unavailable", False),
    (errors.SandboxError, "unavailable", True),
)


@contextlib.contextmanager
def refusing() -> Iterator[None]:
    """Turn a SandboxError into the answer "no" with its code; what a later try may change is retryable."""
    try:
        yield
    except errors.SandboxError as error:
        code, retryable = next((code, retryable) for kind, code, retryable in CODES if isinstance(error, kind))
        raise Refusal(code, str(error) or str(error.__doc__), retryable=retryable) from error
