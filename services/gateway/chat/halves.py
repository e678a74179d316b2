"""Half characters: a lone surrogate is good JSON and no text, so nothing can store or send it. Pure."""

import json
from typing import TypeVar

T = TypeVar("T")


def mended(value: T) -> T:
    """A JSON value with `?` in place of half characters; the same object when there are none."""
    try:
        text = json.dumps(value, ensure_ascii=False)
        text.encode()
    except UnicodeEncodeError:
        return json.loads(text.encode("utf-8", "replace"))  # type: ignore[no-any-return]  # of the shape that it had
    except RecursionError:
        return value  # nested too deeply: refused by whoever checks it
    return value
