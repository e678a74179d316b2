"""The model as the loop sees it, and the one that is asked over the bus.

Invariant: the same `request_id` is paid for once, however often it is asked.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from libs.contracts.envelope import Ask, JsonObject
from libs.contracts.inference import ChatMessage, Complete, Completion, TextDelta, ToolDefinition

ShowText = Callable[[str], Awaitable[None]]
ShowFrame = Callable[[str, TextDelta], Awaitable[None]]


class Model(Protocol):
    """Whatever completes a prompt."""

    async def complete(self, messages: Sequence[ChatMessage], tools: Sequence[ToolDefinition], request_id: str) -> Completion:
        """The reply to `messages`; asked again with the same `request_id`, the same reply."""


@dataclass(frozen=True)
class AskedModel:
    """A model of the inference service. `account` is what the money is counted on; `show` is given the text as it streams in,
    `frame` each frame with the request id that it belongs to.
    """

    ask: Ask
    account: str
    purpose: str
    name: str | None = None
    json_schema: JsonObject | None = None
    max_output_tokens: int = 8192
    ceiling_usd: float | None = None
    show: ShowText | None = None
    frame: ShowFrame | None = None
    tenant: str | None = None
    user: str | None = None
    plan: str | None = None

    async def complete(self, messages: Sequence[ChatMessage], tools: Sequence[ToolDefinition], request_id: str) -> Completion:
        """Ask the inference service. Raises Refusal with its code, or NoAnswer."""
        question = Complete(
            request_id=request_id,
            account=self.account,
            purpose=self.purpose,
            model=self.name,
            messages=tuple(messages),
            tools=tuple(tools),
            json_schema=self.json_schema,
            max_output_tokens=self.max_output_tokens,
            ceiling_usd=self.ceiling_usd,
            stream=self.show is not None or self.frame is not None,
            tenant=self.tenant,
            user=self.user,
            plan=self.plan,
        )

        async def on_frame(payload: bytes) -> None:
            delta = TextDelta.model_validate_json(payload)
            if self.show is not None:
                await self.show(delta.text)
            if self.frame is not None:
                await self.frame(request_id, delta)

        answer: Completion = await self.ask(question, on_frame=on_frame if question.stream else None)
        return answer
