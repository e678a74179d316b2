"""The values that the artifact store hands out, its limits, and its decisions without input or output."""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from itertools import chain, count
from typing import Literal

from libs.contracts.text import without_keywords, without_mentions

FIX_PREFIX = "fix/"
ORIGIN = "refs/remotes/origin/"
"""Where the branches of an imported repository are kept as they were there."""
_SUBJECT_CHARACTERS = 250


@dataclass(frozen=True)
class Limits:
    """Bounds in bytes and seconds. `max_file_bytes` holds for what runs and pushes add, not for what an import finds."""

    max_file_bytes: int = 10_000_000
    max_repository_bytes: int = 2_000_000_000
    max_push_bytes: int = 500_000_000
    import_timeout_seconds: float = 600.0
    command_timeout_seconds: float = 120.0


@dataclass(frozen=True)
class Login:
    """A user name and a password or token for HTTP basic authentication."""

    username: str
    password: str = field(repr=False)


@dataclass(frozen=True)
class Imported:
    """An imported repository. `base_branch` is None when the base is a tag, a commit or a detached HEAD; `size_bytes` is on disk."""

    repository: str
    base_branch: str | None
    base_commit: str
    default_branch: str | None
    size_bytes: int


@dataclass(frozen=True)
class FileEntry:
    """One entry of a tree. `mode` is git's: 100644, 100755, 120000 (symlink) or 160000 (submodule, then size_bytes is 0)."""

    path: str
    mode: str
    size_bytes: int
    sha: str


@dataclass(frozen=True)
class FileContent:
    """The first bytes of a file; `entry.size_bytes` is its whole size. A symlink's content is its target."""

    entry: FileEntry
    data: bytes
    truncated: bool


@dataclass(frozen=True)
class Patch:
    """A unified diff as git prints it (bytes, because files may be in any encoding)."""

    data: bytes
    truncated: bool


@dataclass(frozen=True)
class ChangedFile:
    """One changed path. Line counts are None for binary files and submodules."""

    path: str
    status: Literal["added", "modified", "deleted", "renamed", "mode_changed", "type_changed"]
    renamed_from: str | None
    added_lines: int | None
    deleted_lines: int | None


@dataclass(frozen=True)
class CommitInfo:
    """One commit of a history."""

    sha: str
    parents: tuple[str, ...]
    author_name: str
    author_email: str
    authored_at: datetime
    subject: str
    body: str


@dataclass(frozen=True)
class Person:
    """Who a commit names as author or committer."""

    name: str
    email: str


@dataclass(frozen=True)
class FixRequest:
    """What a run wants committed. `tree` is a tree or commit id; the same request always makes the same commit on the same branch state.

    `branch` is set when the run made that branch before: then it goes on there, whatever the policy says of other runs' branches.
    """

    run_id: str
    issue_id: str
    title: str
    tree: str
    base_commit: str
    author: Person
    committer: Person
    timestamp: datetime
    on_existing_branch: Literal["continue", "suffix"] = "continue"
    branch: str | None = None


@dataclass(frozen=True)
class Committed:
    """The commit that holds a run's change. `created` is False when the branch held the change already; `merged` tells that the
    tree holds more than the run's own tree, so nobody has verified this very tree."""

    branch: str
    sha: str
    tree: str
    message: str
    created: bool
    merged: bool


def one_line(text: str) -> str:
    """The text on one line: control characters and runs of white space become one space; lone surrogates become '?'."""
    return " ".join(re.sub(r"[\x00-\x1f\x7f\u2028\u2029]", " ", text).encode("utf-8", "replace").decode().split())


def commit_message(issue_id: str, title: str, run_id: str) -> str:
    """`fix(<issue>): <title>`, cut to 250 characters, and a trailer that names the run."""
    harmless = without_keywords(without_mentions(one_line(title)))
    subject = f"fix({one_line(issue_id)[:40]}): {harmless or 'resolve the issue'}"
    if len(subject) > _SUBJECT_CHARACTERS:
        subject = subject[: _SUBJECT_CHARACTERS - 1].rstrip() + "…"
    return f"{subject}\n\nAgent-Coder-Run: {one_line(run_id)}\n"


def identity(person: Person, role: Literal["AUTHOR", "COMMITTER"], at: datetime) -> dict[str, str]:
    """The environment variables that make git write this person and time into a commit."""

    def clean(text: str) -> str:
        return one_line(re.sub(r"[<>]", "", text)).strip(" .,:;\"'")

    return {
        f"GIT_{role}_NAME": clean(person.name) or "unknown",
        f"GIT_{role}_EMAIL": clean(person.email) or "unknown@localhost",
        f"GIT_{role}_DATE": f"@{int(at.timestamp())} +0000",
    }


def pick_default_branch(head: str | None, branches: Mapping[str, str]) -> str | None:
    """The branch the source's HEAD names; without one: main, master, trunk or the only branch there is."""
    for name in (head, "main", "master", "trunk"):
        if name is not None and name in branches:
            return name
    return next(iter(branches)) if len(branches) == 1 else None


@dataclass(frozen=True)
class BranchMove:
    """A reference update: `new` or `old` None means that the branch does not exist after or before."""

    branch: str
    new: str | None
    old: str | None
    only_forward: bool = False


def mirror_moves(before: Mapping[str, str], after: Mapping[str, str], local: Mapping[str, str], default: str | None) -> list[BranchMove]:
    """How local branches follow a source whose branches went from `before` to `after`: deletions first.

    A local branch that moved away from the source, and every `fix/` branch, only ever moves forward and is never deleted. A branch that
    has no room beside the local ones (`a` beside `a/b`) is left out.
    """
    gone = [
        name
        for name in before.keys() - after.keys()
        if name != default and not name.startswith(FIX_PREFIX) and local.get(name) == before[name]
    ]
    moves = [BranchMove(name, None, before[name]) for name in sorted(gone)]
    kept = local.keys() - set(gone)
    for branch, new in after.items():
        current = local.get(branch)
        if current is None and has_room(branch, kept):
            moves.append(BranchMove(branch, new, None))
        elif current not in (None, new):
            followed = current == before.get(branch) and not branch.startswith(FIX_PREFIX)
            moves.append(BranchMove(branch, new, current, only_forward=not followed))
    return moves


def has_room(branch: str, others: Collection[str]) -> bool:
    """Whether a branch can exist beside the others: git keeps references as files, so `a` excludes `a/b`."""
    above = {branch[:position] for position, letter in enumerate(branch) if letter == "/"}
    return above.isdisjoint(others) and not any(other.startswith(f"{branch}/") for other in others)


def free_branch(wanted: str, others: Collection[str]) -> str:
    """The wanted name, or the first of `<wanted>-2`, `<wanted>-3` … that is free."""
    candidates = chain([wanted], (f"{wanted}-{number}" for number in count(2)))
    return next(name for name in candidates if name not in others and has_room(name, others))
