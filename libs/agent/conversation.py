"""The prompt as it grows. When it nears the model's context, older tool outputs are left out, the oldest first, and the newest are cut.

Invariant: what is left out depends on the messages alone, so a resumed loop sees the prompt that the first one saw.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field

from libs.agent.limits import ContextLimit
from libs.agent.tools import parse_arguments
from libs.contracts.inference import ChatMessage, Completion, ToolDefinition
from libs.contracts.work import ToolCall

_HIGH, _LOW = 0.9, 0.6
_KEEP_OUTPUTS = 2
_MASKED_OVER = 200
_LONG_VALUE = 400
_LEAST_OUTPUT_TOKENS = 200


def estimate_tokens(text: str) -> int:
    """A careful guess: three bytes of UTF-8 a token, so one for a Chinese character."""
    return len(text.encode("utf-8", "replace")) // 3 + 4


def _size(message: ChatMessage) -> int:
    return estimate_tokens(message.content) + sum(estimate_tokens(call.name + call.arguments) for call in message.tool_calls)


@dataclass
class Conversation:
    """Messages with their estimated sizes. `context_tokens` is what the model takes, `reserve` what its reply needs."""

    context_tokens: int
    reserve: int
    definitions: Sequence[ToolDefinition] = ()
    messages: list[ChatMessage] = field(default_factory=list)
    _sizes: list[int] = field(default_factory=list)
    _labels: dict[int, str] = field(default_factory=dict)

    def add(self, message: ChatMessage) -> None:
        """Append a message."""
        self.messages.append(message)
        self._sizes.append(_size(message))

    def user(self, text: str) -> None:
        """Append something that the model is told."""
        self.add(ChatMessage(role="user", content=text))

    def reply(self, reply: Completion) -> None:
        """Append the model's own words; a reply with nothing in it leaves no message."""
        if reply.content or reply.tool_calls:
            self.add(ChatMessage(role="assistant", content=reply.content, tool_calls=reply.tool_calls))

    def output(self, call: ToolCall, text: str) -> None:
        """Append what a call gave."""
        self._labels[len(self.messages)] = f"{call.name}({_brief(call.arguments)})"
        self.add(ChatMessage(role="tool", content=text, tool_call_id=call.id))

    def fit(self) -> bool:
        """Leave out what no longer fits; whether anything was. Raises ContextLimit when nothing more can be left out."""
        room = self.context_tokens - self.reserve - sum(estimate_tokens(d.model_dump_json()) for d in self.definitions)
        if sum(self._sizes) <= room * _HIGH:
            return False
        for index in list(self._labels)[:-_KEEP_OUTPUTS]:
            if sum(self._sizes) > room * _LOW:
                self._mask(index)
        calls = [index for index, message in enumerate(self.messages) if message.tool_calls]
        for index in calls[:-1]:
            if sum(self._sizes) > room * _LOW:
                self._shorten(index)
        if sum(self._sizes) > room:
            self._cut_newest(int(room * _HIGH))
        if sum(self._sizes) > room:
            raise ContextLimit(
                f"the conversation needs about {sum(self._sizes):,} tokens. The model takes {self.context_tokens:,}, which leave "
                f"{max(room, 0):,} beside its reply and its tools. Choose a model with a larger context or split the issue."
            )
        return True

    def _cut_newest(self, room: int) -> None:
        """Give the outputs that are never left out equal shares of what the rest leaves; each keeps its beginning and its end."""
        newest = list(self._labels)[-_KEEP_OUTPUTS:]
        rest = sum(self._sizes) - sum(self._sizes[index] for index in newest)
        share = max((room - rest) // max(len(newest), 1), _LEAST_OUTPUT_TOKENS)
        for index in newest:
            if self._sizes[index] > share:
                message = self.messages[index]
                self._replace(index, message.model_copy(update={"content": _middle_cut(message.content, share / self._sizes[index])}))

    def _mask(self, index: int) -> None:
        message = self.messages[index]
        if len(message.content) > _MASKED_OVER:
            text = f"[output of {self._labels[index]} left out to save room; call it again if you need it]"
            self._replace(index, message.model_copy(update={"content": text}))

    def _shorten(self, index: int) -> None:
        message = self.messages[index]
        calls = tuple(call.model_copy(update={"arguments": _shortened(call.arguments)}) for call in message.tool_calls)
        self._replace(index, message.model_copy(update={"tool_calls": calls}))

    def _replace(self, index: int, message: ChatMessage) -> None:
        self.messages[index] = message
        self._sizes[index] = _size(message)


def _middle_cut(text: str, part: float) -> str:
    """About `part` of a text, its beginning and its end, with a note between them."""
    kept = max(int(len(text) * part) - 100, 0) // 2
    left = len(text) - 2 * kept
    note = f"\n[{left:,} characters are left out here, the model's context is nearly full; ask for less at a time]\n"
    return text[:kept] + note + (text[-kept:] if kept else "")


def _brief(arguments: str) -> str:
    fields = parse_arguments(arguments) or {}
    return ", ".join(f"{name}={value!r:.80}" for name, value in fields.items())[:200]


def _shortened(arguments: str) -> str:
    fields = parse_arguments(arguments)
    if fields is None:
        return "{}"
    return json.dumps(
        {
            name: f"[{len(value):,} characters left out]" if isinstance(value, str) and len(value) > _LONG_VALUE else value
            for name, value in fields.items()
        },
        ensure_ascii=False,
    )
