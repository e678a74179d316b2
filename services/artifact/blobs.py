"""Blobs: bytes under the SHA-256 of their content, kept as long as an owner (a run, a conversation) holds them.

Invariant: a blob is visible only when all of it is on disk, and its name is the digest of what it holds.
"""

import asyncio
import fcntl
import hashlib
import os
import shutil
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from services.artifact.errors import BlobNotFound, InvalidName, TooLarge, UploadRefused
from services.artifact.names import ref_component

_CHUNK_BYTES = 256 * 1024


@dataclass(frozen=True)
class Upload:
    """How far an upload is: the bytes received, and the digest when it is complete."""

    received: int
    sha256: str | None = None


class BlobStore(Protocol):
    """What a store of blobs can do."""

    async def put_chunk(self, owner: str, upload_id: str, offset: int, data: bytes, *, last: bool) -> Upload:
        """Takes one chunk; a repeated one changes nothing. Raises UploadRefused, TooLarge."""

    def read(self, sha256: str, offset: int = 0) -> AsyncGenerator[bytes, None]:
        """The bytes from `offset`, in pieces. Raises BlobNotFound."""

    async def delete_owner(self, owner: str) -> int:
        """Lets go of all of an owner's blobs and returns how many; what no other owner holds is gone."""


class DiskBlobStore:
    """Blobs in a directory. An owner's hold is a hard link, so the link count says when nobody needs a blob."""

    def __init__(self, root: Path, max_bytes: int) -> None:
        self._root = root
        self._max_bytes = max_bytes

    async def put_chunk(self, owner: str, upload_id: str, offset: int, data: bytes, *, last: bool) -> Upload:
        """Takes one chunk of an upload, in order; the last one closes it. Done before: the same answer. Other bytes start anew from there.

        Raises UploadRefused for a gap, TooLarge over the limit of a blob.
        """
        return await asyncio.to_thread(self._put, self._owner(owner), ref_component(upload_id), offset, data, last)

    async def read(self, sha256: str, offset: int = 0) -> AsyncGenerator[bytes, None]:
        """The bytes of a blob from `offset` on, in pieces of 256 KB. Raises BlobNotFound."""
        with self.path(sha256).open("rb") as file:
            file.seek(offset)
            while piece := await asyncio.to_thread(file.read, _CHUNK_BYTES):
                yield piece

    def path(self, sha256: str) -> Path:
        """The file that holds a blob; it is not to be changed. Raises BlobNotFound, InvalidName."""
        path = self._content(sha256)
        if not path.is_file():
            raise BlobNotFound(f"There is no blob {sha256[:12]}… here. Its owner may have been cleaned up.")
        return path

    async def delete_owner(self, owner: str) -> int:
        """Lets go of everything that an owner holds, unfinished uploads too; returns the number of blobs."""
        return await asyncio.to_thread(self._delete, self._owner(owner))

    async def release(self, owner: str, sha256: str) -> None:
        """Lets go of one blob of an owner, if it is held."""
        self._content(sha256)
        await asyncio.to_thread(self._release, self._owner(owner) / "blobs" / sha256)

    async def sweep(self, unfinished_seconds: float, keep_seconds: float) -> None:
        """Drops uploads idle for `unfinished_seconds`, owners without a new blob for `keep_seconds`, and what nobody holds."""
        now = time.time()
        await asyncio.to_thread(self._sweep, now - unfinished_seconds, now - keep_seconds)

    def _put(self, owner: Path, upload_id: str, offset: int, data: bytes, last: bool) -> Upload:
        done, part = owner / "done" / upload_id, owner / "uploads" / upload_id
        if recorded := self._finished(done, offset + len(data)):
            return recorded if last else Upload(offset + len(data))
        if offset + len(data) > self._max_bytes:
            part.unlink(missing_ok=True)
            raise TooLarge(f"The blob is over the limit of {self._max_bytes:,} bytes.")
        part.parent.mkdir(parents=True, exist_ok=True)
        with part.open("ab") as file, part.open("rb") as reader:
            fcntl.flock(file, fcntl.LOCK_EX)
            size = file.tell()
            if offset > size:
                raise UploadRefused(f"The chunk starts at byte {offset}, but only {size} bytes are here. Continue at {size}.")
            if os.pread(reader.fileno(), len(data), offset) != data:
                file.truncate(offset)
                file.write(data)
                file.flush()
            if last:
                os.fsync(file.fileno())
        return self._close(owner, part, done) if last else Upload(offset + len(data))

    def _finished(self, done: Path, until: int) -> Upload | None:
        """The record of a finished upload that covers a chunk ending at `until`."""
        recorded = done.read_text().split() if done.is_file() else []
        if len(recorded) != 2:
            return None
        sha256, size = recorded[0], int(recorded[1])
        return Upload(size, sha256) if until <= size and self._content(sha256).is_file() else None

    def _close(self, owner: Path, part: Path, done: Path) -> Upload:
        with part.open("rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        size = part.stat().st_size
        content, held = self._content(sha256), owner / "blobs" / sha256
        with self._locked():
            for folder in (content.parent, held.parent, done.parent):
                folder.mkdir(parents=True, exist_ok=True)
            if not content.is_file():
                part.rename(content)
            if not held.exists():
                os.link(content, held)
            _sync(content.parent)
            _sync(held.parent)
        done.write_text(f"{sha256} {size}")
        part.unlink(missing_ok=True)
        return Upload(size, sha256)

    def _delete(self, owner: Path) -> int:
        if not owner.is_dir():
            return 0
        with self._locked():
            held = [path.name for path in (owner / "blobs").iterdir()] if (owner / "blobs").is_dir() else []
            shutil.rmtree(owner)
            for sha256 in held:
                self._forget(sha256)
        return len(held)

    def _release(self, held: Path) -> None:
        with self._locked():
            held.unlink(missing_ok=True)
            self._forget(held.name)

    def _forget(self, sha256: str) -> None:
        """Removes content that no owner links to any more. The lock must be held."""
        content = self._content(sha256)
        if content.is_file() and content.stat().st_nlink == 1:
            content.unlink()

    def _sweep(self, unfinished_before: float, owners_before: float) -> None:
        for kind in ("uploads", "done"):
            for path in self._root.glob(f"owners/*/{kind}/*"):
                if path.stat().st_mtime < unfinished_before:
                    path.unlink(missing_ok=True)
        for blobs in self._root.glob("owners/*/blobs"):
            if blobs.stat().st_mtime < owners_before:
                self._delete(blobs.parent)
        with self._locked():
            # A process that died between two steps leaves content that nobody holds.
            for path in self._root.glob("content/*/*"):
                self._forget(path.name)

    def _owner(self, owner: str) -> Path:
        return self._root / "owners" / ref_component(owner)

    def _content(self, sha256: str) -> Path:
        if len(sha256) != 64 or not set(sha256) <= set("0123456789abcdef"):
            raise InvalidName(f"{sha256[:80]!r} is not a SHA-256 in hexadecimal digits.")
        return self._root / "content" / sha256[:2] / sha256

    @contextmanager
    def _locked(self) -> Iterator[None]:
        self._root.mkdir(parents=True, exist_ok=True)
        with (self._root / "lock").open("wb") as handle:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield


def _sync(folder: Path) -> None:
    """Makes the folder's entries durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
