"""Reads unified diffs, git's or plain, as models write them: wrong counts, missing or bare `@@` lines, prose and fences around.

Counts are believed only when the hunk ends where they say; otherwise it reaches to the next header.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field

from libs.edits.diff_headers import file_name, git_names, permissions, stripped_names, unquote
from libs.edits.errors import EditFailed

_HUNK = re.compile(r"^@@ *-(\d+)(?:,(\d+))? +\+(\d+)(?:,(\d+))? *@@ ?(.*)$")
_BINARY = re.compile(r"^(?:GIT binary patch|Binary files .* differ)$")
_SIGNATURE = re.compile(r"^-- ?$")
_START = re.compile(r"^(?:diff --git |--- |\+\+\+ |@@|Index: )")
# A line of a hunk without its prefix: context if the hunk goes on behind it, else prose after the diff.
_UNPREFIXED = "?"


@dataclass(frozen=True, slots=True)
class Hunk:
    """Lines as (tag, text), tag one of ' ', '-', '+'; `old_start` counts from 1 and is None where the header has no numbers."""

    old_start: int | None
    anchor: str
    lines: tuple[tuple[str, str], ...]
    old_open: bool = False
    new_open: bool = False

    @property
    def old(self) -> tuple[str, ...]:
        return tuple(text for tag, text in self.lines if tag != "+")

    @property
    def final_newline(self) -> bool | None:
        """What `\\ No newline at end of file` asks for; None leaves the file's end as it is."""
        return None if self.old_open == self.new_open else self.old_open


@dataclass(slots=True)
class FileDiff:
    """One file's part of a diff. `old` or `new` is None for a file that is created or deleted; `bare` names have no a/ and b/."""

    old: str | None
    new: str | None
    git: bool = False
    bare: bool = False
    created: bool = False
    deleted: bool = False
    copied: bool = False
    renamed: bool = False
    binary: bool = False
    mode: int | None = None
    hunks: list[Hunk] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.new or self.old or "?"


def parse(diff: str) -> list[FileDiff]:
    """The files of a diff in order, prefixes stripped. Raises EditFailed where no file or no change can be made out."""
    lines = diff.split("\n")
    if all(line.endswith("\r") for line in lines[:-1]):
        lines = [line.removesuffix("\r") for line in lines]
    files = _Reader(lines).read()
    if not files:
        if any(_BINARY.match(line) for line in diff.splitlines()):
            raise EditFailed("The diff holds a binary patch, which is not applied. Produce the file with a command instead.")
        hint = " The *** Begin Patch form is not read here." if "*** Begin Patch" in diff else ""
        raise EditFailed(
            f"No file header was found.{hint} Send a unified diff that has '--- a/path' and '+++ b/path' lines and '@@' hunks."
        )
    for file in files:
        _finish(file)
    return files


def _finish(file: FileDiff) -> None:
    if not (file.renamed or file.copied or file.bare):
        file.old, file.new = stripped_names(file.old, file.new)
    if file.created:
        file.old = None
    if file.deleted:
        file.new = None
    if file.old is None and file.new is None:
        raise EditFailed("A part of the diff names no file. Give '--- a/path' and '+++ b/path' lines before its hunks.")
    if file.binary and file.new is not None:
        raise EditFailed(f"{file.name}: the diff holds a binary patch, which is not applied. Produce the file with a command instead.")
    changes_name = file.old != file.new
    if not file.hunks and not changes_name and file.mode is None:
        raise EditFailed(f"{file.name}: the diff has no changed lines for this file. Add hunks with '-' and '+' lines.")


