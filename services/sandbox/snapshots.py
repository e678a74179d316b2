"""A workspace's tree as git objects: laid out from a commit, saved as a commit, carried as bundles.

A snapshot holds what is tracked plus new files that nothing ignores; build products, caches and what set-up made stay out.
The real index always describes the commit that was laid out, so that `git status` and `git diff` in the sandbox show the change.
"""

import contextlib
import os
import shutil
import stat
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from libs.contracts.run import ChangedFile
from services.sandbox.changes import parse_changes
from services.sandbox.errors import FilesTooLarge, GitFailed
from services.sandbox.git import Git

GITLINK = "160000"
SNAPSHOT_REF = "refs/workspace/snapshot"
IGNORED = (
    *("__pycache__/", "*.pyc", "*.pyo", ".pytest_cache/", ".mypy_cache/", ".ruff_cache/", ".hypothesis/", ".tox/", ".nox/", ".eggs/"),
    *("*.egg-info/", ".coverage", ".coverage.*", ".venv/", "venv/", "node_modules/", ".npm/", ".gradle/", ".DS_Store"),
)
IGNORED_WITH = {"Cargo.toml": "target/", "pom.xml": "target/", "build.gradle": "build/", "build.gradle.kts": "build/"}


@dataclass(frozen=True)
class Saved:
    """A commit and its tree."""

    commit: str
    tree: str


@dataclass(frozen=True)
class Author:
    """Who a commit is by."""

    name: str = "agent-coder"
    email: str = "agent-coder@localhost"


