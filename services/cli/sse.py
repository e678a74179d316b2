"""Server-sent events (WHATWG HTML, section 9.2.6), read from lines. Pure."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class ServerEvent:
    """One event. `id` is absent for what may be lost; `data` is the JSON object that was sent."""

    event: str
    data: dict[str, Any]
    id: str | None = None


def events(lines: Iterable[str]) -> Iterator[ServerEvent]:
    """The whole events of a stream; one that is cut off in the middle is dropped, data that is no JSON object is skipped."""
    kind, last, seen_id = "message", "", False
    data: list[str] = []
    for line in lines:
        if line == "":
            parsed = _object("\n".join(data)) if data else None
            if parsed is not None:
                yield ServerEvent(kind, parsed, last if seen_id else None)
            kind, data, seen_id = "message", [], False
            continue
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        match name:
            case "event":
                kind = value
            case "data":
                data.append(value)
            case "id" if "\0" not in value:
                last, seen_id = value, True
            case _:
                pass


def _object(text: str) -> dict[str, Any] | None:
    try:
        parsed = json.loads(text)
    except ValueError:
        return None
    return parsed if isinstance(parsed, dict) else None
