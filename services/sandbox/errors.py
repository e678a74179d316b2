"""What the sandbox refuses, and why.

SandboxError
├── BackendUnavailable    commands cannot be isolated on this machine: nothing runs, the text says what to do
├── LaunchFailed          the sandbox could not be laid out: the command did not start
├── StaleLease            a newer step holds the workspace
├── WorkspaceMissing      the workspace does not exist (any more): open it again from git
├── OperationConflict     an operation id came back with another request
├── OutcomeUnknown        an operation was started and nobody can tell how it ended
├── GitFailed             the host's git refused
├── FilesTooLarge         files over the limit would enter a snapshot
└── BadRequest            the request itself is wrong
    ├── BadPath           the path leaves the workspace or names what may not be touched
    ├── FileMissing       nothing is there
    ├── FileChanged       the file is not what the caller expected
    └── BadPattern        the search pattern cannot be used
"""


class SandboxError(Exception):
    """The sandbox refused."""


class BackendUnavailable(SandboxError):
    """Sandboxes do not work on this machine."""


class LaunchFailed(SandboxError):
    """The sandbox could not be laid out; the command did not start."""


class StaleLease(SandboxError):
    """A newer step holds the workspace."""


class WorkspaceMissing(SandboxError):
    """The workspace does not exist; open it again."""


class OperationConflict(SandboxError):
    """This operation id was used for another request."""


class OutcomeUnknown(SandboxError):
    """The operation was started, and nobody can tell how it ended."""


class GitFailed(SandboxError):
    """git refused."""


class FilesTooLarge(SandboxError):
    """Files over the limit would enter the commit."""


class BadRequest(SandboxError):
    """The request is wrong."""


class BadPath(BadRequest):
    """The path leaves the workspace."""


class FileMissing(BadRequest):
    """Nothing is there."""


class FileChanged(BadRequest):
    """The file is not what was expected."""


class BadPattern(BadRequest):
    """The pattern cannot be used."""