class Snapshots:
    """Saves and restores one workspace's tree. `max_file_bytes` is the largest file that may enter a commit."""

    def __init__(self, git: Git, max_file_bytes: int) -> None:
        self._git = git
        self._max_file_bytes = max_file_bytes

    async def head(self) -> str | None:
        """The commit that the tree was laid out from; None before the first."""
        answer = await self._git.text("rev-parse", "--verify", "--quiet", "HEAD^{commit}") if (self._git.folder / "index").exists() else ""
        return answer or None

    async def has(self, commit: str) -> bool:
        """Whether the commit and all that it reaches is here."""
        try:
            await self._git.run("rev-list", "--quiet", "--objects", commit, "--not", "--all")
        except GitFailed:
            return False
        return True

    async def unpack(self, bundle: Path) -> None:
        """Take in a bundle's objects and its tags. Raises GitFailed when it is broken or builds on commits that are not here."""
        listed = (await self._git.text("bundle", "unbundle", str(bundle))).splitlines()
        for line in listed:
            sha, _, ref = line.partition(" ")
            name = ref if ref.startswith("refs/tags/") else f"refs/workspace/kept/{sha}"
            with contextlib.suppress(GitFailed):
                await self._git.run("update-ref", name, sha)

    async def pack(self, path: Path, commit: str, since: str | None) -> Path:
        """Write a bundle of `commit` without what `since` already holds."""
        await self._git.run("update-ref", SNAPSHOT_REF, commit)
        await self._git.run("bundle", "create", "-q", "--version=2", str(path), SNAPSHOT_REF, *([f"^{since}"] if since else []))
        return path

    async def checkout(self, commit: str, created_by_setup: Collection[str] = ()) -> None:
        """Make tracked and new files those of `commit`; ignored files and what set-up made stay. Raises GitFailed."""
        await self._git.run("cat-file", "-e", f"{commit}^{{commit}}")
        await self._write_excludes(created_by_setup)
        for lock in ("index.lock", "HEAD.lock"):
            (self._git.folder / lock).unlink(missing_ok=True)
        await self._git.run("checkout", "-q", "--force", "--detach", "--no-recurse-submodules", commit)
        await self._git.run("clean", "-ffdq")

    async def save(
        self,
        message: str,
        author: Author,
        created_by_setup: Collection[str] = (),
        when: datetime | None = None,
    ) -> Saved:
        """Save the tree as a child of the commit that was laid out; the same tree, message and time give the same commit.

        `when` defaults to the parent's time. Raises FilesTooLarge, GitFailed.
        """
        parent = await self.head()
        tree = await self.tree(created_by_setup)
        moment = (
            f"{int(when.timestamp())} +0000" if when else await self._git.text("show", "-s", "--format=%cd", "--date=raw", parent or "HEAD")
        )
        identity = {
            **{"GIT_AUTHOR_NAME": author.name, "GIT_AUTHOR_EMAIL": author.email, "GIT_AUTHOR_DATE": moment},
            **{"GIT_COMMITTER_NAME": author.name, "GIT_COMMITTER_EMAIL": author.email, "GIT_COMMITTER_DATE": moment},
        }
        parents = ["-p", parent] if parent else []
        commit = await self._git.text("commit-tree", tree, *parents, "-F", "-", data=message.encode(), environment=identity)
        await self._git.run("update-ref", SNAPSHOT_REF, commit)
        return Saved(commit=commit, tree=tree)

    async def tree(self, created_by_setup: Collection[str] = ()) -> str:
        """Write the tree object of the files as they are. Raises FilesTooLarge, GitFailed."""
        await self._write_excludes(created_by_setup)
        modified, deleted = await self._modified()
        changed = [*modified, *(path for path in await self.untracked() if path not in created_by_setup)]
        self._require_small(changed)
        index = self._git.folder / "index.snapshot"
        shutil.copy2(self._git.folder / "index", index)
        environment = {"GIT_INDEX_FILE": str(index)}
        try:
            for option, paths in (("--force-remove", deleted), ("--replace", changed)):
                names = _joined(paths)
                await self._git.run("update-index", "--add", option, "-z", "--stdin", data=names, environment=environment)
            return await self._git.text("write-tree", environment=environment)
        finally:
            index.unlink(missing_ok=True)
            index.with_name("index.snapshot.lock").unlink(missing_ok=True)

    async def untracked(self) -> list[str]:
        """New files that nothing ignores. Repositories that were made inside the tree are left out."""
        paths = await self._git.paths("ls-files", "-z", "--others", "--exclude-standard")
        return [path for path in paths if not path.endswith("/")]

    async def changes(self, base: str, head: str) -> tuple[ChangedFile, ...]:
        """Files that differ between two commits or trees, renames found."""
        options = ("-r", "-z", "-M", "--no-ext-diff", "--no-textconv")
        raw = await self._git.run("diff-tree", *options, "--raw", "--numstat", base, head)
        return parse_changes(raw)

    async def diff(self, base: str, head: str) -> bytes:
        """A unified diff between two commits or trees."""
        return await self._git.run("diff-tree", "-r", "-p", "-M", "--binary", "--no-ext-diff", "--no-textconv", "--no-color", base, head)

    async def modified(self) -> list[str]:
        """Tracked files that are not as in the commit that was laid out, deleted ones included."""
        modified, deleted = await self._modified()
        return modified + deleted

    async def restore(self, paths: Collection[str]) -> None:
        """Bring tracked files back to the commit that was laid out."""
        await self._git.run("checkout-index", "-q", "-f", "-u", "-z", "--stdin", data=_joined(paths))

    async def _modified(self) -> tuple[list[str], list[str]]:
        """Modified and deleted paths, submodules left out."""
        await self._git.run("update-index", "-q", "--refresh", "--ignore-submodules", ok=(0, 1))
        fields = await self._git.paths("diff-files", "--raw", "-z", "--ignore-submodules=all")
        modified: list[str] = []
        deleted: list[str] = []
        for facts, path in zip(fields[::2], fields[1::2], strict=True):
            if not facts.startswith(f":{GITLINK}"):
                (deleted if facts.endswith(" D") else modified).append(path)
        return modified, deleted

    def _require_small(self, paths: Collection[str]) -> None:
        large = []
        for path in paths:
            with contextlib.suppress(OSError):
                status = os.lstat(self._git.tree / path)
                if stat.S_ISREG(status.st_mode) and status.st_size > self._max_file_bytes:
                    large.append(f"{path} ({status.st_size} bytes)")
        if large:
            limit = f"the limit is {self._max_file_bytes} bytes a file (AGENT_CODER_SANDBOX_MAX_FILE_BYTES)"
            raise FilesTooLarge(
                f"too large to be committed: {', '.join(sorted(large)[:20])}; {limit}. Remove them or ignore them in .gitignore"
            )

    async def _write_excludes(self, created_by_setup: Collection[str]) -> None:
        """Our own ignore rules; the repository's .gitignore wins over them."""
        found = [pattern for name, pattern in IGNORED_WITH.items() if (self._git.tree / name).exists()]
        made = [f"/{_literal(path)}" for path in created_by_setup if "\n" not in path]
        text = "\n".join([*IGNORED, *found, *made]) + "\n"
        (self._git.folder / "info" / "exclude").write_bytes(os.fsencode(text))


def _joined(paths: Collection[str]) -> bytes:
    return b"".join(os.fsencode(path) + b"\0" for path in paths)


def _literal(path: str) -> str:
    """A path as a .gitignore pattern that matches it alone (gitignore(5))."""
    return "".join(f"\\{character}" if character in "\\*?[]!# " else character for character in path)
