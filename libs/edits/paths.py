"""Paths named by a model. What `check_path` returns is relative, inside the workspace and outside of `.git`.

Links are not resolved here: whoever touches the disk checks again after resolving.
"""

import re

from libs.edits.errors import UnsafePath

PATH_LIMIT_BYTES = 4096
NAME_LIMIT_BYTES = 255

# Characters that HFS+ ignores in names: ".g\u200cit" would open ".git" there (git's core.protectHFS).
_IGNORED_IN_NAMES = re.compile("[\u200c-\u200f\u202a-\u202e\u206a-\u206f\ufeff]")


def _is_git_folder(name: str) -> bool:
    bare = _IGNORED_IN_NAMES.sub("", name).split(":", 1)[0].rstrip(" .").lower()
    return bare in {".git", "git~1"}


def check_path(path: str) -> str:
    """Return `path` without `.` parts and doubled slashes, or raise UnsafePath.

    Refused: empty, absolute, any `..`, NUL, not encodable as UTF-8, any `.git` part in any case, more than 255 bytes a name or 4096 in all.
    """
    if "\0" in path:
        raise UnsafePath("The path contains a NUL character. Give a path relative to the root of the repository.")
    if path.startswith("/"):
        raise UnsafePath(f"{path[:200]!r} is absolute. Give a path relative to the root of the repository.")
    parts = [part for part in path.split("/") if part not in {"", "."}]
    if not parts:
        raise UnsafePath("The path is empty. Give the path of a file relative to the root of the repository.")
    if ".." in parts:
        raise UnsafePath(f"{path[:200]!r} contains '..'. Give a path relative to the root of the repository.")
    if any(_is_git_folder(part) for part in parts):
        raise UnsafePath(f"{path[:200]!r} reaches into git's own folder, which edits may not touch.")
    try:
        sizes = [len(part.encode()) for part in parts]
    except UnicodeEncodeError:
        raise UnsafePath(f"{path[:200]!r} is not valid UTF-8. Rename the file with a command first.") from None
    if max(sizes) > NAME_LIMIT_BYTES or sum(sizes) + len(sizes) - 1 > PATH_LIMIT_BYTES:
        limits = f"{NAME_LIMIT_BYTES} bytes a name, {PATH_LIMIT_BYTES} bytes in all"
        raise UnsafePath(f"The path {path[:60]!r}… is too long ({limits}). Choose a shorter one.")
    return "/".join(parts)
