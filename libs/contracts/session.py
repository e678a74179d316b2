"""Questions to the session store: the read models of runs and their traces."""

from typing import ClassVar

from pydantic import Field

from libs.contracts.envelope import Identifier, JsonObject, Message, Question, Time, Usage
from libs.contracts.fold import RunState, RunStatus


class RunSummary(Message):
    """One row of the list of runs."""

    run_id: str
    issue_id: str
    title: str
    repo: str
    status: RunStatus
    attempt: int
    created_at: Time
    updated_at: Time
    branch: str | None = None
    sha: str | None = None
    why: str = ""
    usage: Usage = Usage()


class RunPage(Message):
    """Newest first; `next_cursor` when there are more."""

    runs: tuple[RunSummary, ...]
    next_cursor: str | None = None


class ListRuns(Question[RunPage]):
    """Which runs of a tenant are there? With `user` that user's alone."""

    subject: ClassVar[str] = "q.session_store.runs"
    answer: ClassVar[type[Message]] = RunPage
    askers: ClassVar[tuple[str, ...]] = ("gateway", "assistant")

    tenant: Identifier = "local"
    user: str | None = Field(default=None, max_length=200)
    cursor: str | None = Field(default=None, max_length=200)
    limit: int = Field(default=50, ge=1, le=100)
    status: RunStatus | None = None
    issue_id: str | None = Field(default=None, max_length=200)
    repo: str | None = Field(default=None, max_length=4096)
    text: str | None = Field(default=None, max_length=200, description="part of the title")


class ReadRun(Question[RunState]):
    """The last known state of a run, also when its journal is gone. Error code: `not_found`."""

    subject: ClassVar[str] = "q.session_store.run"
    answer: ClassVar[type[Message]] = RunState
    askers: ClassVar[tuple[str, ...]] = ("gateway", "assistant")

    run_id: Identifier


class Span(Message):
    """One finished span, times in nanoseconds since the epoch."""

    trace_id: str
    span_id: str
    parent_id: str | None = None
    name: str
    kind: str = "internal"
    service: str
    start_ns: int
    end_ns: int
    status: str = "unset"
    attributes: JsonObject = Field(default_factory=dict)
    links: tuple[str, ...] = Field(default=(), description="<trace id>-<span id>")


class SpanBatch(Message):
    """Spans on their way to the store, on `spans.<service>`."""

    spans: tuple[Span, ...]


class Trace(Message):
    """The spans of one trace, in order of their start."""

    trace_id: str
    spans: tuple[Span, ...]


class ReadTrace(Question[Trace]):
    """The spans of a trace."""

    subject: ClassVar[str] = "q.session_store.trace"
    answer: ClassVar[type[Message]] = Trace
    askers: ClassVar[tuple[str, ...]] = ("gateway",)

    trace_id: str = Field(pattern=r"^[0-9a-f]{32}$")
