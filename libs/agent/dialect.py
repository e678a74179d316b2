"""How a model speaks: with tool calls, or in text that stands for them.

A reply is recorded as the model wrote it and read afterwards, so reading must depend on the reply alone.
"""

import re
from collections.abc import Sequence
from typing import Protocol

from libs.agent.tools import Tools, parse_arguments
from libs.contracts.inference import ChatMessage, Completion, ToolDefinition

_PRINTED = re.compile(r"<(?:tool_call|function_call|invoke|function=)|\"(?:name|tool|function)\"\s*:\s*\"(\w+)\"", re.IGNORECASE)


class Dialect(Protocol):
    """The two directions of speaking to a model."""

    def prompt(self, messages: Sequence[ChatMessage], tools: Tools) -> tuple[Sequence[ChatMessage], Sequence[ToolDefinition]]:
        """What the model is sent."""

    def read(self, reply: Completion, tools: Tools) -> Completion:
        """The reply with the tool calls that it stands for."""

    def nudge(self, reply: Completion, tools: Tools) -> str:
        """What a model is told whose reply asks for nothing."""


class NativeCalls:
    """The model calls tools by itself."""

    def prompt(self, messages: Sequence[ChatMessage], tools: Tools) -> tuple[Sequence[ChatMessage], Sequence[ToolDefinition]]:
        return messages, tools.definitions()

    def read(self, reply: Completion, tools: Tools) -> Completion:
        return reply

    def nudge(self, reply: Completion, tools: Tools) -> str:
        if printed_call(reply.content, tools):
            return (
                "You wrote a tool call as text, so nothing was run. Call the tool itself, through the tool interface. "
                f"The tools are: {', '.join(tools.names)}."
            )
        if reply.finish_reason == "length":
            return "Your reply was cut off at its limit before any tool call. Do less at a time: call one tool now, in a short reply."
        if not reply.content.strip():
            return "Your reply was empty. Call a tool to go on, or call done with a summary when this step is complete."
        return (
            "Your reply called no tool, so nothing was done. Call a tool to go on, or call done with a summary when this step is complete."
        )


def printed_call(text: str, tools: Tools) -> bool:
    """Whether a text holds a tool call written out instead of made."""
    for match in _PRINTED.finditer(text):
        if match[1] is None or match[1] in tools.names:
            return True
    whole = parse_arguments(text.strip().removeprefix("```json").removesuffix("```").strip())
    return bool(text.strip()) and whole is not None and any(name in whole for name in tools.names)
