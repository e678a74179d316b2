"""Between OpenAI's chat completions and the questions of the inference service. Pure.

Only the fields that are carried out are looked at; `user` is not one of them: who asks is what the token says.
"""

import json
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from libs.contracts.envelope import JsonObject, Usage
from libs.contracts.inference import ChatMessage, Completion, TextDelta, ToolDefinition
from libs.contracts.work import ToolCall
from services.gateway.chat.halves import mended
from services.gateway.problems import Problem


class _Lenient(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class Function(_Lenient):
    """A function that the model may call."""

    name: str = Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")
    description: str = ""
    parameters: JsonObject = Field(default_factory=lambda: {"type": "object", "properties": {}})


class FunctionTool(_Lenient):
    """A tool of the kind function."""

    type: Literal["function"] = "function"
    function: Function


class CalledFunction(_Lenient):
    """What the model called."""

    name: str
    arguments: str = ""


class Call(_Lenient):
    """One call of a message."""

    id: str = Field(max_length=200)
    function: CalledFunction


class Part(_Lenient):
    """One part of a content."""

    type: str
    text: str | None = None


class RequestMessage(_Lenient):
    """One message of the request."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[Part] | None = None
    tool_calls: list[Call] | None = None
    tool_call_id: str | None = None


class JsonSchemaFormat(_Lenient):
    """The schema of a structured answer."""

    json_schema_: JsonObject = Field(default_factory=dict, alias="schema")


class ResponseFormat(_Lenient):
    """How the answer is to be written."""

    type: Literal["text", "json_object", "json_schema"] = "text"
    json_schema: JsonSchemaFormat | None = None


class StreamOptions(_Lenient):
    """What a stream holds."""

    include_usage: bool = False


class CompletionRequest(_Lenient):
    """A chat completion that is asked for."""

    model: str = Field(max_length=200, description="a configured model; `default` is the first one")
    messages: list[RequestMessage] = Field(min_length=1)
    tools: list[FunctionTool] = Field(default=[], max_length=128)
    tool_choice: Any = None
    response_format: ResponseFormat = ResponseFormat()
    max_tokens: int | None = Field(default=None, ge=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    temperature: float | None = Field(default=None, ge=0, le=2)
    n: int = Field(default=1, ge=1, le=1, description="one answer at a time")
    stream: bool = False
    stream_options: StreamOptions | None = None

    @model_validator(mode="before")
    @classmethod
    def _whole_characters(cls, body: Any) -> Any:
        return mended(body)


def fields_of(request: CompletionRequest) -> JsonObject:
    """What of a request becomes fields of a `Complete`. Raises Problem 400: it holds what cannot be passed on."""
    schema = request.response_format.json_schema
    return {
        "model": None if request.model == "default" else request.model,
        "messages": tuple(_message(m) for m in request.messages),
        "tools": tuple(_tool(t) for t in request.tools) if request.tool_choice != "none" else (),
        "json_schema": schema.json_schema_ if schema else {"type": "object"} if request.response_format.type == "json_object" else None,
        "temperature": request.temperature,
        "stream": request.stream,
        **({"max_output_tokens": n} if (n := request.max_completion_tokens or request.max_tokens) else {}),
    }


def _message(message: RequestMessage) -> ChatMessage:
    calls = tuple(ToolCall(id=c.id, name=c.function.name, arguments=c.function.arguments) for c in message.tool_calls or ())
    role = "system" if message.role == "developer" else message.role
    return ChatMessage(role=role, content=_content(message.content), tool_calls=calls, tool_call_id=message.tool_call_id)


def _content(content: str | list[Part] | None) -> str:
    if not isinstance(content, list):
        return content or ""
    odd = next((part.type for part in content if part.type not in ("text", "refusal")), None)
    if odd is not None:
        raise Problem(400, "unsupported-content", f"a content part of the type {odd[:50]} cannot be passed on", "send text")
    return "".join(part.text or "" for part in content)


def _tool(tool: FunctionTool) -> ToolDefinition:
    return ToolDefinition(name=tool.function.name, description=tool.function.description, parameters=tool.function.parameters)


def usage_of(usage: Usage) -> JsonObject:
    """Tokens as OpenAI counts them."""
    return {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.input_tokens + usage.output_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }


def completion(request_id: str, created: int, found: Completion) -> JsonObject:
    """A whole answer."""
    message: JsonObject = {"role": "assistant", "content": found.content or None, "refusal": None}
    if found.tool_calls:
        message["tool_calls"] = [_call(call) for call in found.tool_calls]
    if found.reasoning:
        message["reasoning_content"] = found.reasoning
    return {
        "id": request_id,
        "object": "chat.completion",
        "created": created,
        "model": found.model,
        "choices": [{"index": 0, "message": message, "finish_reason": _reason(found), "logprobs": None}],
        "usage": usage_of(found.usage),
    }


def _call(call: ToolCall) -> JsonObject:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _reason(found: Completion) -> str:
    known = found.finish_reason.replace("-", "_")
    return known if known in ("stop", "length", "tool_calls", "content_filter") else "tool_calls" if found.tool_calls else "stop"


class ChunkWriter:
    """The chunks of one streamed answer: the frames as they come, then whatever of the completion they did not hold."""

    def __init__(self, request_id: str, created: int, model: str, include_usage: bool) -> None:
        self._head = {"id": request_id, "object": "chat.completion.chunk", "created": created, "model": model}
        self._include_usage = include_usage
        self._text = ""
        self._calls: dict[int, str] = {}

    def first(self) -> JsonObject:
        """Who speaks."""
        return self._chunk({"role": "assistant", "content": ""})

    def frame(self, delta: TextDelta) -> list[JsonObject]:
        """One frame."""
        found = []
        if delta.reasoning:
            found.append(self._chunk({"reasoning_content": delta.reasoning}))
        if delta.text and (delta.offset is None or delta.offset == len(self._text)):
            self._text += delta.text
            found.append(self._chunk({"content": delta.text}))
        if delta.tool_index is not None:
            found.append(self._call(delta.tool_index, delta.tool_call_id, delta.tool_name, delta.arguments_delta or ""))
        return found

    def last(self, found: Completion) -> list[JsonObject]:
        """The rest, why it ended, and the usage when it was asked for."""
        self._head["model"] = found.model
        rest = []
        if found.content.startswith(self._text) and len(found.content) > len(self._text):
            rest.append(self._chunk({"content": found.content[len(self._text) :]}))
        for index, call in enumerate(found.tool_calls):
            told = self._calls.get(index)
            if told is None:
                rest.append(self._call(index, call.id, call.name, call.arguments))
            elif call.arguments.startswith(told) and len(call.arguments) > len(told):
                rest.append(self._call(index, None, None, call.arguments[len(told) :]))
        rest.append(self._chunk({}, _reason(found)))
        if self._include_usage:
            rest.append({**self._head, "choices": [], "usage": usage_of(found.usage)})
        return rest

    def _call(self, index: int, call_id: str | None, name: str | None, arguments: str) -> JsonObject:
        first = index not in self._calls
        self._calls[index] = self._calls.get(index, "") + arguments
        call: JsonObject = {"index": index, "function": {"arguments": arguments}}
        if first:
            call |= {"id": call_id or f"call_{index}", "type": "function", "function": {"name": name or "", "arguments": arguments}}
        return self._chunk({"tool_calls": [call]})

    def _chunk(self, delta: JsonObject, finish_reason: str | None = None) -> JsonObject:
        usage = {"usage": None} if self._include_usage else {}
        return {**self._head, "choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason, "logprobs": None}], **usage}


def event(data: JsonObject) -> bytes:
    """One server-sent event."""
    return b"data: " + json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace") + b"\n\n"
