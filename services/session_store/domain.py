"""Pure decisions of the read model: folding a batch, the cursor of a page, a row's summary."""

import base64
import binascii
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from libs.contracts.fold import Recorded, RunState, apply
from libs.contracts.session import RunSummary
from services.session_store.errors import CursorError

Position = tuple[int, str]


@dataclass(frozen=True)
class Link:
    """One message of a run's journal: its place, the place that it follows (None: not said), and the event unless it is unreadable."""

    run_id: str
    sequence: int
    follows: int | None
    recorded: Recorded | None


@dataclass(frozen=True)
class Projected:
    """A run as it is stored: its fold, and the last journal sequence that went into it, readable or not."""

    sequence: int
    state: RunState


def fold_batch(known: Mapping[str, Projected], batch: Iterable[Link]) -> tuple[dict[str, Projected], set[str]]:
    """What every run becomes that `batch` moves, and the runs with a gap before one of their messages: those are read anew.

    A message at or before what a run has seen is dropped. Deliveries overtake each other after a crash, so each one must follow
    the last one seen: folding past a gap would lose the missing events for ever.
    """
    moved: dict[str, Projected] = {}
    gapped: set[str] = set()
    for link in sorted(batch, key=lambda item: item.sequence):
        was = moved.get(link.run_id) or known.get(link.run_id) or Projected(0, RunState(run_id=link.run_id))
        if link.run_id in gapped or link.sequence <= was.sequence:
            continue
        if link.follows != was.sequence:
            gapped.add(link.run_id)
            moved.pop(link.run_id, None)
            continue
        moved[link.run_id] = Projected(link.sequence, apply(was.state, link.recorded) if link.recorded else was.state)
    return moved, gapped


def microseconds(at: datetime) -> int:
    """Microseconds since the epoch, exact."""
    return int(at.timestamp()) * 1_000_000 + at.microsecond


def encode_cursor(position: Position) -> str:
    """An opaque cursor for the row after `position` (creation time in microseconds, run id)."""
    return base64.urlsafe_b64encode(f"{position[0]}.{position[1]}".encode()).decode().rstrip("=")


def decode_cursor(cursor: str) -> Position:
    """The position in a cursor.

    Raises:
        CursorError: it was not made by `encode_cursor`.
    """
    try:
        created, _, run_id = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)).decode().partition(".")
        position = (int(created), run_id)
    except (binascii.Error, ValueError) as error:
        raise CursorError from error
    if not run_id or abs(position[0]) >= 2**63:
        raise CursorError
    return position


def summary(state: RunState) -> RunSummary | None:
    """A run as a row of the list; None for a journal whose opening is missing."""
    if state.opened is None or state.created_at is None or state.updated_at is None:
        return None
    return RunSummary(
        run_id=state.run_id,
        issue_id=state.opened.issue.id,
        title=state.opened.issue.title,
        repo=state.opened.repo,
        status=state.status,
        attempt=state.attempt,
        created_at=state.created_at,
        updated_at=state.updated_at,
        branch=state.committed.branch if state.committed else None,
        sha=state.committed.sha if state.committed else None,
        why=state.why,
        usage=state.usage,
    )
