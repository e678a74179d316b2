"""A run's whole story: what happened when, how long it took and who did it, from the events of its journal. Pure."""

from collections.abc import Iterable
from datetime import datetime
from itertools import groupby
from typing import Any

from services.cli.waterfall import seconds
from services.cli.words import Json, Line, describe

INNER = frozenset({"run.step_started", "run.model_replied", "run.tool_started", "run.tool_returned"})
_UNTIMED = frozenset({"run.step_failed", "run.approval_requested"})


def chapters(events: Iterable[Json]) -> list[Json]:
    """The events but for the work inside of a step: `at`, `type`, `lines`, and `seconds` since its step was begun, for a step's result."""
    begun: dict[int, datetime] = {}
    told: list[Json] = []
    for event in events:
        at, data, cause = datetime.fromisoformat(event["at"]), event.get("data", {}), int(event.get("causation") or 0)
        begun[event["sequence"]] = at
        if event["type"] == "run.step_started":
            begun[data["of"]] = at
        if event["type"] not in INNER:
            timed = cause in begun and event["type"] not in _UNTIMED
            took = {"seconds": (at - begun[cause]).total_seconds()} if timed else {}
            lines = describe(event["type"], data)
            if event["type"] == "run.approval_requested":
                lines = lines[:-1]  # how to answer stands below, as long as it is open
            told.append({"at": event["at"], "type": event["type"], **took, "lines": lines})
    return told


def in_words(told: Iterable[Json]) -> list[Line]:
    """Chapters with the time of the clock here before each, under the day."""
    lines: list[Line] = []
    for day, of_day in groupby(told, lambda chapter: _here(chapter).date()):
        lines.append(("bold", f"{day:%Y-%m-%d}"))
        for chapter in of_day:
            (style, first), *rest = chapter["lines"] or [("dim", chapter["type"])]
            took = f"  ({seconds(chapter['seconds'])})" if "seconds" in chapter else ""
            lines += [(style, f"{_here(chapter):%H:%M:%S}  {first}{took}"), *((s, f"          {text}") for s, text in rest)]
    return lines


def for_programs(told: Iterable[Json]) -> list[dict[str, Any]]:
    """Chapters with their words as one text."""
    return [{**chapter, "lines": [text.strip() for _, text in chapter["lines"]]} for chapter in told]


def _here(chapter: Json) -> datetime:
    return datetime.fromisoformat(chapter["at"]).astimezone()