class _Reader:
    """A cursor over the lines of a diff; `current` is the file whose header was read last."""

    def __init__(self, lines: list[str]) -> None:
        first = next((index for index, line in enumerate(lines) if _START.match(line)), len(lines))
        self.fenced = any(line.lstrip().startswith(("```", "~~~")) for line in lines[:first])
        self.lines = lines
        self.position = first
        self.files: list[FileDiff] = []

    def read(self) -> list[FileDiff]:
        while self.position < len(self.lines):
            line = self.lines[self.position]
            if line.startswith("diff --git "):
                self._start_git(line)
            elif self._at_names(self.position):
                self._read_names()
            elif line.startswith("@@"):
                self._read_hunk()
            elif self.files:
                self._read_extended(line)
            else:
                self.position += 1
        return self.files

    def _at_names(self, index: int) -> bool:
        """Whether a `---`/`+++` pair stands at `index`, or a lone `+++` after no `---`."""
        line, following = self.lines[index], self.lines[index + 1] if index + 1 < len(self.lines) else ""
        return (line.startswith("--- ") and following.startswith("+++ ")) or line.startswith("+++ ")

    def _start_git(self, line: str) -> None:
        names = git_names(line.removeprefix("diff --git "))
        old, new = names or (None, None)
        self.files.append(FileDiff(old, new, git=True, bare=names is not None and stripped_names(old, new) == names))
        self.position += 1

    def _read_names(self) -> None:
        line = self.lines[self.position]
        both = line.startswith("--- ")
        new = file_name(self.lines[self.position + both][4:])
        old = file_name(line[4:]) if both else new
        self.position += 1 + both
        current = self.files[-1] if self.files else None
        if current is None or not current.git or current.hunks:
            current = FileDiff(old, new)
            self.files.append(current)
        elif not (current.renamed or current.copied):
            current.old, current.new = old, new
        current.created |= old is None
        current.deleted |= new is None
        if self.position < len(self.lines) and self.lines[self.position][:1] in {" ", "+", "-"} and not self._is_end(self.position):
            self._read_body(None, "", None)

    def _read_extended(self, line: str) -> None:
        current = self.files[-1]
        self.position += 1
        if _BINARY.match(line):
            current.binary = True
        if not current.git or current.hunks:
            return
        for prefix, apply in _EXTENDED.items():
            if line.startswith(prefix):
                apply(current, line[len(prefix) :].strip())
        if match := re.match(r"index \w+\.\.\w+ (\d{6})$", line):
            permissions(match[1])

    def _read_hunk(self) -> None:
        line = self.lines[self.position]
        if not self.files:
            raise EditFailed("The diff has a hunk before any file name. Put '--- a/path' and '+++ b/path' lines before it.")
        if line.startswith("@@@"):
            raise EditFailed("This is a combined diff of a merge, which is not applied. Send a plain unified diff.")
        self.position += 1
        match = _HUNK.match(line)
        if match is None:
            self._read_body(None, line.strip("@ "), None)
            return
        counts = (int(match[2] or 1), int(match[4] or 1))
        self._read_body(int(match[1]), match[5].strip(), counts)

    def _read_body(self, old_start: int | None, anchor: str, counts: tuple[int, int] | None) -> None:
        begin = self.position
        counted = end = self._counted_end(*counts) if counts else None
        if end is None:
            end = begin
            while end < len(self.lines) and not self._is_end(end):
                end += 1
        self.position = end
        hunk = _hunk(old_start, anchor, self.lines[begin:end], whole=counted is not None)
        if hunk.lines:
            self.files[-1].hunks.append(hunk)

    def _counted_end(self, old: int, new: int) -> int | None:
        """The line behind the hunk if its counts are right, else None."""
        index = self.position
        while (old > 0 or new > 0) and index < len(self.lines):
            tag = self.lines[index][:1] or " "
            if tag not in " -+\\":
                return None
            old -= tag in " -"
            new -= tag in " +"
            index += 1
        if old or new:
            return None
        if index < len(self.lines) and self.lines[index].startswith("\\"):
            index += 1
        after = index
        while after < len(self.lines) and not self.lines[after]:
            after += 1
        goes_on = after < len(self.lines) and self.lines[after][:1] in {" ", "-", "+"} and not self._is_end(after)
        return None if goes_on else index

    def _is_end(self, index: int) -> bool:
        line = self.lines[index]
        if line.startswith(("@@", "diff --git ", "Index: ")) or _SIGNATURE.match(line) or _BINARY.match(line):
            return True
        if self.fenced and line.startswith(("```", "~~~")):
            return True
        return line.startswith("--- ") and self._at_names(index)


def _hunk(old_start: int | None, anchor: str, raw: list[str], whole: bool) -> Hunk:
    """A hunk from its lines; unless they are the `whole` hunk for certain, lines without a prefix at its end are prose and dropped."""
    lines: list[tuple[str, str]] = []
    open_tags = ""
    for line in raw:
        if line.startswith("\\"):
            open_tags += lines[-1][0] if lines else ""
        elif line[:1] in {" ", "-", "+"}:
            lines.append((line[0], line[1:]))
        else:
            lines.append((_UNPREFIXED, line))
    while lines and lines[-1][0] == _UNPREFIXED and not whole:
        lines.pop()
    plain = tuple((" " if tag == _UNPREFIXED else tag, text) for tag, text in lines)
    return Hunk(old_start, anchor, plain, old_open=bool(set(open_tags) & set(" -?")), new_open=bool(set(open_tags) & set(" +?")))


def _created(file: FileDiff, mode: str) -> None:
    file.created = True
    file.mode = permissions(mode)


def _deleted(file: FileDiff, mode: str) -> None:
    permissions(mode)
    file.deleted = True


def _mode(file: FileDiff, mode: str) -> None:
    file.mode = permissions(mode)


def _moved_from(file: FileDiff, name: str) -> None:
    file.old = unquote(name)


def _renamed(file: FileDiff, name: str) -> None:
    file.new, file.renamed = unquote(name), True


def _copied(file: FileDiff, name: str) -> None:
    file.new, file.copied = unquote(name), True


_EXTENDED: dict[str, Callable[[FileDiff, str], None]] = {
    "new file mode ": _created,
    "deleted file mode ": _deleted,
    "new mode ": _mode,
    "rename from ": _moved_from,
    "rename to ": _renamed,
    "copy from ": _moved_from,
    "copy to ": _copied,
}
