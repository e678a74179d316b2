"""The tools that a model looks and edits with, over a workspace."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from pydantic import Field

from libs.agent import Arguments, Tool, ToolFailed, Tools, wrap
from libs.agent.tools import cut
from libs.contracts.sandbox import Executed, OutputChunk
from libs.edits.applier import EditError, FileChange, apply_patch, check_path, decode, replace, rewrite
from libs.repository.project import SHELL_PRELUDE
from libs.workspace.workspace import Workspace
from libs.workspace.writes import JournaledWrites, Read

Show = Callable[[str, str], Awaitable[None]]
BODY_LIMIT = 7600
MAX_COMMAND_SECONDS = 1800


class ReadArguments(Arguments):
    path: str = Field(min_length=1, max_length=4096, description="relative to the root of the repository")
    start: int | None = Field(default=None, ge=1, description="first line, from 1")
    end: int | None = Field(default=None, ge=1, description="last line, included")


class ListArguments(Arguments):
    path: str = Field(default=".", max_length=4096)


class GlobArguments(Arguments):
    pattern: str = Field(min_length=1, max_length=1000, description="such as src/**/*.py")


class GrepArguments(Arguments):
    pattern: str = Field(min_length=1, max_length=1000, description="an extended regular expression")
    path: str = Field(default=".", max_length=4096, description="a file or folder to search")


class WriteArguments(Arguments):
    path: str = Field(min_length=1, max_length=4096)
    content: str = Field(description="the whole new text of the file")


class EditArguments(Arguments):
    path: str = Field(min_length=1, max_length=4096)
    old: str = Field(description="the exact text to replace, unique in the file, without line numbers")
    new: str = Field(description="the text to put in its place")
    replace_all: bool = Field(default=False, description="replace every occurrence")


class PatchArguments(Arguments):
    diff: str = Field(min_length=1, description="a unified diff over one or more files; renames and deletions as git writes them")


class ExecArguments(Arguments):
    command: str = Field(min_length=1, max_length=90_000, description="run by sh in the root of the repository, without network")
    timeout_seconds: float | None = Field(default=None, gt=0, le=MAX_COMMAND_SECONDS, description="120 when left out")


class ThinkArguments(Arguments):
    topic: str = Field(min_length=1, max_length=300)
    reasoning: str = Field(min_length=1, max_length=8000)


class WorkspaceTools:
    """What stands behind the tools; one object a loop."""

    def __init__(self, workspace: Workspace, writes: JournaledWrites, show: Show) -> None:
        self._workspace = workspace
        self._writes = writes
        self._show = show

    def all(self) -> Tools:
        """The tools that a model which calls tools is given."""
        return Tools(self.tools())

    def tools(self) -> tuple[Tool[Any], ...]:
        """The same, one by one."""
        return (*self._looking(), *self._changing(), *self._other())

    def reading(self) -> Tool[ReadArguments]:
        """The tool that shows a file."""
        return Tool("read", "Show a file with line numbers.", ReadArguments, self.read, rest="call read with start and end")

    def _looking(self) -> tuple[Tool[Any], ...]:
        return (
            self.reading(),
            Tool("ls", "List a folder.", ListArguments, self.ls, rest="use glob with a narrower pattern"),
            Tool("glob", "Find files by pattern.", GlobArguments, self.glob, rest="use a narrower pattern"),
            Tool("grep", "Search file contents.", GrepArguments, self.grep, rest="use a narrower pattern or path"),
        )

    def _changing(self) -> tuple[Tool[Any], ...]:
        return (
            Tool("write", "Create a file or replace its whole text.", WriteArguments, self.write, effects="repeatable"),
            Tool("edit", "Replace a piece of a file.", EditArguments, self.edit, effects="repeatable"),
            Tool("patch", "Apply a unified diff.", PatchArguments, self.patch, effects="repeatable"),
        )

    def _other(self) -> tuple[Tool[Any], ...]:
        return (
            Tool("exec", "Run a shell command, such as the tests.", ExecArguments, self.exec, effects="repeatable"),
            Tool("think", "Note why something is done; the next attempt sees it.", ThinkArguments, think),
        )

    async def read(self, arguments: ReadArguments, call_id: str) -> str:
        """Lines of a text file, numbered."""
        path = _checked(arguments.path)
        file = await self._workspace.read(path)
        if file is None:
            raise ToolFailed(f"There is no file {path}. Look with ls, glob or grep.")
        try:
            lines = decode(file.content).lines
        except EditError as error:
            raise ToolFailed(f"{path} ({file.size:,} bytes): {error}") from error
        return wrap(numbered(lines, arguments.start or 1, arguments.end or len(lines)), path)

    async def ls(self, arguments: ListArguments, call_id: str) -> str:
        """Names, folders with a slash."""
        listing = await self._workspace.list(arguments.path or ".")
        marks = {"directory": "/", "symlink": "@"}
        lines = [entry.name + marks.get(entry.kind, "") for entry in listing.entries]
        return _listed(lines, listing.truncated, f"ls {arguments.path}", "use glob with a narrower pattern")

    async def glob(self, arguments: GlobArguments, call_id: str) -> str:
        """Paths that fit."""
        found = await self._workspace.glob(arguments.pattern)
        return _listed(list(found.paths), found.truncated, f"glob {arguments.pattern}", "use a narrower pattern")

    async def grep(self, arguments: GrepArguments, call_id: str) -> str:
        """Matching lines as path:line: text."""
        found = await self._workspace.grep(arguments.pattern, arguments.path or ".")
        lines = [f"{match.path}:{match.line}: {match.text}" for match in found.matches]
        return _listed(lines, found.truncated, f"grep {arguments.pattern}", "use a narrower pattern or path")

    async def write(self, arguments: WriteArguments, call_id: str) -> str:
        """The whole file; one that exists keeps its line endings, BOM and mode."""
        return await self._change(call_id, partial(_rewritten, _checked(arguments.path), arguments.content))

    async def edit(self, arguments: EditArguments, call_id: str) -> str:
        """One place, or all of them."""
        return await self._change(call_id, partial(_replaced, _checked(arguments.path), arguments))

    async def patch(self, arguments: PatchArguments, call_id: str) -> str:
        """All hunks or none."""
        return await self._change(call_id, partial(apply_patch, arguments.diff))

    async def exec(self, arguments: ExecArguments, call_id: str) -> str:
        """Exit code and the end of the output. A call that is repeated under its id gets the outcome of the first."""

        async def on_frame(payload: bytes) -> None:
            await self._show("output", OutputChunk.model_validate_json(payload).data.decode("utf-8", "replace"))

        command = SHELL_PRELUDE + arguments.command
        executed = await self._workspace.execute(call_id, command, arguments.timeout_seconds or 120, on_frame)
        if executed.outcome == "unknown":
            raise ToolFailed("The outcome of the command is unknown: its connection was lost. Look at the files before you repeat it.")
        return _outcome(executed)

    async def _change(self, call_id: str, apply: Callable[[Read], list[FileChange]]) -> str:
        paths = await self._writes.carry_out(call_id, apply)
        return f"Changed: {', '.join(paths)}"


async def think(arguments: ThinkArguments, call_id: str) -> str:
    """The reply that holds the call is the record."""
    return "Noted."


def numbered(lines: tuple[str, ...], start: int, end: int) -> str:
    """Lines `start` to `end` with their numbers, as many as fit, with a note where to go on."""
    if not lines:
        return "[the file is empty]"
    if start > len(lines):
        return f"[the file has {len(lines)} lines; there is no line {start}]"
    shown: list[str] = []
    room = BODY_LIMIT
    end = min(end, len(lines))
    for number in range(start, end + 1):
        line = f"{number:>5}\t{lines[number - 1]}"
        if len(line) + 1 > room:
            if shown:
                return "\n".join(shown) + f"\n[lines {number} to {end} of {len(lines)} do not fit here; call read with start={number}]"
            note = f" [cut: line {number} has {len(lines[number - 1]):,} characters; use exec with cut -c to see more]"
            return line[:room] + note
        shown.append(line)
        room -= len(line) + 1
    if end < len(lines) or start > 1:
        shown.append(f"[lines {start} to {end} of {len(lines)}]")
    return "\n".join(shown)


def _checked(path: str) -> str:
    try:
        return check_path(path)
    except EditError as error:
        raise ToolFailed(str(error)) from error


def _rewritten(path: str, content: str, read: Read) -> list[FileChange]:
    return [FileChange(path=path, content=rewrite(read(path), content))]


def _replaced(path: str, arguments: EditArguments, read: Read) -> list[FileChange]:
    data = read(path)
    if data is None:
        raise ToolFailed(f"There is no file {path}. Look with ls, glob or grep, or create it with write.")
    return [FileChange(path=path, content=replace(data, arguments.old, arguments.new, arguments.replace_all))]


def _listed(lines: list[str], truncated: bool, source: str, rest: str) -> str:
    text = cut("\n".join(lines) or "[nothing found]", rest, BODY_LIMIT)
    return wrap(text + (f"\n[there are more; {rest}]" if truncated else ""), source)


def _outcome(executed: Executed) -> str:
    head = f"exit code {executed.exit_code}" if executed.outcome == "exited" else f"stopped: {executed.outcome.replace('_', ' ')}"
    stderr_room = min(len(executed.stderr), max(BODY_LIMIT // 3, BODY_LIMIT - len(executed.stdout)))
    parts = [
        f"{label}:\n{_tail(text, room)}"
        for label, text, room in (
            ("stdout", executed.stdout, BODY_LIMIT - stderr_room),
            ("stderr", executed.stderr, stderr_room),
        )
        if text.strip()
    ]
    body = wrap("\n".join(parts), "output of the command") if parts else "no output"
    return f"{head} after {executed.duration_seconds:.1f} s\n{body}"


def _tail(text: str, room: int) -> str:
    if len(text) <= room:
        return text
    left = len(text) - room
    return f"[the first {left:,} characters are left out; write the output to a file and read that]\n{text[-room:] if room else ''}"
