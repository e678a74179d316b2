"""Carries commits between the store and sandboxes as git bundles (gitformat-bundle(5), version 2).

Invariant: nothing of a received bundle is in the repository before git's own checks and ours have passed on all of it.
"""

import asyncio
import contextlib
import os
import shutil
import tempfile
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import IO

from services.artifact.errors import BundleRefused, Contended, FileTooLarge, GitFailed, GitTimedOut, MissingPrerequisite, TooLarge
from services.artifact.git import Git
from services.artifact.names import check_run_ref, check_sha, is_sha
from services.artifact.repositories import Repositories

BUNDLE_REF = "refs/agent-coder/commit"
_SIGNATURE = b"# v2 git bundle\n"
_MAX_HEADER_LINES = 10_000
_ATTEMPTS = 5
_PACK_PARTS = (".keep", ".rev", ".pack", ".idx")


class Transport:
    """Bundles out of and into the store's repositories."""

    def __init__(self, repositories: Repositories) -> None:
        self._repositories = repositories

    async def bundle(self, name: str, commit: str, have: Sequence[str] = ()) -> AsyncGenerator[bytes, None]:
        """A bundle of `commit` (as HEAD and BUNDLE_REF) without what the commits in `have` reach; unknown ones are ignored.

        Raises RepositoryNotFound, UnknownCommit.
        """
        git = self._repositories.git(name)
        await self._repositories.commit(name, commit)
        known = await self._known(git, have)
        less = [f"^{sha}" for sha in known]
        edges = await git.text("rev-list", "--boundary", commit, *less) if known else ""
        needed = [f"{line}\n" for line in edges.splitlines() if line.startswith("-")]
        yield _SIGNATURE + "".join([*needed, f"{commit} HEAD\n{commit} {BUNDLE_REF}\n\n"]).encode()
        thin = ["--thin"] if known else []
        wanted = "\n".join([commit, *less, ""]).encode()
        packing = git.stream("pack-objects", "--revs", "--stdout", "--delta-base-offset", "-q", *thin, stdin=wanted)
        async with contextlib.aclosing(packing):
            async for piece in packing:
                yield piece

    async def receive_bundle(self, name: str, ref: str, bundle: Path, commit: str) -> None:
        """Checks a bundle and makes `ref` (refs/runs/<run id>/<number>) point to `commit`, which the bundle must bring or complete.

        A commit that was saved under the same number before is kept beside it. Raises BundleRefused, MissingPrerequisite, TooLarge,
        FileTooLarge, RepositoryNotFound, InvalidName, Contended (retryable).
        """
        check_run_ref(ref)
        check_sha(commit)
        git = self._repositories.git(name)
        objects = git.directory / "objects"
        # Git's own garbage collection knows this prefix and clears what a crash leaves behind.
        quarantine = Path(tempfile.mkdtemp(prefix="tmp_objdir-incoming-", dir=objects))
        try:
            apart = git.having(GIT_OBJECT_DIRECTORY=str(quarantine), GIT_ALTERNATE_OBJECT_DIRECTORIES=str(objects))
            with bundle.open("rb", buffering=0) as data:
                await self._unpack(apart, data)
            await self._check(apart, commit)
            await asyncio.to_thread(_migrate, quarantine / "pack", objects / "pack")
        finally:
            await asyncio.to_thread(shutil.rmtree, quarantine, ignore_errors=True)
        await self._point(git, ref, commit)

    async def _unpack(self, git: Git, data: IO[bytes]) -> None:
        needed = read_header(data)
        missing = set(needed) - set(await self._known(git, needed))
        if missing:
            raise MissingPrerequisite(f"The bundle builds on commit {min(missing)}, which is not here. Send a bundle that holds it.")
        limit = self._repositories.limits.max_push_bytes
        try:
            await git.run("index-pack", "--stdin", "--fix-thin", "--strict", f"--max-input-size={limit}", stdin=data)
        except GitTimedOut:
            raise
        except GitFailed as error:
            if "exceeds maximum allowed size" in str(error):
                raise TooLarge(f"The bundle is over the limit of {limit:,} bytes. Commit less, or raise the limit.") from error
            raise BundleRefused(f"Git refuses the objects of the bundle: {error}") from error

    async def _check(self, git: Git, commit: str) -> None:
        """Every object that is new is here, and no new file is over the limit."""
        found = await git.run("rev-list", "--objects", commit, "--not", "--all", ok=(0, 128))
        if found.code or (await git.run("cat-file", "-t", commit, ok=(0, 128))).text != "commit":
            raise BundleRefused(f"The bundle does not complete commit {commit}. Send a bundle of that commit.")
        sized = await git.run("cat-file", "--batch-check=%(objecttype) %(objectsize) %(rest)", stdin=found.stdout)
        limit = self._repositories.limits.max_file_bytes
        for line in sized.stdout.splitlines():
            kind, size, path = line.split(b" ", 2)
            if kind == b"blob" and int(size) > limit:
                raise FileTooLarge(path.decode("utf-8", "replace"), int(size), limit)

    async def _point(self, git: Git, ref: str, commit: str) -> None:
        folder, name = f"{ref.rpartition('/')[0]}/", ref.rpartition("/")[2]
        for _ in range(_ATTEMPTS):
            saved = await self._repositories.refs(git, folder)
            current = saved.get(name)
            if current == commit:
                return
            updates = [(ref, commit, current)]
            if current and f"{name}.{current[:12]}" not in saved:
                updates.append((f"{ref}.{current[:12]}", current, None))
            if await self._repositories.update_refs(git, updates):
                return
        raise Contended(f"{ref} kept changing while a commit was saved. Try again.")

    async def _known(self, git: Git, shas: Sequence[str]) -> list[str]:
        asked = "".join(f"{sha}\n" for sha in shas if is_sha(sha)).encode()
        told = (await git.text("cat-file", "--batch-check=%(objectname) %(objecttype)", stdin=asked)).splitlines() if asked else []
        return [line.split(" ")[0] for line in told if line.endswith(" commit")]


def read_header(data: IO[bytes]) -> list[str]:
    """Reads a bundle's header, leaves the file at the pack, and returns the commits that the bundle builds on. Raises BundleRefused."""
    if data.read(len(_SIGNATURE)) != _SIGNATURE:
        raise BundleRefused("The data is not a git bundle of version 2. Make it with `git bundle create --version=2`.")
    needed: list[str] = []
    offset = len(_SIGNATURE)
    with os.fdopen(os.dup(data.fileno()), "rb") as buffered:
        for _ in range(_MAX_HEADER_LINES):
            line = buffered.readline(4096)
            offset += len(line)
            if line == b"\n":
                os.lseek(data.fileno(), offset, os.SEEK_SET)
                return needed
            if not line.endswith(b"\n"):
                break
            if line.startswith(b"-"):
                needed.append(line[1:].split()[0].decode("ascii", "replace"))
    raise BundleRefused("The header of the bundle is cut off or too long. Make the bundle again.")


def _migrate(source: Path, target: Path) -> None:
    """Moves packs into the repository, the index last: a pack counts from the moment its index is there."""
    if not source.is_dir():
        return
    target.mkdir(exist_ok=True)
    for part in sorted(source.iterdir(), key=lambda path: _PACK_PARTS.index(path.suffix)):
        part.rename(target / part.name)
    folder = os.open(target, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
