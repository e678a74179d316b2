"""Text that every database, JSON reader and terminal takes. Whoever takes text from outside cleans it before it becomes a message."""

import math
import re
from typing import Any

_BAD = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]")
_DEEPEST = 150
_CLOSING = re.compile(
    r"\b(close[sd]?|fix(?:e[sd])?|resolve[sd]?)(:?\s+)((?:(?:[\w.-]+/[\w.-]+)?#|GH-)\d|https?://)", re.IGNORECASE | re.ASCII
)
_MENTION = re.compile(r"(https?://[\w-][\w.-]*[^\s<]*)|(?<![A-Za-z0-9_])@(?=[A-Za-z0-9])", re.IGNORECASE | re.ASCII)
_SKIP = re.compile(r"\[(?=(?:skip|no|ci|actions)[ -](?:ci|skip|actions|azurepipelines|travis)\])|(?<=\*\*)\*(?=NO_CI\*\*\*)", re.IGNORECASE)
_GAP = "\u200b"


def clean_text(text: str) -> str:
    """U+FFFD for each lone surrogate; no control characters but tab and line ends."""
    return _BAD.sub(lambda m: "\ufffd" if m[0] >= "\ud800" else "", text) if _BAD.search(text) else text


def without_mentions(text: str) -> str:
    """Words of others for a code host: they mention nobody. An address of mail and a link stay as they are."""
    return _MENTION.sub(lambda m: m[1] or f"@{_GAP}", text)


def without_keywords(text: str) -> str:
    """Words of others for a code host: they close no issue and skip no CI, since a zero-width space parts them."""
    closing_none = _CLOSING.sub(lambda m: f"{m[1]}{m[2]}{_GAP}{m[3].replace('#', f'#{_GAP}')}", text)
    return _SKIP.sub(lambda m: m[0] + _GAP, closing_none)


def clean(value: Any, depth: int = 0) -> Any:
    """JSON with every text in it cleaned; a number that JSON does not know is null.

    Raises:
        ValueError: nested deeper than 150 levels.
    """
    if depth > _DEEPEST:
        raise ValueError(f"nested deeper than {_DEEPEST} levels: flatten it")
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, dict):
        return {clean_text(str(k)): clean(v, depth + 1) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [clean(v, depth + 1) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
