"""All messages by name: what `proto/` is generated from and what a journal is read with."""

from libs.contracts import artifact, conversation, github, inference, mail, memory, run, sandbox, session, team, turn
from libs.contracts.envelope import Message, Question
from libs.contracts.work import Kind, WorkEvent


def _leaves(base: type[Message], modules: tuple[object, ...]) -> tuple[type, ...]:
    found = {c for m in modules for c in vars(m).values() if isinstance(c, type) and issubclass(c, base) and "subject" in vars(c)}
    return tuple(sorted(found, key=lambda c: str(vars(c)["subject"])))


EVENTS: tuple[type[WorkEvent], ...] = _leaves(WorkEvent, (run, team, turn))
QUESTIONS: tuple[type[Question[Message]], ...] = _leaves(
    Question, (artifact, conversation, github, inference, mail, memory, sandbox, session, turn)
)
KINDS: dict[str, Kind] = {"run": run.RUN, "turn": turn.TURN}
_WORK_EVENTS: dict[tuple[str, str], type[WorkEvent]] = {(e.work, e.subject.split(".")[2]): e for e in EVENTS}


def work_event(subject: str) -> type[WorkEvent] | None:
    """The class of the event on `<work>.<id>.<event>[.<step>]`; None for an event that this version does not know."""
    tokens = subject.split(".")
    return _WORK_EVENTS.get((tokens[0], tokens[2])) if len(tokens) > 2 else None
