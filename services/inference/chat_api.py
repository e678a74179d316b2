"""OpenAI's chat API as every provider here speaks it: the body of a request, and a reply put together from its pieces. Pure."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from libs.contracts.inference import Complete
from services.inference.deltas import CallDelta, Calls
from services.inference.domain import Delta, RawReply, RawToolCall, estimate_input_tokens, estimate_tokens
from services.inference.history import chat_messages

_SHORT = 8


def request_body(question: Complete, model: str, *, stream: bool, takes_schema: bool = False) -> dict[str, Any]:
    """The body of a request. A schema is asked for with the API's own parameter where the model `takes_schema`, else in words."""
    body: dict[str, Any] = {"model": model, "messages": chat_messages(question), "max_tokens": question.max_output_tokens}
    if question.temperature is not None:
        body["temperature"] = question.temperature
    if question.tools:
        body["tools"] = [{"type": "function", "function": tool.model_dump()} for tool in question.tools]
    if question.json_schema is not None and takes_schema:
        body["response_format"] = {"type": "json_schema", "json_schema": {"name": "answer", "schema": question.json_schema}}
    elif question.json_schema is not None:
        _ask_in_words(body, question.json_schema)
    if stream:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    return body


def _ask_in_words(body: dict[str, Any], schema: dict[str, Any]) -> None:
    words = f"Answer with one JSON object of this JSON Schema and nothing else:\n{json.dumps(schema, ensure_ascii=False)}"
    first, *rest = body["messages"]
    if first["role"] == "system":
        body["messages"] = [{**first, "content": f"{first['content']}\n\n{words}"}, *rest]
    else:
        body["messages"] = [{"role": "system", "content": words}, first, *rest]


@dataclass(frozen=True)
class Counts:
    """Tokens as a provider counted them; 0 where it did not."""

    given: int = 0
    written: int = 0
    cached: int = 0


class Gathered:
    """A reply as its pieces come in. `take` gives what each adds; the whole is here when the last one has come."""

    def __init__(self, request_id: str) -> None:
        self.content = ""
        self.reasoning = ""
        self.tool_calls: tuple[RawToolCall, ...] = ()
        self.finish_reason: str | None = None
        self.counts = Counts()
        self._calls = Calls(request_id)
        self._pieces = 0
        self._repeated = ""

    def take(self, text: str, reasoning: str, calls: Iterable[CallDelta], finish_reason: str | None) -> Iterator[Delta]:
        """What one chunk adds. A last piece that says the whole text once more adds nothing: it waits until it is known to be the last."""
        pieces = tuple(calls)
        self.finish_reason = finish_reason or self.finish_reason
        if text or pieces:
            text, self._repeated = self._repeated + text, ""
        if self._pieces > 1 and len(text) > _SHORT and text == self.content:
            text, self._repeated = "", text
        self._pieces += bool(text)
        self.reasoning += reasoning
        self.content += text
        if text or reasoning:
            yield Delta(text=text, reasoning=reasoning)
        for piece in pieces:
            yield from self._calls.add(piece)

    def end(self) -> list[Delta]:
        """The stream is over: what was not told yet."""
        rest = self._calls.rest()
        self.tool_calls = self._calls.whole()
        return rest

    def reply(self, question: Complete, cost_usd: float | None = None) -> RawReply:
        """The reply with its tokens, estimated where the provider counted none."""
        written = self.content + self.reasoning + "".join(str(call.arguments) for call in self.tool_calls)
        given = self.counts.given or estimate_input_tokens(question.messages, question.tools, question.json_schema)
        return RawReply(
            content=self.content,
            reasoning=self.reasoning,
            tool_calls=self.tool_calls,
            finish_reason=self.finish_reason,
            input_tokens=given,
            output_tokens=self.counts.written or estimate_tokens(written),
            cached_tokens=self.counts.cached,
            cost_usd=cost_usd,
        )
