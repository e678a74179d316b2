"""Reads what git says about changed files."""

import os
from collections.abc import Iterator
from typing import Literal

from libs.contracts.run import ChangedFile

Status = Literal["added", "modified", "deleted", "renamed", "mode_changed", "type_changed"]
LETTERS: dict[str, Status] = {"A": "added", "M": "modified", "D": "deleted", "R": "renamed", "T": "type_changed", "C": "added"}


def parse_changes(output: bytes) -> tuple[ChangedFile, ...]:
    """Changed files from `git diff-tree -r -z -M --raw --numstat` (git-diff-tree(1), RAW OUTPUT FORMAT), in git's order."""
    fields = iter(output.split(b"\0"))
    counts: dict[str, tuple[int | None, int | None]] = {}
    raw: list[tuple[str, Status, str | None]] = []
    for field in fields:
        if field.startswith(b":"):
            raw.append(_raw(field.decode(), fields))
        elif field:
            path, count = _numstat(field, fields)
            counts[path] = count
    return tuple(_changed(path, status, origin, *counts.get(path, (None, None))) for path, status, origin in raw)


def _raw(facts: str, fields: Iterator[bytes]) -> tuple[str, Status, str | None]:
    old_mode, new_mode, old_object, new_object, letter = facts[1:].split(" ")
    first = _path(next(fields))
    status = LETTERS.get(letter[0], "modified")
    if letter[0] in "RC":
        return _path(next(fields)), status, first if letter[0] == "R" else None
    if status == "modified" and old_object == new_object and old_mode != new_mode:
        status = "mode_changed"
    return first, status, None


def _numstat(field: bytes, fields: Iterator[bytes]) -> tuple[str, tuple[int | None, int | None]]:
    added, deleted, path = field.split(b"\t", 2)
    if not path:
        next(fields)
        path = next(fields)
    return _path(path), (None if added == b"-" else int(added), None if deleted == b"-" else int(deleted))


def _changed(path: str, status: Status, origin: str | None, added: int | None, deleted: int | None) -> ChangedFile:
    return ChangedFile(
        path=_shown(path), status=status, renamed_from=_shown(origin) if origin else None, added_lines=added, deleted_lines=deleted
    )


def _path(raw: bytes) -> str:
    return os.fsdecode(raw)


def _shown(path: str) -> str:
    """A message is UTF-8: a name that is not is shown escaped."""
    return os.fsencode(path).decode("utf-8", errors="backslashreplace")
