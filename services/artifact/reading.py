"""Reads trees, files, differences and histories of the store's repositories. Changes nothing.

Invariant: paths are parsed from NUL-separated output, so any file name survives; bytes that are not UTF-8 appear as surrogates.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Literal

from services.artifact.domain import ChangedFile, CommitInfo, FileContent, FileEntry, Patch
from services.artifact.errors import NotAFile
from services.artifact.git import nul_fields
from services.artifact.repositories import Repositories

Status = Literal["added", "modified", "deleted", "renamed", "mode_changed", "type_changed"]
_STATUS: dict[str, Status] = {"A": "added", "M": "modified", "D": "deleted", "R": "renamed", "T": "type_changed"}
_LOG_FORMAT = "--format=%H%x00%P%x00%an%x00%ae%x00%at%x00%s%x00%b"
_DIFF = ("--no-color", "--no-ext-diff", "--no-textconv", "--find-renames", "--submodule=short", "--ignore-submodules=none")

_NOT_THERE = ("--not", "--remotes=origin", "--not")


class Reader:
    """Questions about repositories. All raise InvalidName, RepositoryNotFound and UnknownCommit."""

    def __init__(self, repositories: Repositories) -> None:
        self._repositories = repositories

    async def list_files(self, name: str, commit: str) -> list[FileEntry]:
        """Every file, symlink and submodule of a commit, in git's order (by bytes of the path)."""
        await self._repositories.commit(name, commit)
        listed = await self._repositories.git(name).run("ls-tree", "-r", "-z", "--long", "--full-tree", commit)
        return [_entry(field) for field in nul_fields(listed.stdout)]

    async def read_file(self, name: str, commit: str, path: str, max_bytes: int) -> FileContent:
        """The first `max_bytes` bytes of a file. Raises NotAFile for a directory, a submodule or nothing."""
        await self._repositories.commit(name, commit)
        git = self._repositories.git(name)
        if not path.strip("/") or "\0" in path:
            raise NotAFile(f"{path!r} is not the path of a file.")
        listed = nul_fields((await git.run("ls-tree", "-z", "--long", "--full-tree", commit, "--", path, ok=(0, 128))).stdout)
        entry = next((found for found in map(_entry, listed) if found.path == path), None)
        if entry is None or entry.mode in ("040000", "160000"):
            raise NotAFile(f"{path!r} is not a file of commit {commit[:12]}. List the files to see what there is.")
        content = await git.run("cat-file", "blob", entry.sha, max_output_bytes=max_bytes)
        return FileContent(entry, content.stdout, content.truncated)

    async def read_files(self, name: str, commit: str, paths: Sequence[str], *, max_bytes: int, total_bytes: int) -> list[FileContent]:
        """Those of `paths` that are files, in the order asked; each is cut at `max_bytes`; what would pass `total_bytes` is left out."""
        entries = {entry.path: entry for entry in await self.list_files(name, commit)}
        wanted: list[FileEntry] = []
        for path in dict.fromkeys(paths):
            entry = entries.get(path)
            size = min(entry.size_bytes, max_bytes) if entry else 0
            if entry and entry.mode != "160000" and size <= total_bytes:
                total_bytes -= size
                wanted.append(entry)
        git = self._repositories.git(name)
        small = "".join(f"{entry.sha}\n" for entry in wanted if entry.size_bytes <= max_bytes)
        batch = (await git.run("cat-file", "--batch=", stdin=small.encode())).stdout
        found, start = [], 1
        for entry in wanted:
            if entry.size_bytes > max_bytes:
                data = (await git.run("cat-file", "blob", entry.sha, max_output_bytes=max_bytes)).stdout if max_bytes else b""
            else:
                data = batch[start : start + entry.size_bytes]
                start += entry.size_bytes + 2
            found.append(FileContent(entry, data, truncated=len(data) < entry.size_bytes))
        return found

    async def diff(self, name: str, base: str, head: str, max_bytes: int = 5_000_000, *, each_commit: bool = False) -> Patch:
        """The unified diff from one commit to another, or those of all commits between, oldest first: binary files are named only."""
        for commit in (base, head):
            await self._repositories.commit(name, commit)
        span = (
            ["log", "--patch", "--text", "--reverse", "--format=", "--diff-merges=first-parent", f"^{base}", head, *_NOT_THERE]
            if each_commit
            else ["diff", base, head]
        )
        found = await self._repositories.git(name).run(*span, *_DIFF, "--full-index", "--", max_output_bytes=max_bytes)
        return Patch(found.stdout.replace(b"\0", b"") if each_commit else found.stdout, found.truncated)  # UTF-16 becomes readable

    async def changed_files(self, name: str, base: str, head: str) -> list[ChangedFile]:
        """What changed from one commit to another, a file each, in git's order."""
        for commit in (base, head):
            await self._repositories.commit(name, commit)
        found = await self._repositories.git(name).run("diff-tree", "-r", "-z", "--raw", "--numstat", *_DIFF, base, head, "--")
        return parse_changes(found.stdout)

    async def log(self, name: str, head: str, base: str | None = None, limit: int = 100) -> list[CommitInfo]:
        """Commits that `head` reaches and `base` does not, newest first, at most `limit`."""
        for commit in filter(None, (head, base)):
            await self._repositories.commit(name, commit)
        span = [head, f"^{base}"] if base else [head]
        found = await self._repositories.git(name).run("log", "-z", _LOG_FORMAT, f"--max-count={limit}", *span, "--")
        fields = list(nul_fields(found.stdout))
        return [_commit(fields[start : start + 7]) for start in range(0, len(fields), 7)]


def parse_changes(data: bytes) -> list[ChangedFile]:
    """The output of `git diff-tree -z --raw --numstat` (format: git-diff-tree(1), "raw output" and "other diff formats")."""
    fields = iter(nul_fields(data))
    statuses: dict[str, tuple[Status, str | None]] = {}
    changes: list[ChangedFile] = []
    for field in fields:
        if field.startswith(":"):
            first = next(fields)
            status = _status(field)
            path, renamed_from = (next(fields), first) if status == "renamed" else (first, None)
            statuses[path] = (status, renamed_from)
            continue
        added, deleted, path = field.split("\t", 2)
        if not path:
            next(fields)
            path = next(fields)
        status, renamed_from = statuses[path]
        changes.append(ChangedFile(path, status, renamed_from, _count(added), _count(deleted)))
    return changes


def _status(raw: str) -> Status:
    """The status of a raw line, `:<old mode> <new mode> <old sha> <new sha> <letter>`."""
    _, _, old_sha, new_sha, letter = raw.split(" ")
    return "mode_changed" if letter == "M" and old_sha == new_sha else _STATUS[letter[0]]


def _count(text: str) -> int | None:
    return None if text == "-" else int(text)


def _entry(field: str) -> FileEntry:
    head, path = field.split("\t", 1)
    mode, _, sha, size = head.split()
    return FileEntry(path, mode, 0 if size == "-" else int(size), sha)


def _commit(fields: list[str]) -> CommitInfo:
    sha, parents, name, email, seconds, subject, body = fields
    return CommitInfo(sha, tuple(parents.split()), name, email, datetime.fromtimestamp(int(seconds), UTC), subject, body.strip("\n"))
