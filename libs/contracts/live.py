"""Progress: frames on `live.<id>.<kind>` that a browser may follow. Losing them loses nothing."""

from typing import ClassVar, Literal

from libs.contracts.envelope import Identifier, Message, Time


class Progress(Message):
    """One line of what is going on in a run: a token of a model, a line of a command, a sentence of a step."""

    subject: ClassVar[str] = "live.{id}.progress"

    id: Identifier
    step: str
    kind: Literal["status", "model", "tool", "output"]
    text: str
    at: Time


class TimerDue(Message):
    """A timer fired on `due.<id>.<name>`; the body is what was put in when it was set."""

    id: Identifier
    name: Identifier
    of: int | None = None
