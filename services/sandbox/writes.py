"""Writes several files of a workspace, all or none.

Everything is checked first. Content is staged beside the tree, where no command can see it, and renamed into place; what was there is
kept until the last step worked, and put back when one fails. Writing to a link inside the tree writes what it leads to.
"""

import contextlib
import os
import secrets
import stat
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from libs.contracts.sandbox import FileWrite
from services.sandbox.errors import BadPath, BadRequest, FileChanged, FileMissing
from services.sandbox.files import read_file
from services.sandbox.paths import Tree

NEW_FILE_MODE = 0o644


@dataclass(frozen=True)
class _Put:
    """A file to be there afterwards: content with mode, or a link."""

    path: str
    content: bytes
    mode: int
    link: bool = False


@dataclass
class _Plan:
    """Steps in the order to take them: what goes first makes room for what comes."""

    removals: list[str] = field(default_factory=list)
    puts: list[_Put] = field(default_factory=list)

    def add(self, removal: str | None, put: _Put | None) -> None:
        if removal is not None and removal in self.removals:
            raise BadRequest(f"{removal} is removed twice in one write")
        if put is not None and any(put.path == other.path for other in self.puts):
            raise BadRequest(f"{put.path} is written twice in one write")
        self.removals += [removal] if removal is not None else []
        self.puts += [put] if put is not None else []


def write_files(tree: Tree, staging: Path, writes: Sequence[FileWrite]) -> None:
    """Apply all writes or none; `staging` is a folder on the tree's file system. Without content and with `renamed_from`: a move.

    Raises BadPath, BadRequest, FileMissing, FileChanged; then the tree is as it was.
    """
    plan = _Plan()
    for write in writes:
        plan.add(*_check(tree, write))
    with _Transaction(tree, staging) as transaction:
        for path in plan.removals:
            transaction.remove(path)
        for put in plan.puts:
            transaction.put(put)
    for path in plan.removals:
        _prune(tree, PurePosixPath(path).parent)


def _check(tree: Tree, write: FileWrite) -> tuple[str | None, _Put | None]:
    """What a write removes and what it puts, links resolved."""
    if write.content is None and write.renamed_from is None:
        with tree.find(write.path, follow=False) as place:
            if stat.S_ISDIR(place.require().st_mode):
                raise BadPath(f"{write.path} is a folder; name the files to delete")
            _require_expected(tree, write, exists=True)
            return str(place.path), None
    moved = _source(tree, write)
    path, mode = _target(tree, write, follow=moved is None or not moved.link)
    if moved is None:
        assert write.content is not None
        return None, _Put(path, write.content, mode or NEW_FILE_MODE)
    content = moved.content if write.content is None else write.content
    chosen = moved.mode if write.mode is None else write.mode & 0o777
    return moved.path, _Put(path, content, chosen, moved.link and write.content is None)


def _source(tree: Tree, write: FileWrite) -> _Put | None:
    if write.renamed_from is None:
        return None
    with tree.find(write.renamed_from, follow=False) as place:
        status = place.require()
        if stat.S_ISLNK(status.st_mode):
            return _Put(str(place.path), os.fsencode(os.readlink(place.name, dir_fd=place.folder)), 0o777, link=True)
        if not place.is_file:
            raise BadPath(f"{write.renamed_from} is not a file; name the files to move one by one")
        content = read_file(tree, write.renamed_from, None).content if write.content is None else b""
        return _Put(str(place.path), content, stat.S_IMODE(status.st_mode))


def _target(tree: Tree, write: FileWrite, follow: bool) -> tuple[str, int | None]:
    """The path to write, links resolved, and the mode that is asked for or there; None for a new file."""
    wanted = None if write.mode is None else write.mode & 0o777
    try:
        with tree.find(write.path, follow=follow) as place:
            _require_expected(tree, write, exists=place.status is not None)
            if place.status is not None and not (place.is_file or stat.S_ISLNK(place.status.st_mode)):
                raise BadPath(f"{write.path} is not a regular file and cannot be written")
            there = stat.S_IMODE(place.status.st_mode) if place.status is not None else None
            return str(place.path), there if wanted is None else wanted
    except FileMissing:
        _require_expected(tree, write, exists=False)
        return str(PurePosixPath(write.path)), wanted


def _require_expected(tree: Tree, write: FileWrite, exists: bool) -> None:
    expected = write.expected_sha256
    if expected is None:
        return
    if expected == "":
        if exists:
            raise FileChanged(f"{write.path} exists already; read it, then edit it")
    elif not exists or read_file(tree, write.path, 0).sha256 != expected:
        raise FileChanged(f"{write.path} is not as it was when it was read; read it again")


def _prune(tree: Tree, folder: PurePosixPath) -> None:
    """Remove folders that became empty, as git would."""
    while folder.parts:
        try:
            with tree.find(str(folder), follow=False) as place:
                os.rmdir(place.name, dir_fd=place.folder)
        except (OSError, FileMissing, BadPath):
            return
        folder = folder.parent


class _Transaction:
    """Renames that are taken back in reverse order when the block raises. Folders stay open, so that nobody can move them meanwhile."""

    def __init__(self, tree: Tree, staging: Path) -> None:
        self._tree = tree
        self._staging_path = staging
        self._open = contextlib.ExitStack()
        self._undo: list[Callable[[], None]] = []

    def __enter__(self) -> "_Transaction":
        self._staging_path.mkdir(exist_ok=True)
        self._staging = os.open(self._staging_path, os.O_RDONLY | os.O_DIRECTORY)
        self._open.callback(os.close, self._staging)
        self._clear()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _trace: object) -> None:
        try:
            if kind is not None:
                for step in reversed(self._undo):
                    step()
            self._clear()
        finally:
            self._open.close()
        if isinstance(error, OSError):
            raise BadPath(f"nothing was written: {error.strerror} ({error.filename})") from error

    def remove(self, path: str) -> None:
        place = self._open.enter_context(self._tree.find(path, follow=False))
        place.require()
        self._set_aside(place.name, place.folder)

    def put(self, put: _Put) -> None:
        staged = self._stage(put)
        place = self._open.enter_context(self._tree.find(put.path, follow=False, create=True))
        if place.status is not None:
            self._set_aside(place.name, place.folder)
        else:
            self._undo.append(lambda: _prune(self._tree, place.path.parent))
        os.rename(staged, place.name, src_dir_fd=self._staging, dst_dir_fd=place.folder)
        self._undo.append(lambda: os.unlink(place.name, dir_fd=place.folder))

    def _stage(self, put: _Put) -> str:
        name = secrets.token_hex(8)
        if put.link:
            os.symlink(os.fsdecode(put.content), name, dir_fd=self._staging)
            return name
        descriptor = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=self._staging)
        with os.fdopen(descriptor, "wb") as file:
            file.write(put.content)
            os.fchmod(file.fileno(), put.mode)
        return name

    def _set_aside(self, name: str, folder: int) -> None:
        kept = secrets.token_hex(8)
        os.rename(name, kept, src_dir_fd=folder, dst_dir_fd=self._staging)
        self._undo.append(lambda: os.rename(kept, name, src_dir_fd=self._staging, dst_dir_fd=folder))

    def _clear(self) -> None:
        for name in os.listdir(self._staging):
            os.unlink(name, dir_fd=self._staging)
