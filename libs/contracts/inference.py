"""Questions to the inference service: the only holder of provider keys."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from libs.contracts.envelope import JsonObject, Message, Question, Usage
from libs.contracts.work import ToolCall


class ChatMessage(Message):
    """One message of a prompt. A `tool` message answers the call named by `tool_call_id`."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None


class ToolDefinition(Message):
    """A tool as a model sees it; `parameters` is a JSON Schema of an object."""

    name: str = Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")
    description: str
    parameters: JsonObject


class TextDelta(Message):
    """A frame of a streamed completion: text, reasoning or a piece of a tool call. Frames are a preview, the Completion is the truth.

    `index` counts the frames of a request from 0, so whoever asks a second time can leave out what is known already. A call's id and
    name come with the first piece of its arguments; `tool_index` says which call a piece belongs to.
    """

    text: str
    request_id: str | None = None
    index: int | None = None
    offset: int | None = Field(default=None, description="characters of the reply's text before this piece")
    reasoning: str | None = None
    tool_index: int | None = None
    tool_call_id: str | None = None
    tool_name: str | None = None
    arguments_delta: str | None = None


class Completion(Message):
    """A model's reply. `finish_reason` is `stop`, `tool_calls`, `length` or what the provider said."""

    model: str
    content: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    finish_reason: str = "stop"
    usage: Usage = Usage()
    replayed: bool = Field(default=False, description="answered from the record of an earlier call with the same request id")
    cached: bool = Field(default=False, description="answered from the cache of an equal prompt; `usage` is then nothing")
    repairs: tuple[str, ...] = Field(default=(), description="what was mended in the prompt's history before the call, a sentence each")


class Complete(Question[Completion]):
    """Complete a prompt. Asked again with the same `request_id`, the running stream is joined from its start, or the recorded reply is
    the answer, and nothing is paid. Frames come when `stream` is set.

    The call counts on `account` and on the user's day; a call without `user` counts on the owner of the tenant `local`.
    Error codes: `no_model`, `budget_exceeded`, `rate_limited`, `upstream`, `bad_request`.
    """

    subject: ClassVar[str] = "q.inference.complete"
    answer: ClassVar[type[Message]] = Completion
    frame: ClassVar[type[Message] | None] = TextDelta
    askers: ClassVar[tuple[str, ...]] = ("planner", "editor", "assistant", "gateway", "session_store")
    deadline_seconds: ClassVar[float] = 600.0

    request_id: str = Field(min_length=1, max_length=200)
    account: str = Field(
        description="what the money is counted on: a run id, `run:<id>`, `turn:<id>` and so on, or the request id for one call"
    )
    purpose: str = Field(default="", description="plan, edit, …: for the trace and the scripted model")
    model: str | None = None
    messages: tuple[ChatMessage, ...] = Field(min_length=1)
    tools: tuple[ToolDefinition, ...] = ()
    json_schema: JsonObject | None = None
    max_output_tokens: int = Field(default=8192, ge=1)
    temperature: float | None = None
    ceiling_usd: float | None = Field(default=None, description="of the whole account")
    stream: bool = False
    recorded: bool = Field(default=True, description="False: nobody asks again with this `request_id`, so the reply is not kept under it")
    tenant: str | None = Field(default=None, max_length=200)
    user: str | None = Field(default=None, max_length=200)
    plan: str | None = Field(default=None, max_length=64, description="a plan of models.toml; its models in their order are the chain")
    cache_ttl_seconds: int | None = Field(default=None, ge=1, le=86_400, description="take and keep replies to equal prompts this long")
    bypass_cache: bool = Field(default=False, description="ask a model all the same; the new reply replaces the kept one")


class ModelDescription(Message):
    """One configured model and how it is spoken to."""

    name: str
    tool_calling: bool = True
    edit_format: Literal["tools", "whole_file", "search_replace", "unified_diff"] = "tools"
    context_tokens: int = 128_000
    scripted: bool = False


