"""Writes to the workspace that are written to the journal first.

Invariant: the exact bytes of a change are journaled before they are written. After a crash the same bytes are written under the same
operation id, whatever the file holds by then: an edit is never computed from a file that it has already changed. The journaled bytes
also rebuild a workspace that was lost.
"""

import hashlib
from collections.abc import Callable

from pydantic import TypeAdapter

from libs.agent import ToolFailed, ToolResult, Transcript
from libs.contracts.sandbox import FileContent, FileWrite
from libs.edits.applier import EditError, FileChange
from libs.workspace.workspace import Conflict, Workspace

Read = Callable[[str], bytes | None]
Apply = Callable[[Read], list[FileChange]]
TOOL = "write_ahead"
OPENED = "workspace"
LOST = (
    "The workspace was lost and laid anew. Your changes of files by write, edit and patch were made again; what commands had changed is "
    "gone, such as installed or generated files. Run those commands again where they matter."
)
_SUFFIX = ".writes"
_WRITES = TypeAdapter(tuple[FileWrite, ...])


class _Unread(Exception):
    """A pure edit needs a file that was not read yet."""

    def __init__(self, path: str) -> None:
        self.path = path


class JournaledWrites:
    """The changes that one loop makes to its workspace."""

    def __init__(self, workspace: Workspace, transcript: Transcript) -> None:
        self._workspace = workspace
        self._transcript = transcript

    async def carry_out(self, call_id: str, apply: Apply) -> list[str]:
        """Make the change that the pure function `apply` finds; the paths that it touches. Raises ToolFailed, and nothing has changed."""
        note = self._transcript.record.results.get(call_id + _SUFFIX)
        if note is None:
            writes = await self._planned(apply)
            note = ToolResult(call_id=call_id + _SUFFIX, tool=TOOL, text=_WRITES.dump_json(writes, exclude_none=True).decode())
            await self._transcript.record_tool_result(note)
        writes = _WRITES.validate_json(note.text)
        try:
            await self._workspace.write(call_id, writes)
        except Conflict:
            await self._settle(call_id, writes)
        return [write.path for write in writes]

    async def _settle(self, call_id: str, writes: tuple[FileWrite, ...]) -> None:
        """Nobody can tell whether an earlier try wrote, or somebody else did: look, and write only what is still as it was read."""
        if await self._holds(writes):
            return
        try:
            await self._workspace.write(f"{call_id}@{self._workspace.token}", writes)
        except Conflict as error:
            raise ToolFailed(f"{error} The file was changed meanwhile: read it again and repeat the change.") from error

    async def restore(self, generation: str) -> None:
        """Write every journaled change again, in order, into a workspace that was laid anew."""
        for note in list(self._transcript.record.results.values()):
            if note.tool != TOOL:
                continue
            call_id = note.call_id.removesuffix(_SUFFIX)
            result = self._transcript.record.results.get(call_id)
            if result is not None and not result.ok:
                continue
            writes = [await self._again(write) for write in _WRITES.validate_json(note.text)]
            if needed := tuple(write for write in writes if write is not None):
                await self._workspace.write(f"{call_id}@{generation}", needed)

    async def _planned(self, apply: Apply) -> tuple[FileWrite, ...]:
        """Run `apply`, reading the files that it asks for, until it has all of them."""
        files: dict[str, FileContent | None] = {}

        def read(path: str) -> bytes | None:
            if path not in files:
                raise _Unread(path)
            file = files[path]
            return None if file is None else file.content

        while True:
            try:
                changes = apply(read)
            except _Unread as needed:
                files[needed.path] = await self._workspace.read(needed.path)
            except EditError as error:
                raise ToolFailed(str(error)) from error
            else:
                return tuple(_write(change, files.get(change.path)) for change in changes)

    async def _holds(self, writes: tuple[FileWrite, ...]) -> bool:
        """Whether every file is already as `writes` would leave it."""
        for write in writes:
            file = await self._workspace.read(write.path)
            wanted = None if write.content is None else hashlib.sha256(write.content).hexdigest()
            if (None if file is None else file.sha256) != wanted:
                return False
            if write.renamed_from and await self._workspace.read(write.renamed_from) is not None:
                return False
        return True

    async def _again(self, write: FileWrite) -> FileWrite | None:
        """The write without its expectations; None for the deletion of a file that is not there."""
        origin = write.renamed_from
        if origin and await self._workspace.read(origin) is None:
            origin = None
        if write.content is None and await self._workspace.read(write.path) is None:
            return None
        return FileWrite(path=write.path, content=write.content, mode=write.mode, renamed_from=origin)


async def take_over(
    workspace: Workspace, writes: JournaledWrites, transcript: Transcript, repository: str, commit: str, *, reset: bool
) -> None:
    """Open a workspace for a loop, with `reset` afresh at `commit` the first time; one that was lost since is filled from the journal."""
    seen = [result for result in transcript.record.results.values() if result.tool == OPENED]
    opened = await workspace.open(repository, commit, reset=reset and not seen)
    if seen and seen[-1].text == opened.generation:
        return
    if seen:
        await writes.restore(opened.generation)
        if "exec" in transcript.record.started.values():
            await transcript.interject(LOST)
    note = ToolResult(call_id=f"{transcript.prefix}.{OPENED}.{len(seen) + 1}", tool=OPENED, text=opened.generation)
    await transcript.record_tool_result(note)


def _write(change: FileChange, before: FileContent | None) -> FileWrite:
    return FileWrite(
        path=change.path,
        content=change.content,
        mode=change.mode,
        renamed_from=change.renamed_from,
        expected_sha256="" if before is None else before.sha256,
    )
