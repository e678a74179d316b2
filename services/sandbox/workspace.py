"""One workspace: a tree that commands may write, and beside it what they may not: git, home's quota, operations, lease.

    <root>/<workspace_id>/tree   /workspace in the sandbox
                         /home   /home/sandbox-agent in the sandbox
                         /git    read-only at /workspace/.git
                         /meta   lease, operations, set-up, identity
                         /staging

Whatever changes the tree happens one at a time; reads do not wait. A lost workspace is laid anew from git.
"""

import asyncio
import json
import os
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Literal

from pydantic import BaseModel

from libs.contracts.envelope import Done
from libs.contracts.run import ChangedFile
from libs.contracts.sandbox import Executed, FileContent, FileWrite, GrepResult, Listing, Paths, SetUpResult
from services.sandbox.backends import Backend, CommandResult, CommandSpec, Limits, OnOutput
from services.sandbox.backends.capture import cut_text
from services.sandbox.errors import OutcomeUnknown, WorkspaceMissing
from services.sandbox.files import list_folder, read_file
from services.sandbox.git import Git
from services.sandbox.lease import Lease, write_durably
from services.sandbox.operations import Operations
from services.sandbox.paths import Tree
from services.sandbox.search import Search
from services.sandbox.setup import SetUpRunner
from services.sandbox.snapshots import Author, Saved, Snapshots
from services.sandbox.writes import write_files

FOLDERS = ("tree", "home", "git", "meta", "staging")


class Identity(BaseModel):
    """What the workspace was laid out from. It is written last: without it the workspace is not there yet."""

    generation: str
    repository: str
    commit: str


class Request(BaseModel):
    """What an operation id stands for."""

    kind: Literal["execute", "write", "setup"]
    content: object


