"""Ids that follow from what asked for the work, so that the same request asks for the same work."""

import base64
import hashlib
import json


def derived_id(*parts: str) -> str:
    """26 characters of base 32: the first 130 bits of a SHA-256 of `parts`, which say where the work comes from and its key there."""
    digest = hashlib.sha256(json.dumps(parts).encode("utf-8", "surrogatepass")).digest()
    return base64.b32encode(digest).decode()[:26]
