"""Finds files of a hostile tree by walking it one component at a time, with open folders and no link followed by the kernel.

Links are resolved here, as the sandbox would see them, and checked at every step: nobody who swaps a folder for a link meanwhile
can lead a path out of the tree.
"""

import contextlib
import errno
import os
import stat
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from services.sandbox.backends.bubblewrap import WORKSPACE
from services.sandbox.errors import BadPath, FileMissing

MAX_LINKS = 40
GIT_NAMES = frozenset({".git", "git~1"})


@dataclass(frozen=True)
class Place:
    """A name in an open folder, links resolved. `folder` is a descriptor that the walk owns; `status` is None when nothing is there."""

    folder: int
    name: str
    path: PurePosixPath
    status: os.stat_result | None

    @property
    def is_file(self) -> bool:
        """Whether a regular file is there."""
        return self.status is not None and stat.S_ISREG(self.status.st_mode)

    def require(self) -> os.stat_result:
        """The status; raises FileMissing."""
        if self.status is None:
            raise FileMissing(f"{self.path} does not exist in the workspace")
        return self.status


class Tree:
    """A workspace's files. Paths are relative to the workspace, or absolute as the sandbox sees them (`/workspace/…`)."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @contextlib.contextmanager
    def find(self, path: str, *, follow: bool = True, create: bool = False) -> Iterator[Place]:
        """Walk to `path`; `follow` resolves a link in its last place, `create` makes missing folders. Raises BadPath, FileMissing."""
        walk = _Walk(self.root, path, create)
        try:
            yield walk.to_place(follow)
        finally:
            walk.close()


class _Walk:
    def __init__(self, root: Path, path: str, create: bool) -> None:
        self._asked = path
        self._create = create
        self._links = 0
        self._pending = deque(_parts(path))
        self._names: list[str] = []
        self._folders = [os.open(root, os.O_RDONLY | os.O_DIRECTORY)]

    def close(self) -> None:
        for folder in self._folders:
            os.close(folder)

    def to_place(self, follow: bool) -> Place:
        while self._pending:
            name = self._pending.popleft()
            if name == "..":
                self._up()
                continue
            self._require_allowed(name)
            status = self._status(name)
            last = not self._pending
            if status is not None and stat.S_ISLNK(status.st_mode) and (follow or not last):
                self._expand(name)
            elif last:
                return Place(self._folders[-1], name, PurePosixPath(*self._names, name), status)
            else:
                self._enter(name, status)
        return Place(self._folders[-1], ".", PurePosixPath(*self._names), os.fstat(self._folders[-1]))

    def _require_allowed(self, name: str) -> None:
        if name.casefold() in GIT_NAMES:
            raise BadPath(f"{self._asked}: the git folder is kept by the system and cannot be read or written as files")

    def _status(self, name: str) -> os.stat_result | None:
        try:
            return os.stat(name, dir_fd=self._folders[-1], follow_symlinks=False)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise BadPath(f"{self._asked}: {os.strerror(error.errno or 0)}") from error

    def _up(self) -> None:
        if not self._names:
            raise BadPath(f"{self._asked} leaves the workspace")
        self._names.pop()
        os.close(self._folders.pop())

    def _expand(self, name: str) -> None:
        self._links += 1
        if self._links > MAX_LINKS:
            raise BadPath(f"{self._asked}: too many links lead to one another")
        target = os.readlink(name, dir_fd=self._folders[-1])
        if target.startswith("/"):
            if not _is_inside(target):
                raise BadPath(f"{self._asked}: {PurePosixPath(*self._names, name)} is a link to {target}, outside of the workspace")
            while self._names:
                self._up()
        self._pending.extendleft(reversed(_parts(target)))

    def _enter(self, name: str, status: os.stat_result | None) -> None:
        if status is None:
            if not self._create:
                raise FileMissing(f"{self._asked} does not exist in the workspace: there is no folder {PurePosixPath(*self._names, name)}")
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, 0o755, dir_fd=self._folders[-1])
        try:
            self._folders.append(os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=self._folders[-1]))
        except OSError as error:
            if error.errno in {errno.ENOTDIR, errno.ELOOP}:
                raise BadPath(f"{self._asked}: {PurePosixPath(*self._names, name)} is not a folder") from error
            raise BadPath(f"{self._asked}: {os.strerror(error.errno or 0)}") from error
        self._names.append(name)


def _is_inside(path: str) -> bool:
    return path == WORKSPACE or path.startswith(f"{WORKSPACE}/")


def _parts(path: str) -> list[str]:
    if "\0" in path:
        raise BadPath("a path cannot hold a zero byte")
    if path.startswith("/"):
        if not _is_inside(path):
            raise BadPath(f"{path} is outside of the workspace; paths are relative to it")
        path = path[len(WORKSPACE) :]
    return [part for part in path.split("/") if part not in {"", "."}]