class Models(Message):
    """The configured models in the order of fallback; empty when none is configured, with `advice` saying what to set."""

    models: tuple[ModelDescription, ...] = ()
    advice: str = ""


class DescribeModels(Question[Models]):
    """Which models are configured? With `plan` those of the plan; error code: `bad_request` for a plan that is not configured."""

    subject: ClassVar[str] = "q.inference.models"
    answer: ClassVar[type[Message]] = Models
    askers: ClassVar[tuple[str, ...]] = ("planner", "editor", "assistant", "gateway", "session_store")

    plan: str | None = None


class Account(Message):
    """The ledger of one account: settled money and what is reserved for calls under way."""

    account: str
    spent: Usage = Usage()
    reserved_usd: float = 0.0


class ReadAccount(Question[Account]):
    """What has an account used? `account` is that of a Complete, or `user:<tenant>:<user>:<day>`, a UTC day as 2026-01-31."""

    subject: ClassVar[str] = "q.inference.account"
    answer: ClassVar[type[Message]] = Account
    askers: ClassVar[tuple[str, ...]] = ("gateway", "assistant", "session_store")

    account: str


Dimension = Literal["day", "tenant", "user", "account", "model"]
Day = Annotated[str, Field(pattern=r"^\d{4}-\d{2}-\d{2}$", description="a UTC day, as 2026-01-31")]


class UsageRow(Message):
    """What was used, by the dimensions that were asked for; the others are absent."""

    day: str | None = None
    tenant: str | None = None
    user: str | None = None
    account: str | None = None
    model: str | None = None
    usage: Usage = Usage()


class UsageReport(Message):
    """Rows in the order of their dimensions, and their sum. `truncated`: there are more rows than `limit`; the sum holds them all."""

    rows: tuple[UsageRow, ...] = ()
    total: Usage = Usage()
    truncated: bool = False


class ReadUsage(Question[UsageReport]):
    """What was used in a span of days, both ends within; kept for 400 days. Filters that are absent let everything through."""

    subject: ClassVar[str] = "q.inference.usage"
    answer: ClassVar[type[Message]] = UsageReport
    askers: ClassVar[tuple[str, ...]] = ("gateway", "assistant", "session_store")

    first_day: Day | None = None
    last_day: Day | None = None
    tenant: str | None = None
    user: str | None = None
    account: str | None = None
    model: str | None = None
    by: tuple[Dimension, ...] = ("day", "tenant", "user", "account", "model")
    limit: int = Field(default=1000, ge=1, le=10_000)


class DebugReply(Message):
    """What a provider said, word for word but for secrets. `status` is absent when no reply came or the provider's client keeps none;
    `body` has 200,000 characters at most.
    """

    model: str
    wire: str = Field(description="the name that the provider is asked by")
    base_url: str | None = None
    outcome: Literal["ok", "error"]
    status: int | None = None
    headers: dict[str, str] = Field(default_factory=dict)
    body: str = ""
    error: str | None = Field(default=None, description="the error as an asker of Complete would be told")
    retryable: bool = False
    seconds: float = 0.0
    usage: Usage = Usage()


class DebugCompletion(Question[DebugReply]):
    """One call to one model, for operators: no retry, no fallback, no cache, no record; the breaker does not hold it back. It is paid for.

    Error codes: `no_model`, `bad_request`, `budget_exceeded`.
    """

    subject: ClassVar[str] = "q.inference.debug"
    answer: ClassVar[type[Message]] = DebugReply
    askers: ClassVar[tuple[str, ...]] = ("gateway", "assistant", "session_store")
    deadline_seconds: ClassVar[float] = 330.0

    model: str | None = Field(default=None, description="a configured model; the first one when absent")
    messages: tuple[ChatMessage, ...] = Field(min_length=1)
    tools: tuple[ToolDefinition, ...] = ()
    max_output_tokens: int = Field(default=64, ge=1)
    tenant: str | None = Field(default=None, max_length=200)
    user: str | None = Field(default=None, max_length=200)
