"""An error of the store becomes the refusal that the asker sees."""

from collections.abc import Iterator
from contextlib import contextmanager

from libs.bus import Refusal
from services.session_store.errors import SessionStoreError


@contextmanager
def refusing() -> Iterator[None]:
    """Raise Refusal with the error's code and words."""
    try:
        yield
    except SessionStoreError as error:
        raise Refusal(error.code, str(error)) from error
