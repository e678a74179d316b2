"""The state of a chat turn: the fold of its events, in stream order. Pure."""

from collections.abc import Callable, Iterable
from functools import reduce
from typing import Any, Literal

from libs.contracts import turn as events
from libs.contracts.envelope import Message, Usage
from libs.contracts.fold import Recorded
from libs.contracts.work import WorkEvent

TurnStatus = Literal["queued", "running", "waiting", "finished", "failed", "cancelled", "superseded"]
TURN_ENDED: frozenset[TurnStatus] = frozenset({"finished", "failed", "cancelled", "superseded"})


class TurnState(Message):
    """Everything that is known of a turn. `admitted_sequence` is what the turn's step handles."""

    turn_id: str
    status: TurnStatus = "queued"
    opened: events.TurnOpened | None = None
    admitted: events.TurnAdmitted | None = None
    admitted_sequence: int = 0
    pending: tuple[events.PendingCall, ...] = ()
    answers: tuple[events.TurnAnswered, ...] = ()
    finished: events.TurnFinished | None = None
    failed: events.TurnFailed | None = None
    superseded: events.TurnSuperseded | None = None
    usage: Usage = Usage()
    sequence: int = 0
    why: str = ""

    @property
    def ended(self) -> bool:
        """Whether nothing more happens unless a person asks for it."""
        return self.status in TURN_ENDED

    @property
    def unanswered(self) -> tuple[events.PendingCall, ...]:
        """The pending calls that still wait."""
        answered = {a.call_id for a in self.answers}
        return tuple(p for p in self.pending if p.call_id not in answered)


def fold_turn(recorded: Iterable[Recorded], turn_id: str) -> TurnState:
    """The state after all of `recorded`, which must be one turn's events in stream order."""
    return reduce(apply_turn, recorded, TurnState(turn_id=turn_id))


def apply_turn(state: TurnState, recorded: Recorded) -> TurnState:
    """The state after one more event; an event of an unknown kind moves only the sequence."""
    return state.model_copy(update={"sequence": recorded.sequence, **_changes(state, recorded)})


def _changes(state: TurnState, recorded: Recorded) -> dict[str, Any]:
    match recorded.event:
        case events.TurnAdmitted() as e:
            return {"admitted": e, "admitted_sequence": recorded.sequence, "status": "running"}
        case events.TurnModelReplied() as e:
            return {"usage": state.usage + e.usage}
        case events.TurnAnswered() as e:
            answers = state.answers if any(a.call_id == e.call_id for a in state.answers) else (*state.answers, e)
            return {"answers": answers, "status": "running"}
        case e if type(e) in _PLAIN:
            return _PLAIN[type(e)](e)
        case _:
            return {}


_PLAIN: dict[type[WorkEvent], Callable[[Any], dict[str, Any]]] = {
    events.TurnOpened: lambda e: {"opened": e},
    events.TurnStepFailed: lambda e: {"why": e.error},
    events.TurnPaused: lambda e: {"pending": e.pending, "status": "waiting"},
    events.TurnRetried: lambda _: {"failed": None, "status": "running", "why": ""},
    events.TurnFinished: lambda e: {"finished": e, "status": "finished", "pending": (), "why": ""},
    events.TurnFailed: lambda e: {"failed": e, "status": "failed", "pending": (), "why": e.reason},
    events.TurnCancelled: lambda e: {
        "status": "cancelled",
        "pending": (),
        "why": f"cancelled by {e.by}" + (f": {e.reason}" if e.reason else ""),
    },
    events.TurnSuperseded: lambda e: {"status": "superseded", "superseded": e, "why": e.policy + (f": {e.by} answers" if e.by else "")},
}
