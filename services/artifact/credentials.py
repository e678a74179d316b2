"""Hands git a credential through an inherited pipe: it is in no argument, no environment, no configuration and no file.

Git asks its credential helper once a process (gitcredentials(7)); ours is a line of shell that reads the pipe, for one host only.
"""

import contextlib
import os
from collections.abc import Iterator
from dataclasses import replace
from urllib.parse import urlsplit

from services.artifact.domain import Login
from services.artifact.errors import SourceRefused
from services.artifact.git import Git

_PIPE_BYTES = 4096


@contextlib.contextmanager
def presenting(git: Git, url: str, login: Login | None) -> Iterator[Git]:
    """Git that can log in at the host of `url`, for one command."""
    if login is None:
        yield git
        return
    text = f"username={login.username}\npassword={login.password}\n".encode()
    if text.count(b"\n") != 2 or len(text) > _PIPE_BYTES or b"\0" in text or b"\r" in text:
        raise SourceRefused("The credential holds line breaks or is longer than 4,000 characters.")
    reading, writing = os.pipe()
    try:
        os.write(writing, text)
        os.close(writing)
        parts = urlsplit(url)
        helper = f'!f() {{ if [ "$1" = get ]; then cat /dev/fd/{reading}; fi; }}; f'
        config = (*git.config, (f"credential.{parts.scheme}://{parts.netloc}.helper", helper))
        yield replace(git, config=config, inherited=(*git.inherited, reading))
    finally:
        os.close(reading)
