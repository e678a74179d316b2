"""The bare repositories under one directory: which there are, where, and what their references say.

Invariant: a repository appears under its name whole (it is prepared aside and renamed), and its path comes from a checked name only.
"""

import asyncio
import contextlib
import fcntl
import hashlib
import os
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path

from services.artifact.domain import BranchMove, Limits, pick_default_branch
from services.artifact.errors import Contended, EmptyRepository, GitFailed, RepositoryExists, RepositoryNotFound, UnknownBase, UnknownCommit
from services.artifact.git import OWN_CONFIG, Git
from services.artifact.names import check_repository_name, check_run_ref, check_sha, is_sha, ref_component

_BRANCHES_SHOWN = 10
_LOCK_POLL_SECONDS = 0.05
_LOCK_SECONDS = 600.0
_LEFTOVER_SECONDS = 86_400.0
_ZERO = "0" * 40


class Repositories:
    """All repositories of one store. Safe to use from several processes on the same directory."""

    def __init__(self, root: Path, limits: Limits | None = None) -> None:
        self.root = root
        self.limits = limits or Limits()

    def path(self, name: str) -> Path:
        """Where a repository lies or would lie. Raises InvalidName."""
        return self.root / "git" / f"{check_repository_name(name)}.git"

    def exists(self, name: str) -> bool:
        return (self.path(name) / "HEAD").is_file()

    def require(self, name: str) -> Path:
        """The path of a repository that exists. Raises InvalidName, RepositoryNotFound."""
        path = self.path(name)
        if not (path / "HEAD").is_file():
            raise RepositoryNotFound(f"There is no repository {name!r} here. Import it by its URL or path, or create it first.")
        return path

    def git(self, name: str) -> Git:
        """Git in a repository that exists, with no transport."""
        return Git(self.require(name), timeout_seconds=self.limits.command_timeout_seconds)

    def names(self) -> list[str]:
        """The names of all repositories, sorted."""
        base = self.root / "git"
        found = []
        for folder, below, files in os.walk(base):
            if folder.endswith(".git"):
                below.clear()
                if "HEAD" in files:
                    found.append(str(Path(folder).relative_to(base)).removesuffix(".git"))
        return sorted(found)

    async def create(self, name: str) -> None:
        """An empty repository whose first branch will be main. Raises InvalidName, RepositoryExists."""
        async with self.locked(name):
            if self.exists(name):
                raise RepositoryExists(f"A repository {name!r} exists already. Use it, or choose another name.")
            async with self.prepared(name):
                pass

    async def delete(self, name: str) -> None:
        """Removes a repository and everything in it. Raises InvalidName, RepositoryNotFound."""
        async with self.locked(name):
            aside = Path(tempfile.mkdtemp(dir=self._work_directory()))
            self.require(name).rename(aside / "gone.git")
        await asyncio.to_thread(shutil.rmtree, aside)

    @contextlib.asynccontextmanager
    async def prepared(self, name: str) -> AsyncIterator[Git]:
        """An empty repository aside, which takes its name when the block ends well and is gone when it does not."""
        with tempfile.TemporaryDirectory(dir=self._work_directory(), ignore_cleanup_errors=True) as aside:
            fresh = Path(aside) / "new.git"
            fresh.mkdir()
            git = Git(fresh, timeout_seconds=self.limits.command_timeout_seconds)
            await git.run("init", "--quiet", "--bare", "--template=", "--initial-branch=main", ".")
            yield git
            self.path(name).parent.mkdir(parents=True, exist_ok=True)
            fresh.rename(self.path(name))

    @contextlib.asynccontextmanager
    async def locked(self, name: str) -> AsyncIterator[None]:
        """One at a time for creating and fetching a repository, across processes of this machine."""
        folder = self.root / "locks"
        folder.mkdir(parents=True, exist_ok=True)
        key = hashlib.sha256(check_repository_name(name).encode()).hexdigest()[:32]
        with (folder / key).open("wb") as handle:
            while True:
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    await asyncio.sleep(_LOCK_POLL_SECONDS)
            yield

    async def refs(self, git: Git, prefix: str) -> dict[str, str]:
        """References below `prefix` (which ends with '/'), named without it, and the commits they point to."""
        listed = await git.text("for-each-ref", "--format=%(refname) %(objectname)", prefix)
        pairs = (line.rsplit(" ", 1) for line in listed.splitlines())
        return {ref.removeprefix(prefix): sha for ref, sha in pairs}

    async def default_branch(self, git: Git) -> str:
        """The branch that HEAD names; it may not exist yet."""
        return (await git.text("symbolic-ref", "HEAD")).removeprefix("refs/heads/")

    async def settle_head(self, git: Git) -> None:
        """Lets HEAD name a branch that exists, where it names none: the first push decides what the default branch is called."""
        head, branches = await self.default_branch(git), await self.refs(git, "refs/heads/")
        chosen = pick_default_branch(head, branches)
        if chosen and chosen != head:
            await git.run("symbolic-ref", "HEAD", f"refs/heads/{chosen}")

    async def update_refs(self, git: Git, updates: Sequence[tuple[str, str | None, str | None]]) -> bool:
        """All of the updates `(reference, new, expected old)` or none; None means absent. False when one was not as expected."""
        lines = b"".join(f"update {ref}\0{new or _ZERO}\0{old or _ZERO}\0".encode("utf-8", "surrogateescape") for ref, new, old in updates)
        if not lines:
            return True
        result = await git.run("update-ref", "--stdin", "-z", stdin=b"start\0" + lines + b"prepare\0commit\0", ok=(0, 128))
        if result.code and "cannot lock ref" not in result.stderr:
            raise GitFailed(f"References could not be updated: {result.stderr.strip()[-1000:]}")
        return result.code == 0

    async def commit(self, name: str, sha: str) -> str:
        """The id of a commit that is here. Raises InvalidName, RepositoryNotFound, UnknownCommit."""
        found = await self.git(name).run("cat-file", "-t", check_sha(sha), ok=(0, 1, 128))
        if found.text != "commit":
            raise UnknownCommit(f"{name!r} holds no commit {sha}. Import the repository again, or save the commit first.")
        return sha

    async def resolve(self, git: Git, base: str | None, folders: tuple[str, ...] = ("refs/heads/",)) -> tuple[str | None, str]:
        """A base as (branch or None, commit): a branch below one of `folders`, a tag, or a commit id of at least 7 digits.

        None means the default branch. Raises EmptyRepository, UnknownBase (which lists some branches).
        """
        wanted = (await self.default_branch(git) if base is None else base).removeprefix("refs/heads/")
        found = [(folder + wanted, wanted) for folder in folders] + [(f"refs/tags/{wanted.removeprefix('refs/tags/')}", None)]
        if not wanted.startswith("-") and await self._valid_ref(git, wanted):
            for ref, branch in found:
                if sha := await self._peel(git, ref):
                    return branch, sha
        hexadecimal = len(wanted) >= 7 and all(digit in "0123456789abcdef" for digit in wanted)
        if hexadecimal and (sha := await self._peel(git, wanted)):
            return None, sha
        raise await self._unknown_base(git, wanted, folders)

    async def _valid_ref(self, git: Git, name: str) -> bool:
        return bool(name) and "\0" not in name and (await git.run("check-ref-format", f"refs/heads/{name}", ok=(0, 1))).code == 0

    async def _peel(self, git: Git, revision: str) -> str | None:
        result = await git.run("rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}", ok=(0, 1, 128))
        return result.text if is_sha(result.text) else None

    async def _unknown_base(self, git: Git, wanted: str, folders: tuple[str, ...]) -> UnknownBase | EmptyRepository:
        branches = sorted({branch for folder in folders for branch in await self.refs(git, folder)})
        if not branches:
            return EmptyRepository("The repository holds no commit yet. Push a first commit, then ask again.")
        shown = ", ".join(branches[:_BRANCHES_SHOWN]) + (
            f" and {len(branches) - _BRANCHES_SHOWN} more" if len(branches) > _BRANCHES_SHOWN else ""
        )
        return UnknownBase(f"{wanted[:200]!r} names no branch, tag or commit of the repository. Its branches are: {shown}.")

    async def move_branches(self, git: Git, moves: list[BranchMove]) -> None:
        """Applies what `mirror_moves` decided. Raises Contended when a branch changed meanwhile."""
        updates: list[tuple[str, str | None, str | None]] = []
        for move in moves:
            if move.only_forward and move.old and move.new and not await self.is_ancestor(git, move.old, move.new):
                continue
            updates.append((f"refs/heads/{move.branch}", move.new, move.old))
        removed = [update for update in updates if update[1] is None]
        # Apart, because git refuses to remove `a` and make `a/b` in one transaction.
        if not (await self.update_refs(git, removed) and await self.update_refs(git, updates[len(removed) :])):
            raise Contended("A branch changed while the source was imported. Import again.")

    async def is_ancestor(self, git: Git, older: str, newer: str) -> bool:
        return (await git.run("merge-base", "--is-ancestor", older, newer, ok=(0, 1))).code == 0

    async def prune_run(self, name: str, run_id: str) -> int:
        """Drops the hidden references of a run and returns how many there were. Its commits may be collected from then on."""
        git = self.git(name)
        prefix = f"refs/runs/{ref_component(run_id)}/"
        held = await self.refs(git, prefix)
        if not await self.update_refs(git, [(prefix + ref, None, sha) for ref, sha in held.items()]):
            raise Contended(f"The references of run {run_id!r} changed while they were removed. Try again.")
        return len(held)

    async def kept(self, name: str, ref: str) -> str | None:
        """The commit that a run's reference points to. Raises InvalidName, RepositoryNotFound."""
        return (await self.git(name).run("rev-parse", "--verify", "--quiet", check_run_ref(ref), ok=(0, 1))).text or None

    async def expire_runs(self, name: str, before: float) -> int:
        """Prunes the runs whose newest hidden reference was made before that time (seconds since 1970); returns how many."""
        listed = await self.git(name).text("for-each-ref", "--format=%(creatordate:unix) %(refname:lstrip=2)", "refs/runs/")
        newest: dict[str, int] = {}
        for line in listed.splitlines():
            seconds, _, ref = line.partition(" ")
            run_id = ref.partition("/")[0]
            newest[run_id] = max(int(seconds or 0), newest.get(run_id, 0))
        stale = [run_id for run_id, seconds in newest.items() if seconds < before]
        for run_id in stale:
            await self.prune_run(name, run_id)
        return len(stale)

    def clear_leftovers(self, now: float) -> int:
        """Removes what a crash left: unfinished imports, and git's lock files, which no git command holds this long. Returns how many."""
        work = [path for path in (self.root / "work").glob("*") if now - path.stat().st_mtime > _LEFTOVER_SECONDS]
        for path in work:
            shutil.rmtree(path, ignore_errors=True)
        locks = []
        for name in self.names():
            path = self.path(name)
            locks += [*path.glob("*.lock"), *(path / "refs").rglob("*.lock")]
        old = [lock for lock in locks if now - lock.stat().st_mtime > _LOCK_SECONDS]
        for lock in old:
            lock.unlink(missing_ok=True)
        return len(work) + len(old)

    async def maintain(self, name: str) -> None:
        """Packs a repository when it grew untidy; unreferenced objects go after two weeks, hidden references count as references."""
        git = self.git(name)
        tidy = replace(git, config=(*OWN_CONFIG, ("gc.auto", "2000"), ("gc.autoPackLimit", "50"), ("gc.autoDetach", "false")))
        await tidy.run("gc", "--auto", "--quiet")

    async def size_bytes(self, git: Git) -> int:
        """The bytes of all objects on disk."""
        counted = dict(line.split(": ") for line in (await git.text("count-objects", "-v")).splitlines())
        return (int(counted["size"]) + int(counted["size-pack"])) * 1024

    def push_environment(self) -> dict[str, str]:
        """What our push check needs to know; it runs as a hook of git's, in a process of its own."""
        return {
            "AGENT_CODER_PYTHON": sys.executable,
            "AGENT_CODER_PUSH_CHECK": str(Path(__file__).with_name("push_check.py")),
            "AGENT_CODER_MAX_FILE_BYTES": str(self.limits.max_file_bytes),
        }

    def _work_directory(self) -> Path:
        folder = self.root / "work"
        folder.mkdir(parents=True, exist_ok=True)
        return folder
