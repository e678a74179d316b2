"""The two secrets of an installation, each made on first start in a file that only its owner can read."""

import os
import secrets
from pathlib import Path


def owner_token(home: Path) -> str:
    """The owner's token in `<home>/token`; two first starts at once agree on one. Raises ValueError: the file is unusable."""
    return _made_once(home, "token")


def signing_key(home: Path) -> bytes:
    """The key that short-lived tokens are signed with, in `<home>/signing-key`. Raises ValueError: the file is unusable."""
    return _made_once(home, "signing-key").encode()


def _made_once(home: Path, name: str) -> str:
    path = home / name
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    if not path.is_file():
        fresh = home / f"{name}.{secrets.token_hex(8)}"
        with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(secrets.token_urlsafe(32) + "\n")
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(fresh, path)
        except FileExistsError:
            pass
        finally:
            fresh.unlink()
    if path.stat().st_mode & 0o077:
        path.chmod(0o600)
    secret = path.read_text().strip()
    if len(secret) < 16:
        raise ValueError(f"{path} holds no usable token: delete the file, a new one is made on the next start")
    return secret
