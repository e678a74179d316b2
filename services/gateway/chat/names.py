"""Names of conversations: what a client calls one, and the id that it has in the store. Pure."""

import hashlib
import re
import secrets

_SAFE = re.compile(r"[A-Za-z0-9_-]{1,64}")
DEFAULT_AGENT = "assistant"


def session_id_of(name: str, agent: str = DEFAULT_AGENT) -> str:
    """The session that a client's name means: the name itself where it can be an id, else a readable stem and a digest of it.

    Conversations of other agents than the default one have names of their own.
    """
    if agent == DEFAULT_AGENT and _SAFE.fullmatch(name):
        return name
    whole = name if agent == DEFAULT_AGENT else f"{agent}/{name}"
    stem = re.sub(r"[^A-Za-z0-9_-]+", "-", whole).strip("-")[:30]
    digest = hashlib.sha256(whole.encode("utf-8", "surrogatepass")).hexdigest()[:32]
    return f"{stem}-{digest}" if stem else digest


def new_id(prefix: str = "") -> str:
    """A fresh random id for a session or a message."""
    return prefix + secrets.token_hex(12)
