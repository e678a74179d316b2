"""A workspace in the sandbox, asked under the step's fencing token.

ToolFailed          the sandbox says no to what the model asked; the text is for the model
├── NoSuchFile      there is no such file
└── Conflict        the file is not what the write expects
LeaseLost           another worker has taken the step over
Retryable           the workspace or the sandbox was lost; the step is delivered again and restores it
"""

from typing import Any

from libs.agent import Ask, ToolFailed
from libs.bus import LeaseLost, Refusal, Retryable
from libs.contracts.sandbox import (
    Execute,
    Executed,
    FileContent,
    FileWrite,
    Glob,
    Grep,
    GrepResult,
    ListDirectory,
    Listing,
    OpenWorkspace,
    Paths,
    ReadFile,
    SetUp,
    SetUpResult,
    Snapshot,
    TakeSnapshot,
    WriteFiles,
)
from libs.contracts.sandbox import Workspace as Opened

MAX_BYTES = 4_000_000


class NoSuchFile(ToolFailed):
    """There is no such file."""


class Conflict(ToolFailed):
    """The file is not what the write expects."""


_FOR_THE_MODEL: dict[str, type[ToolFailed]] = {
    "bad_path": ToolFailed,
    "not_found": NoSuchFile,
    "too_large": ToolFailed,
    "conflict": Conflict,
    "bad_pattern": ToolFailed,
    "bad_request": ToolFailed,
}


class Workspace:
    """The workspace of one run or one conversation."""

    def __init__(self, ask: Ask, workspace_id: str, token: int) -> None:
        self._ask_bus = ask
        self._id = workspace_id
        self.token = token
        self._names: dict[str, Any] = {"workspace_id": workspace_id, "token": token}

    async def open(self, repository: str, commit: str, *, reset: bool) -> Opened:
        """Make the workspace at a commit, or take it over."""
        question = OpenWorkspace(**self._names, repository=repository, commit=commit, reset=reset)
        opened: Opened = await self._ask(question)
        return opened

    async def read(self, path: str) -> FileContent | None:
        """A whole file, None when there is none. Raises ToolFailed when it is too large to be edited."""
        try:
            found: FileContent = await self._ask(ReadFile(**self._names, path=path, max_bytes=MAX_BYTES))
        except NoSuchFile:
            return None
        if found.truncated:
            raise ToolFailed(f"{path} has {found.size:,} bytes, more than can be read or edited whole. Work on it with commands.")
        return found

    async def write(self, operation_id: str, files: tuple[FileWrite, ...]) -> None:
        """Write all files or none. Raises Conflict; an operation that was carried out before is not carried out again."""
        size = sum(len(file.content or b"") for file in files)
        if size > MAX_BYTES or len(files) > 200:
            raise ToolFailed(f"{len(files)} files with {size:,} bytes are too much for one change. Make it in smaller parts.")
        await self._ask(WriteFiles(**self._names, operation_id=operation_id, files=files))

    async def list(self, path: str) -> Listing:
        """A folder's entries."""
        listing: Listing = await self._ask(ListDirectory(**self._names, path=path))
        return listing

    async def glob(self, pattern: str) -> Paths:
        """Files that fit a pattern."""
        paths: Paths = await self._ask(Glob(**self._names, pattern=pattern))
        return paths

    async def grep(self, pattern: str, path: str) -> GrepResult:
        """Lines that fit an extended regular expression."""
        found: GrepResult = await self._ask(Grep(**self._names, pattern=pattern, path=path))
        return found

    async def execute(self, operation_id: str, command: str, timeout_seconds: float, on_frame: Any) -> Executed:
        """Run a command; one that was run before under this id is not run again."""
        question = Execute(
            **self._names, operation_id=operation_id, command=command, timeout_seconds=timeout_seconds, tail_characters=8000, stream=True
        )
        executed: Executed = await self._ask(question, on_frame)
        return executed

    async def set_up(self, operation_id: str, key: str, commands: tuple[str, ...], timeout_seconds: float) -> SetUpResult:
        """Run the set-up commands, unless they were run for this key."""
        question = SetUp(**self._names, operation_id=operation_id, key=key, commands=commands, timeout_seconds=timeout_seconds)
        result: SetUpResult = await self._ask(question)
        return result

    async def snapshot(self, sequence: int, message: str) -> Snapshot:
        """Save the tree as a commit on a hidden ref."""
        snapshot: Snapshot = await self._ask(TakeSnapshot(**self._names, run_id=self._id, sequence=sequence, message=message))
        return snapshot

    async def _ask(self, question: Any, on_frame: Any = None) -> Any:
        try:
            return await self._ask_bus(question, on_frame=on_frame)
        except Refusal as no:
            if no.code == "stale_lease":
                raise LeaseLost from no
            if no.code == "no_workspace":
                raise Retryable("the workspace was lost in mid-work; it is laid anew from the repository", after=0.2) from no
            if no.code in _FOR_THE_MODEL:
                raise _FOR_THE_MODEL[no.code](no.detail) from no
            raise
