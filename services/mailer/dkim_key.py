"""Signing mail with a DKIM key (RFC 6376), and comparing that key with what DNS says."""

import base64
from pathlib import Path

HEADERS = (
    b"from",
    b"to",
    b"subject",
    b"date",
    b"message-id",
    b"reply-to",
    b"in-reply-to",
    b"references",
    b"auto-submitted",
    b"list-unsubscribe",
    b"list-unsubscribe-post",
    b"mime-version",
    b"content-type",
)


class BadKey(Exception):
    """The DKIM key cannot be used; the text says why."""


class DkimKey:
    """An RSA key of a selector. `sign` puts the signature before the message."""

    def __init__(self, path: Path, selector: str, domain: str) -> None:
        self._path = path
        self.selector = selector
        self.domain = domain
        self._pem = b""

    def load(self) -> bytes:
        """The key as PEM, read once. Raises BadKey."""
        if not self._pem:
            try:
                self._pem = self._path.read_bytes()
            except OSError as error:
                raise BadKey(f"the DKIM key {self._path} cannot be read: {error.strerror}") from error
            self.public()
        return self._pem

    def sign(self, message: bytes) -> bytes:
        """`message` behind its DKIM-Signature, relaxed/relaxed. Raises BadKey."""
        import dkim

        try:
            signature = dkim.sign(
                message,
                self.selector.encode(),
                self.domain.encode(),
                self.load(),
                canonicalize=(b"relaxed", b"relaxed"),
                include_headers=HEADERS * 2,  # once more than there are: nobody adds one (RFC 6376, 8.15)
            )
        except dkim.DKIMException as error:
            raise BadKey(f"the DKIM key {self._path} signs nothing: {error}") from error
        return bytes(signature) + message

    def public(self) -> str:
        """The public key in base 64 as the `p=` of the selector's record has it. Raises BadKey."""
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey

        try:
            key = serialization.load_pem_private_key(self._pem or self._path.read_bytes(), password=None)
        except (OSError, ValueError, TypeError) as error:
            raise BadKey(f"the DKIM key {self._path} is no readable PEM file without a password") from error
        if not isinstance(key, RSAPrivateKey):
            raise BadKey(f"the DKIM key {self._path} is no RSA key")
        der = key.public_key().public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
        return base64.b64encode(der).decode()
