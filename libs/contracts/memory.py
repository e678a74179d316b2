"""Questions about what is remembered of a user, or of a user in a project. Memory text is untrusted data in every prompt."""

from typing import ClassVar, Literal

from pydantic import Field

from libs.contracts.conversation import OwnedCall
from libs.contracts.envelope import Done, Message, Question, Time

WORKERS = ("gateway", "assistant")
MemoryKind = Literal["fact", "event", "instruction", "task"]


class MemoryCall(OwnedCall):
    """Whose memory: a profile is a user's, or a user's in one project."""

    project: str = Field(default="", max_length=200)


class MemoryItem(Message):
    """One thing that is remembered. `topic` is its exact key: a newer item of a topic supersedes the older one."""

    id: str
    kind: MemoryKind = "fact"
    topic: str | None = None
    content: str
    created_at: Time
    superseded_by: str | None = None
    session_id: str | None = None


class Remember(Question[MemoryItem], MemoryCall):
    """Keep one item; the same content again is the same item (id: SHA-256 of profile, kind, topic and content, 128 bits)."""

    subject: ClassVar[str] = "q.session_store.remember"
    answer: ClassVar[type[Message]] = MemoryItem
    askers: ClassVar[tuple[str, ...]] = WORKERS

    content: str = Field(min_length=1, max_length=4000)
    kind: MemoryKind = "fact"
    topic: str | None = Field(default=None, max_length=200)
    session_id: str | None = None


class Recalled(Message):
    """The items that fit, best first, and a short text made of them, empty when nothing fits."""

    items: tuple[MemoryItem, ...]
    text: str = ""


class Recall(Question[Recalled], MemoryCall):
    """What is known that bears on a query: full-text and exact topics."""

    subject: ClassVar[str] = "q.session_store.recall"
    answer: ClassVar[type[Message]] = Recalled
    askers: ClassVar[tuple[str, ...]] = WORKERS

    query: str = Field(min_length=1, max_length=4000)
    limit: int = Field(default=8, ge=1, le=50)


class MemoryPage(Message):
    """Newest first."""

    items: tuple[MemoryItem, ...]
    next_cursor: str | None = None


class ListMemory(Question[MemoryPage], MemoryCall):
    """Everything that is remembered."""

    subject: ClassVar[str] = "q.session_store.memory"
    answer: ClassVar[type[Message]] = MemoryPage
    askers: ClassVar[tuple[str, ...]] = WORKERS

    superseded: bool = False
    cursor: str | None = Field(default=None, max_length=200)
    limit: int = Field(default=50, ge=1, le=100)


class Forget(Question[Done], MemoryCall):
    """Remove an item and what it superseded."""

    subject: ClassVar[str] = "q.session_store.forget"
    answer: ClassVar[type[Message]] = Done
    askers: ClassVar[tuple[str, ...]] = WORKERS

    id: str = Field(max_length=64)


class MarkIngested(Question["Ingested"], MemoryCall):
    """Claim messages for ingestion by the digest of their content: those that are new are the answer, each once ever."""

    subject: ClassVar[str] = "q.session_store.ingest_mark"
    askers: ClassVar[tuple[str, ...]] = ("assistant",)

    digests: tuple[str, ...] = Field(min_length=1, max_length=200)


class Ingested(Message):
    """The digests that were not ingested before."""

    fresh: tuple[str, ...]


MarkIngested.answer = Ingested
