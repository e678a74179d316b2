"""Texts of providers without what must not be shown."""

import re
from collections.abc import Iterable

_KEYLIKE = re.compile(r"\b(?:(?:sk|pk|rk|xai)-|gsk_|AIza)[-_A-Za-z0-9]{8,}|(?<=Bearer )\S+|(?<=[?&]key=)[^&\s]+")
_TAGS = re.compile(r"<(?:script|style).*?</(?:script|style)>|<[^>]*>", re.DOTALL | re.IGNORECASE)


def without_secrets(text: str, secrets: Iterable[str] = ()) -> str:
    """A text without `secrets` and without anything that looks like a key."""
    for secret in secrets:
        if len(secret) >= 8:
            text = text.replace(secret, "***")
    return _KEYLIKE.sub("***", text)


def redact(text: str, secrets: Iterable[str] = ()) -> str:
    """A text without `secrets` and without anything that looks like a key, in one line of at most 2,000 characters."""
    text = without_secrets(text, secrets)
    if "<html" in text.lower() or "<!doctype" in text.lower():
        text = _TAGS.sub(" ", text)
    return " ".join(text.split())[:2000]
