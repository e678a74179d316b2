"""What every message has in common.

An event is a fact on a journal, named in the past tense, with one subject; a question is asked over request/reply and
changes a journal never. Bodies hold the payload only: ids, causes and trace context travel in headers.
"""

from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Annotated, Any, ClassVar, Generic, Protocol, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

HEADER_ID = "ce-id"
HEADER_TYPE = "ce-type"
HEADER_SOURCE = "ce-source"
HEADER_TIME = "ce-time"
HEADER_SPEC = "ce-specversion"
HEADER_CORRELATION = "correlation-id"
HEADER_CAUSATION = "causation-id"

Sha = Annotated[str, Field(pattern=r"^[0-9a-f]{40}([0-9a-f]{24})?$", description="a git object id")]
Identifier = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$", description="one subject token")]


def _aware(value: datetime) -> datetime:
    if value.tzinfo is None:
        raise ValueError("a time needs its zone: use UTC")
    return value


Time = Annotated[datetime, AfterValidator(_aware)]


class Message(BaseModel):
    """Frozen; readers ignore fields they do not know, so that an older reader meets a newer writer without harm."""

    model_config = ConfigDict(frozen=True, extra="ignore", ser_json_bytes="base64", val_json_bytes="base64")
    version: ClassVar[int] = 1

    def to_json(self) -> bytes:
        """The body as it goes over the bus: JSON in UTF-8, without what is None."""
        return self.model_dump_json(exclude_none=True).encode()


class Event(Message):
    """A fact about one unit of work. `subject` is written out with the field that names the unit in braces."""

    subject: ClassVar[str]
    type: ClassVar[str]
    producers: ClassVar[tuple[str, ...]]

    def subject_of(self) -> str:
        """The subject that this event is appended under, its braces filled from the event's own fields."""
        return self.subject.format_map(self.__dict__)


AnswerT = TypeVar("AnswerT", bound=Message)


class Question(Message, Generic[AnswerT]):
    """A request with a deadline, served by the queue group of one service; the asker owns the retry.

    `frame` is what may be streamed before the answer; None when nothing is.
    """

    subject: ClassVar[str]
    answer: ClassVar[type[Message]]
    frame: ClassVar[type[Message] | None] = None
    askers: ClassVar[tuple[str, ...]]
    deadline_seconds: ClassVar[float] = 30.0


class Ask(Protocol):
    """Asks another service: the bus, or a step on its behalf. Raises `libs.bus.Refusal` or `libs.bus.NoAnswer`."""

    async def __call__(self, question: Any, on_frame: Callable[[bytes], Awaitable[None]] | None = None) -> Any: ...


class Done(Message):
    """The answer to a question that has nothing to say but that it was carried out."""


class Refused(Message):
    """The answer "no". `code` is one that the question's module lists; `after` is seconds until asking again makes sense."""

    code: str
    detail: str
    retryable: bool = False
    after: float | None = None


class BlobRef(Message):
    """Where a payload over 64 KB is kept: the artifact store's content address and its size in bytes."""

    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    size: int = Field(ge=0)


class Usage(Message):
    """Tokens and money of model calls; money is US dollars."""

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    cost_usd: float = 0.0
    calls: int = 0

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(
            input_tokens=self.input_tokens + other.input_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            cached_tokens=self.cached_tokens + other.cached_tokens,
            cost_usd=round(self.cost_usd + other.cost_usd, 9),
            calls=self.calls + other.calls,
        )


JsonObject = dict[str, Any]
