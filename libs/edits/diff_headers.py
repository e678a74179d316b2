"""The lines of a unified diff that name files: git's quoting, prefixes, timestamps (git-diff(1), "generating patch text")."""

import re

from libs.edits.errors import EditFailed

_ESCAPES = {"a": 7, "b": 8, "t": 9, "n": 10, "v": 11, "f": 12, "r": 13, '"': 34, "\\": 92}
_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"')
_ESCAPE = re.compile(r"\\([0-7]{1,3}|.)")
_TIMESTAMP = re.compile(r"(?:\t.*|\s+\d{4}-\d\d-\d\d[ T]\d\d:\d\d.*|\s+\(revision \d+\)|\s+\(working copy\))$")


def unquote(token: str) -> str:
    """A path as git prints it: C-quoted with octal escapes of UTF-8 bytes, or bare. Raises EditFailed for other bytes."""
    match = _QUOTED.fullmatch(token)
    if match is None:
        return token
    raw = bytearray()
    position = 0
    body = match[1]
    for escape in _ESCAPE.finditer(body):
        raw += body[position : escape.start()].encode()
        code = escape[1]
        raw.append(int(code, 8) & 0xFF if code[0] in "01234567" else _ESCAPES.get(code, ord(code[0]) & 0xFF))
        position = escape.end()
    raw += body[position:].encode()
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise EditFailed(f"The file name {token} is not UTF-8. Rename the file with a command first.") from None


def file_name(rest: str) -> str | None:
    """The name after `--- ` or `+++ `, without its timestamp; None for /dev/null."""
    rest = rest.rstrip("\r")
    quoted = _QUOTED.match(rest.strip())
    name = unquote(quoted[0]) if quoted else _TIMESTAMP.sub("", rest).strip()
    return None if name == "/dev/null" else name


def git_names(rest: str) -> tuple[str, str] | None:
    """Both names after `diff --git `. Bare names may hold spaces, so they are told apart by being equal behind their prefixes."""
    rest = rest.strip()
    if rest.startswith('"'):
        first = _QUOTED.match(rest)
        return (unquote(first[0]), unquote(rest[first.end() :].strip())) if first else None
    if rest.endswith('"') and (start := rest.find(' "')) > 0:
        return rest[:start], unquote(rest[start + 1 :])
    middle = len(rest) // 2
    old, new = rest[:middle], rest[middle + 1 :]
    if rest[middle : middle + 1] == " " and (old == new or old.split("/", 1)[-1] == new.split("/", 1)[-1]):
        return old, new
    parts = rest.split(" ")
    return (parts[0], parts[1]) if len(parts) == 2 else None


def _prefixed(name: str | None, letter: str) -> bool:
    return name is None or name.startswith(letter + "/")


def stripped_names(old: str | None, new: str | None) -> tuple[str | None, str | None]:
    """Both names without the prefixes that git adds: a/ and b/, or two other letters before the same name (diff.mnemonicPrefix)."""
    mnemonic = bool(old and new and old[1:2] == new[1:2] == "/" and old[0] != new[0] and old[2:] == new[2:])
    if mnemonic or (_prefixed(old, "a") and _prefixed(new, "b")):
        return old and old[2:], new and new[2:]
    return old, new


def permissions(mode: str) -> int:
    """Permission bits of a git mode. Raises EditFailed for links and submodules."""
    if not mode.startswith("100"):
        kind = {"120000": "a symbolic link", "160000": "a submodule"}.get(mode, f"mode {mode}")
        raise EditFailed(f"The patch touches {kind}, which a patch cannot change here. Use a command for it.")
    return int(mode[-3:], 8)
