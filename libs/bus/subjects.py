"""Subject tokens: an id from outside may hold dots, blanks, `*` or `>` and is encoded before it becomes part of a subject."""

import hashlib
import re

_SAFE = re.compile(r"[A-Za-z0-9_-]{1,64}")


def token(text: str) -> str:
    """One subject token for any text; the text itself where it is safe, else a readable stem, `~` and 16 hex digits of its SHA-256."""
    if _SAFE.fullmatch(text):
        return text
    stem = re.sub(r"[^A-Za-z0-9_-]+", "-", text).strip("-")[:40]
    return f"{stem}~{hashlib.sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()[:16]}"


def conversation_key(tenant: str, user: str, session_id: str) -> str:
    """The key of a conversation in every bucket that keeps something of it: one token."""
    return token(f"{tenant}\0{user}\0{session_id}")


def matches(pattern: str, subject: str) -> bool:
    """Whether `subject` falls under `pattern` (`*` one token, a closing `>` one or more)."""
    want, have = pattern.split("."), subject.split(".")
    if want[-1] == ">":
        return len(have) >= len(want) and all(w in ("*", h) for w, h in zip(want[:-1], have, strict=False))
    return len(want) == len(have) and all(w in ("*", h) for w, h in zip(want, have, strict=True))
