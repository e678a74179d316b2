"""What `solve` makes of its options: the id of the issue, its body, its policy, the request. Pure but for reading the body."""

import hashlib
import json
import re
import sys
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from services.cli.errors import Usage

_LISTS = ("setup_commands", "test_commands")


def issue_id(title: str) -> str:
    """An id for an issue without one: its title's letters and digits, the same for the same title in any language."""
    words = re.sub(r"[^a-z0-9]+", "-", unicodedata.normalize("NFKD", title).encode("ascii", "ignore").decode().lower()).strip("-")
    digest = hashlib.sha256(title.encode()).hexdigest()[:6]
    return f"{words[:32].strip('-')}-{digest}" if words else digest


def policy(pairs: Sequence[str]) -> dict[str, Any]:
    """`key=value` pairs as the policy of a request; a value is JSON or text, a list of commands is given by repeating its key.

    Raises:
        Usage: a pair without `=`, or a key that is given twice.
    """
    found: dict[str, Any] = {}
    for pair in pairs:
        key, separator, text = pair.partition("=")
        key = key.strip().replace("-", "_")
        if not separator or not key:
            raise Usage(f"--policy {pair} is no key=value.", "For example --policy max_attempts=5 --policy plan_approval=true")
        value = _value(text)
        if key in _LISTS:
            found.setdefault(key, []).extend(value if isinstance(value, list) else [text])
        elif key in found:
            raise Usage(f"--policy {key} is given twice.")
        else:
            found[key] = value
    return found


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def body(given: str | None, file: str | None) -> str:
    """The issue's text from the option, a file, or standard input for `-`.

    Raises:
        Usage: both are given, or the file cannot be read.
    """
    if given is not None and file is not None:
        raise Usage("Give --body or --body-file, not both.")
    if file is None:
        return given or ""
    if file == "-":
        return sys.stdin.read()
    try:
        return Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise Usage(f"{file} cannot be read: {getattr(error, 'strerror', None) or error}") from error
