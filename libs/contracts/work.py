"""What the journals of all kinds of work have in common: a run (an issue being solved) and a turn (a chat turn being answered).

The bus and the agent loop know these bases only. `Kind` says which concrete event of a kind stands for which base.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from pydantic import Field

from libs.contracts.envelope import BlobRef, Event, Message, Time, Usage

StepName = Literal["plan", "edit", "verify", "commit", "finish", "publish", "merge", "turn"]


class WorkEvent(Event):
    """A fact about one unit of work. `work` is the first token of its subject, `id_field` the field that names the unit."""

    work: ClassVar[str]
    id_field: ClassVar[str]

    @property
    def work_id(self) -> str:
        """The id of the unit of work."""
        return str(getattr(self, self.id_field))


class Inner(WorkEvent):
    """Marks a record inside of a step: it is no step's result."""


class End(WorkEvent):
    """Marks an event after which nothing more happens unless a person asks for it."""


class Pause(WorkEvent):
    """Marks a step's word that it goes on when it is answered."""


class Resumes(WorkEvent):
    """Marks a word that sends a step to work again on the event of sequence `of`."""

    step: StepName
    of: int


class Retries(Resumes):
    """Marks a person's word that a step is to be tried once more."""


class Claim(Inner):
    """A worker claims a step. The claim's own sequence is the fencing token of whatever the step touches."""

    step: StepName
    of: int = Field(description="sequence of the event being handled")
    delivery: int
    worker: str


class FailedTry(Inner):
    """A step raised; it is tried again after `retry_in_seconds`, or never when that is absent."""

    step: StepName
    of: int
    delivery: int
    error: str
    retry_in_seconds: float | None = None


class PersonAsked(WorkEvent):
    """A step needs a person: the work waits, costs nothing and survives restarts until it is answered."""

    step: StepName
    of: int = Field(description="sequence of the event that the step was handling")
    question: str
    expires_at: Time


class Failure(End):
    """The work is over without a result; the reason says what to do next."""

    reason: str
    step: StepName | None = None
    of: int | None = None
    dead_letter: int | None = Field(default=None, description="sequence on the dead-letter stream")


class ToolCall(Message):
    """A call that a model asked for. `arguments` is the JSON text as the model wrote it."""

    id: str
    name: str
    arguments: str


class ModelReply(Inner):
    """One model reply inside a step's loop, recorded before it is acted on, so that it is paid for once."""

    step: StepName
    of: int
    call: int = Field(ge=1, description="number of the call inside the step")
    model: str
    content: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    finish_reason: str = "stop"
    overflow: BlobRef | None = Field(default=None, description="content and tool calls as JSON, when they are over 64 KB")
    usage: Usage = Usage()


class ToolStart(Inner):
    """A tool call with effects is about to run."""

    step: StepName
    of: int
    call_id: str
    tool: str


class ToolResult(Inner):
    """What a tool call gave back to the model."""

    step: StepName
    of: int
    call_id: str
    tool: str
    ok: bool = True
    result: str = ""
    overflow: BlobRef | None = None
    duration_seconds: float = 0.0


@dataclass(frozen=True)
class Kind:
    """A kind of work: the first token of its subjects, its stream, and its own class for each base that the bus makes."""

    name: str
    stream: str
    id_field: str
    classes: Mapping[type[Message], type[WorkEvent]]

    def make(self, base: type[Message], work_id: str, **fields: Any) -> Any:
        """The kind's own event for a base, for instance `StepStarted` for `Claim`."""
        return self.classes[base](**{self.id_field: work_id}, **fields)
