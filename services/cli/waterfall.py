"""A trace as a waterfall: which span hangs under which, and where its bar lies. Pure."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Span = Mapping[str, Any]
_ENTRIES = ("process ", "answer ", "POST ")  # begun by a message or a request, whose sender need not be in the trace


@dataclass(frozen=True)
class Row:
    """One line of the waterfall; times in seconds, `offset` from the start of the trace."""

    depth: int
    name: str
    service: str
    offset: float
    duration: float
    failed: bool
    input_tokens: int
    output_tokens: int
    cost_usd: float
    again: bool
    why: str = ""


def joined(spans: Sequence[Span]) -> list[Span]:
    """The spans as the story of a run.

    A question and its one answer are one: how long the asker waited, under the name of the service that answered. Each step stands
    under the request, with its name. Under a parent that has not ended, or is lost, a stand-in holds its children together.
    """
    spans = _steps_side_by_side([*spans, *_stand_ins(spans)])
    answers: dict[str, list[Span]] = defaultdict(list)
    for span in spans:
        if span["name"].startswith("answer ") and span.get("parent_id"):
            answers[span["parent_id"]].append(span)
    lone = {question: found[0] for question, found in answers.items() if len(found) == 1}
    asked = {span["span_id"]: lone[span["span_id"]] for span in spans if span["name"].startswith("ask ") and span["span_id"] in lone}
    moved = {answer["span_id"]: question for question, answer in asked.items()}
    return [_joined(span, asked.get(span["span_id"]), moved) for span in spans if span["span_id"] not in moved]


def _stand_ins(spans: Sequence[Span]) -> list[Span]:
    known = {span["span_id"] for span in spans}
    orphans: dict[str, list[Span]] = defaultdict(list)
    for span in spans:
        if (parent := span.get("parent_id")) and parent not in known and not span["name"].startswith(_ENTRIES):
            orphans[parent].append(span)
    return [
        {
            "span_id": parent,
            "parent_id": _first(spans),
            "name": f"{children[0]['service']}: not ended",
            "service": children[0]["service"],
            "start_ns": min(child["start_ns"] for child in children),
            "end_ns": max(child["end_ns"] for child in children),
        }
        for parent, children in orphans.items()
    ]


def _steps_side_by_side(spans: Sequence[Span]) -> list[Span]:
    """In the trace each step hangs under the one before it; on a terminal that would be stairs."""
    top = _first(spans)
    return [{**span, "parent_id": top, "name": f"{step}: {span['name']}"} if (step := _step(span)) else span for span in spans]


def _step(span: Span) -> str | None:
    """The step that an event was processed for."""
    step = (span.get("attributes") or {}).get("agent_coder.step")
    return str(step) if step and span["name"].startswith("process ") else None


def _first(spans: Sequence[Span]) -> str | None:
    """The request or the message that opened the run; its sender may have begun the trace."""
    tops = [s for s in spans if not _step(s) and (not s.get("parent_id") or s["name"].startswith(("POST ", "process ")))]
    return min(tops, key=lambda span: int(span["start_ns"]))["span_id"] if tops else None


def _joined(span: Span, answer: Span | None, moved: Mapping[str, str]) -> Span:
    name, service = (span["name"], span["service"]) if answer is None else (span["name"].removeprefix("ask "), answer["service"])
    parent = span.get("parent_id")
    return {**span, "name": name, "service": service, "parent_id": moved.get(parent or "", parent)}


def rows(spans: Sequence[Span]) -> list[Row]:
    """Depth first, each level in order of start; a span whose parent is not there stands at the top. `again` marks a redelivery."""
    if not spans:
        return []
    known = {span["span_id"] for span in spans}
    children: dict[str | None, list[Span]] = defaultdict(list)
    for span in sorted(spans, key=lambda s: (s["start_ns"], s["span_id"])):
        parent = span.get("parent_id")
        children[parent if parent in known and parent != span["span_id"] else None].append(span)
    start = min(span["start_ns"] for span in spans)
    found: list[Row] = []
    stack = [(span, 0) for span in reversed(children[None])]
    while stack:
        span, depth = stack.pop()
        found.append(_row(span, depth, start))
        stack.extend((child, depth + 1) for child in reversed(children[span["span_id"]]))
    return found


def _row(span: Span, depth: int, start: int) -> Row:
    attributes = span.get("attributes") or {}
    return Row(
        depth=depth,
        name=span["name"],
        service=span["service"],
        offset=(span["start_ns"] - start) / 1e9,
        duration=max(span["end_ns"] - span["start_ns"], 0) / 1e9,
        failed=span.get("status") == "error",
        input_tokens=int(attributes.get("gen_ai.usage.input_tokens", 0)),
        output_tokens=int(attributes.get("gen_ai.usage.output_tokens", 0)),
        cost_usd=float(next((value for key, value in attributes.items() if key.endswith(("cost_usd", "usage.cost"))), 0.0)),
        again=int(attributes.get("agent_coder.delivery", 1)) > 1,
        why=str(attributes.get("error.message") or attributes.get("error.type") or ""),
    )


def total_seconds(found: Sequence[Row]) -> float:
    """From the first start to the last end."""
    return max((row.offset + row.duration for row in found), default=0.0)


def bar(row: Row, total: float, width: int) -> tuple[int, str]:
    """Blanks before the bar, and the bar: one cell at least, never beyond `width`."""
    if total <= 0:
        return 0, "█"
    begin = min(int(row.offset / total * width), width - 1)
    length = max(1, round(row.duration / total * width))
    return begin, "█" * min(length, width - begin)


def seconds(value: float) -> str:
    """A duration for people."""
    if value < 1:
        return f"{value * 1000:.0f} ms" if value >= 0.01 else f"{value * 1000:.1f} ms"
    return f"{value:.1f} s" if value < 60 else f"{int(value // 60)} min {int(value % 60)} s"
