"""The words of this service: a configured model, its price, one call to it, its raw reply, its failure. No I/O."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from pydantic import BaseModel, ConfigDict, Field, SecretStr

from libs.contracts.envelope import Usage
from libs.contracts.inference import ChatMessage, Complete, ModelDescription, ToolDefinition

MILLION = 1_000_000


@dataclass(frozen=True)
class Delta:
    """A piece of a reply under way: text, reasoning, or a part of the call `tool_index`, whose first part has its id and name."""

    text: str = ""
    reasoning: str = ""
    tool_index: int | None = None
    tool_call_id: str | None = None
    tool_name: str | None = None
    arguments: str = ""


OnDelta = Callable[[Delta], Awaitable[None]]


class Price(BaseModel):
    """US dollars per million tokens, from the settings or litellm's list; of an unknown source everything costs 0, tokens are counted."""

    model_config = ConfigDict(frozen=True)

    input_usd: float = Field(default=0.0, ge=0)
    output_usd: float = Field(default=0.0, ge=0)
    cached_usd: float | None = Field(default=None, ge=0)
    source: Literal["configured", "listed", "unknown"] = "configured"

    def cost(self, input_tokens: int, output_tokens: int, cached_tokens: int = 0) -> float:
        """What a call costs in US dollars; `cached_tokens` are a part of `input_tokens`."""
        cached_usd = self.input_usd if self.cached_usd is None else self.cached_usd
        fresh = max(0, input_tokens - cached_tokens)
        return (fresh * self.input_usd + cached_tokens * cached_usd + output_tokens * self.output_usd) / MILLION


UNKNOWN_PRICE = Price(source="unknown")


class ModelSpec(BaseModel):
    """One configured model. `wire` is litellm's name for it; `script` is set instead for the scripted model."""

    model_config = ConfigDict(frozen=True)

    description: ModelDescription
    wire: str
    base_url: str | None = None
    api_key: SecretStr | None = None
    missing_key: str | None = Field(default=None, description="the environment variable that this model needs and that is not set")
    price: Price = UNKNOWN_PRICE
    most_output_tokens: int | None = None
    listed: bool = Field(default=False, description="litellm's list knows the model, and litellm may have rules for it")
    script: Path | None = None

    @property
    def name(self) -> str:
        """The name that askers and replies use."""
        return self.description.name

    @property
    def direct(self) -> bool:
        """Whether the server is spoken to without litellm, which would have nothing to add."""
        return self.base_url is not None and self.wire.startswith("openai/") and not self.listed


@dataclass(frozen=True)
class Call:
    """One try of one completion at one model. `attempt` counts from 0 within the completion."""

    question: Complete
    attempt: int = 0
    timeout_seconds: float = 300.0


@dataclass(frozen=True)
class RawToolCall:
    """A tool call as a provider gave it: anything may be missing or of another type."""

    id: str | None = None
    name: str | None = None
    arguments: Any = None


@dataclass(frozen=True)
class RawReply:
    """A whole reply before it is normalised. `cost_usd` is absent when the provider's price list does not know the model."""

    content: str = ""
    reasoning: str = ""
    tool_calls: tuple[RawToolCall, ...] = ()
    finish_reason: str | None = None
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    cost_usd: float | None = None


@dataclass(frozen=True)
class Upstream:
    """One exchange with a provider as it was, without secrets: the HTTP status and headers where they are known, the body, how it ended."""

    body: str
    status: int | None = None
    headers: dict[str, str] = field(default_factory=dict)
    reply: RawReply | None = None
    failure: "ProviderFailure | None" = None


@dataclass
class ProviderFailure(Exception):
    """A provider did not give a whole reply.

    `code` is a Refusal code of `Complete`. `paid` says whether money may have been spent: true when the outcome is not known.
    """

    code: Literal["rate_limited", "upstream", "bad_request"]
    detail: str
    retryable: bool = False
    retry_after_seconds: float | None = None
    paid: bool = False
    status: int | None = field(default=None)

    def __str__(self) -> str:
        return self.detail


class Provider(Protocol):
    """Where completions come from: litellm or a script. It retries nothing."""

    async def complete(self, call: Call, on_delta: OnDelta | None) -> RawReply:
        """One try. `on_delta` is awaited for each piece when the call streams.

        Raises:
            ProviderFailure: no whole reply.
        """
        ...

    async def debug(self, call: Call) -> Upstream:
        """One try and what was said in it; a failure is a part of the answer."""
        ...

    async def close(self) -> None:
        """Let go of connections."""
        ...


def text_of(question: Complete) -> str:
    """Every word of a prompt, messages first, for matching and for estimates."""
    parts = [message.content for message in question.messages]
    parts += [call.arguments for message in question.messages for call in message.tool_calls]
    return "\n".join(parts)


def estimate_tokens(text: str) -> int:
    """A careful guess, rather too high: three ASCII characters a token, one of any other script."""
    ascii_count = sum(1 for char in text if char < "\x80") if not text.isascii() else len(text)
    return -(-ascii_count // 3) + (len(text) - ascii_count)


def estimate_input_tokens(messages: tuple[ChatMessage, ...], tools: tuple[ToolDefinition, ...], schema: object = None) -> int:
    """Estimated tokens of a prompt: its texts, its tool definitions and eight tokens of framing a message."""
    total = 0
    for message in messages:
        total += 8 + estimate_tokens(message.content)
        total += sum(8 + estimate_tokens(call.name + call.arguments) for call in message.tool_calls)
    total += sum(8 + estimate_tokens(tool.model_dump_json()) for tool in tools)
    return total + (estimate_tokens(str(schema)) if schema else 0)


def usage_of(reply: RawReply, price: Price) -> Usage:
    """What a call used: the provider's own cost where it has one, else the configured price."""
    cost = reply.cost_usd if reply.cost_usd is not None else price.cost(reply.input_tokens, reply.output_tokens, reply.cached_tokens)
    return Usage(
        input_tokens=reply.input_tokens,
        output_tokens=reply.output_tokens,
        cached_tokens=reply.cached_tokens,
        cost_usd=round(cost, 9),
        calls=1,
    )
