"""Reads and lists the files of a workspace. Whatever a path is swapped for meanwhile, only regular files of the tree are read."""

import contextlib
import hashlib
import os
import stat
from collections.abc import Iterator
from typing import Literal

from libs.contracts.sandbox import DirectoryEntry, FileContent, Listing
from services.sandbox.errors import BadPath
from services.sandbox.paths import Place, Tree

CHUNK_BYTES = 1024 * 1024
LISTED = 5000

Kind = Literal["file", "directory", "symlink", "other"]


def read_file(tree: Tree, path: str, max_bytes: int | None) -> FileContent:
    """The file's first `max_bytes` (all without), with size, mode and SHA-256 of the whole. Raises BadPath, FileMissing."""
    with tree.find(path) as place, _opened(place) as descriptor:
        status = os.fstat(descriptor)
        digest, content, size = hashlib.sha256(), bytearray(), 0
        while chunk := os.read(descriptor, CHUNK_BYTES):
            digest.update(chunk)
            size += len(chunk)
            content += chunk if max_bytes is None else chunk[: max(0, max_bytes - len(content))]
    return FileContent(
        path=str(place.path),
        content=bytes(content),
        size=size,
        mode=stat.S_IMODE(status.st_mode),
        sha256=digest.hexdigest(),
        truncated=len(content) < size,
    )


def list_folder(tree: Tree, path: str) -> Listing:
    """A folder's entries, without the git folder; names that are not UTF-8 are shown escaped. Raises BadPath, FileMissing."""
    with tree.find(path) as place:
        if not stat.S_ISDIR(place.require().st_mode):
            raise BadPath(f"{path} is not a folder; read it as a file")
        folder = os.open(place.name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=place.folder)
        try:
            names = sorted(name for name in os.listdir(folder) if name != ".git")
            entries = tuple(_entry(folder, name) for name in names[:LISTED])
        finally:
            os.close(folder)
    return Listing(entries=entries, truncated=len(names) > LISTED)


@contextlib.contextmanager
def _opened(place: Place) -> Iterator[int]:
    """Opened without waiting: a pipe with nobody at its other end must not hold the service."""
    place.require()
    try:
        descriptor = os.open(place.name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=place.folder)
    except OSError as error:
        raise BadPath(f"{place.path} cannot be read: {os.strerror(error.errno or 0)}") from error
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise BadPath(f"{place.path} is not a regular file")
        yield descriptor
    finally:
        os.close(descriptor)


def _entry(folder: int, name: str) -> DirectoryEntry:
    shown = os.fsencode(name).decode("utf-8", errors="backslashreplace")
    try:
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except OSError:
        return DirectoryEntry(name=shown, kind="other")
    return DirectoryEntry(name=shown, kind=_kind(status.st_mode), size=status.st_size)


def _kind(mode: int) -> Kind:
    if stat.S_ISREG(mode):
        return "file"
    if stat.S_ISDIR(mode):
        return "directory"
    return "symlink" if stat.S_ISLNK(mode) else "other"