class Workspace:
    """Everything that can be done in one workspace. Callers show their fencing token first (`authorize`)."""

    def __init__(self, folder: Path, backend: Backend, limits: Limits, max_file_bytes: int) -> None:
        for name in FOLDERS:
            (folder / name).mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._backend = backend
        self._tree = Tree(folder / "tree")
        self._lease = Lease(folder / "meta")
        self._operations = Operations(folder / "meta")
        self._git = Git(folder / "git", folder / "tree")
        self._snapshots = Snapshots(self._git, max_file_bytes)
        self._place = CommandSpec(
            command="true",
            workspace=folder / "tree",
            git_directory=folder / "git",
            home=folder / "home",
            timeout_seconds=1,
            limits=limits,
            label=folder.name,
        )
        self._setup = SetUpRunner(backend, self._place, self._snapshots, folder / "meta")
        self._search = Search(backend, self._place)
        self._identity_path = folder / "meta" / "identity.json"
        self._changing = asyncio.Lock()

    @property
    def busy(self) -> bool:
        """Whether something is being done in it."""
        return self._operations.busy or self._changing.locked()

    @property
    def identity(self) -> Identity | None:
        """What it was laid out from, None before that."""
        path = self._identity_path
        return Identity.model_validate(json.loads(path.read_text())) if path.exists() else None

    @property
    def laid_out(self) -> Identity:
        """What it was laid out from. Raises WorkspaceMissing before that."""
        identity = self.identity
        if identity is None:
            raise WorkspaceMissing(f"workspace {self.folder.name} is not laid out; open it again")
        return identity

    @property
    def setup_key(self) -> str | None:
        """The key of the newest set-up that is done."""
        keys = self._setup.state.keys
        return keys[-1] if keys else None

    @property
    def idle_seconds(self) -> float:
        """Seconds since somebody was last authorised."""
        return max(0.0, time.time() - (self.folder / "meta").stat().st_mtime)

    async def authorize(self, token: int) -> None:
        """Accept a caller's token; work that a smaller token began is ended. Raises StaleLease."""
        if await asyncio.to_thread(self._lease.accept, token):
            await self._operations.interrupt()
        os.utime(self.folder / "meta")

    async def lay_out(self, repository: str, commit: str, fetch: Callable[[Path], Awaitable[None]]) -> Identity:
        """Make tracked and new files those of `commit`; `fetch` is awaited to write a bundle when the commit is not here."""
        async with self._changing:
            old = self.identity
            # Whoever dies in here leaves a workspace that is not laid out, never one that is half of each.
            self._identity_path.unlink(missing_ok=True)
            await self._git.create()
            if not await self._snapshots.has(commit):
                bundle = self.folder / "meta" / "incoming.bundle"
                try:
                    await fetch(bundle)
                    await self._snapshots.unpack(bundle)
                finally:
                    bundle.unlink(missing_ok=True)
            await self._snapshots.checkout(commit, self._setup.state.created)
            identity = Identity(generation=old.generation if old else secrets.token_hex(8), repository=repository, commit=commit)
            write_durably(self._identity_path, identity.model_dump_json())
            return identity

    async def read(self, path: str, max_bytes: int) -> FileContent:
        """Read a file (see `files.read_file`)."""
        return await asyncio.to_thread(read_file, self._tree, path, max_bytes)

    async def list(self, path: str) -> Listing:
        """List a folder (see `files.list_folder`)."""
        return await asyncio.to_thread(list_folder, self._tree, path)

    async def glob(self, pattern: str, limit: int) -> Paths:
        """Find files by pattern (see `Search.glob`)."""
        return await self._search.glob(pattern, limit)

    async def grep(self, pattern: str, path: str, limit: int) -> GrepResult:
        """Find lines by pattern (see `Search.grep`)."""
        return await self._search.grep(pattern, path, limit)

    async def write(self, operation_id: str, files: Sequence[FileWrite]) -> bool:
        """Write files, all or none (see `writes.write_files`); True when it had been done before. Raises OutcomeUnknown."""

        async def work() -> Done:
            async with self._changing:
                await asyncio.to_thread(write_files, self._tree, self.folder / "staging", files)
            return Done()

        request = Request(kind="write", content=[file.model_dump(mode="json") for file in files])
        return (await self._operations.once(operation_id, request, Done, work)).replayed

    async def execute(
        self, operation_id: str, command: str, timeout_seconds: float, tail_characters: int, on_output: OnOutput | None = None
    ) -> Executed:
        """Run a command without network. An operation that was interrupted is answered with the outcome `unknown`."""

        async def work() -> Executed:
            async with self._changing:
                spec = self._place.model_copy(update={"command": command, "timeout_seconds": timeout_seconds})
                return as_executed(await self._backend.run(spec, on_output), tail_characters)

        request = Request(kind="execute", content=command)
        try:
            once = await self._operations.once(operation_id, request, Executed, work)
        except OutcomeUnknown as error:
            return Executed(outcome="unknown", stderr=str(error), replayed=True)
        return once.answer.model_copy(update={"replayed": once.replayed})

    async def set_up(self, operation_id: str, key: str, commands: Sequence[str], timeout_seconds: float) -> SetUpResult:
        """Install what the tests need, once per key (see `SetUpRunner`). What was interrupted or failed is run again when asked again."""

        async def work() -> SetUpResult:
            async with self._changing:
                return await self._setup.run(key, commands, timeout_seconds)

        request = Request(kind="setup", content=[key, list(commands)])
        once = await self._operations.once(operation_id, request, SetUpResult, work, idempotent=True, kept=lambda done: done.ok)
        return once.answer

    async def snapshot(self, message: str, author: Author, when: datetime | None = None) -> Saved:
        """Save the tree as a commit (see `Snapshots.save`)."""
        async with self._changing:
            return await self._snapshots.save(message, author, self._setup.state.created, when)

    async def changes(self, base: str, head: str | None = None) -> tuple[ChangedFile, ...]:
        """Files that differ between `base` and `head`, or the files as they are."""
        return await self._snapshots.changes(base, head or await self._tree_now())

    async def diff(self, base: str, head: str | None = None) -> bytes:
        """A unified diff between `base` and `head`, or the files as they are."""
        return await self._snapshots.diff(base, head or await self._tree_now())

    async def pack(self, commit: str, since: str | None) -> Path:
        """A bundle of `commit` for another repository that has `since`; the caller removes the file."""
        path = self.folder / "meta" / f"outgoing-{secrets.token_hex(4)}.bundle"
        return await self._snapshots.pack(path, commit, since)

    async def close(self) -> None:
        """End what is being done; the workspace is about to be removed."""
        await self._operations.interrupt()

    async def _tree_now(self) -> str:
        async with self._changing:
            return await self._snapshots.tree(self._setup.state.created)


def as_executed(result: CommandResult, tail_characters: int) -> Executed:
    """A command's result for the journal; the reason of an end that was not the command's own stands at the end of stderr."""
    note = f"\n[{result.outcome}: {result.reason}]" if result.reason else ""
    return Executed(
        outcome=result.outcome,
        exit_code=result.exit_code,
        stdout=cut_text(result.stdout, tail_characters),
        stderr=(cut_text(result.stderr, tail_characters) + note).lstrip("\n"),
        duration_seconds=round(result.duration_seconds, 3),
    )
