"""What a client asks of a conversation: the AI SDK's body or the short one, taken apart. Pure.

Of the messages only the newest one is looked at: what the others say is the store's to know.
"""

import hashlib
import json
from collections.abc import Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from libs.contracts.conversation import StoredMessage
from libs.contracts.envelope import Identifier, JsonObject
from libs.contracts.turn import ClientTool, Concurrency
from services.gateway.chat.halves import mended
from services.gateway.chat.names import new_id
from services.gateway.problems import Problem, of_validation

MAX_MESSAGE_BYTES = 4_000_000
_MAX_PARTS = 10_000


class ChatRequest(BaseModel):
    """A request for an answer. `{"message": "…"}` is enough; the AI SDK sends `{id, messages, trigger, messageId}`."""

    model_config = ConfigDict(
        frozen=True,
        extra="ignore",
        json_schema_extra={
            "examples": [
                {"message": "What does this project do?", "session": "holiday-plans"},
                {
                    "id": "a1",
                    "messages": [{"id": "m1", "role": "user", "parts": [{"type": "text", "text": "Hello"}]}],
                    "trigger": "submit-message",
                },
            ]
        },
    )

    message: str | None = Field(default=None, description="the short form: the text")
    session: str | None = Field(default=None, min_length=1, max_length=256, description="the conversation; absent: a new one")
    id: str | None = Field(default=None, min_length=1, max_length=256, description="the conversation, as the AI SDK calls it")
    messages: list[Any] = Field(default=[], description="UI messages; only the last one is taken")
    trigger: Literal["submit-message", "regenerate-message"] = "submit-message"
    messageId: str | None = Field(default=None, max_length=128)  # noqa: N815 - name of the AI SDK
    parent_id: str | None = Field(default=None, max_length=128, description="below this message instead of the active branch's end")
    agent: Identifier = "assistant"
    model: str | None = Field(default=None, max_length=200)
    concurrency: Concurrency = Field(default="queue", description="what to do while an earlier turn is at work")
    debounce_milliseconds: int = Field(default=750, ge=0, le=60_000)
    max_model_calls: int = Field(default=10, ge=1, le=200)
    tools: list[ClientTool] = Field(default=[], max_length=50, description="tools that the client carries out")
    clientTools: list[ClientTool] = Field(default=[], max_length=50)  # noqa: N815 - name of the npm package `agents`
    inline_tools: bool = Field(default=True, description="whether the agent's own tools are offered")
    repository: str | None = Field(default=None, min_length=1, max_length=4096, description="attached to the conversation from now on")

    @model_validator(mode="before")
    @classmethod
    def _whole_characters(cls, body: Any) -> Any:
        """The newest message is mended when it is taken; the others are not looked at."""
        return body | mended({key: body[key] for key in body if key != "messages"}) if isinstance(body, dict) else body

    @property
    def conversation(self) -> str:
        """The name of the conversation; a fresh one when none is given."""
        return self.session or self.id or new_id()

    @property
    def client_tools(self) -> tuple[ClientTool, ...]:
        """The client's tools."""
        return tuple({tool.name: tool for tool in (*self.clientTools, *self.tools)}.values())

    def newest(self) -> StoredMessage:
        """The newest message as it is stored. Raises Problem 413 or 422."""
        if self.message is not None:
            return user_message(self.message)
        if not self.messages:
            raise Problem(422, "no-message", "there is nothing to answer", 'send {"message": "…"} or messages with at least one')
        return stored(self.messages[-1])


def user_message(text: str, message_id: str | None = None) -> StoredMessage:
    """A person's text as a message. Raises Problem 413 or 422."""
    return stored({"id": message_id or new_id("m-"), "role": "user", "parts": [{"type": "text", "text": text}]})


def stored(message: Any) -> StoredMessage:
    """A UI message as it is stored, checked. Raises Problem 413 or 422."""
    if not isinstance(message, dict):
        raise Problem(422, "invalid-message", "the newest message is no object", "send a UI message: {id, role, parts}")
    message = mended(message)
    parts = message.get("parts")
    if parts is None and isinstance(message.get("content"), str):
        parts = [{"type": "text", "text": message["content"]}]
    checked = _checked(parts)
    if not any(_says_something(part) for part in checked):
        raise Problem(422, "empty-message", "the newest message says nothing", "send a text")
    metadata = message.get("metadata")
    fields = {
        "id": message.get("id") or new_id("m-"),
        "role": message.get("role", "user"),
        "parts": checked,
        "metadata": metadata if isinstance(metadata, dict) else {},
    }
    try:
        return StoredMessage.model_validate(fields)
    except ValidationError as error:
        raise of_validation([{**fault, "loc": ("message", *fault["loc"])} for fault in error.errors(include_input=False)]) from error


def _checked(parts: Any) -> list[JsonObject]:
    if not isinstance(parts, list) or not all(isinstance(p, dict) and isinstance(p.get("type"), str) for p in parts):
        raise Problem(422, "invalid-message", "parts must be a list of objects with a type", "send parts as AI SDK 6 has them")
    if len(parts) > _MAX_PARTS:
        raise Problem(422, "too-many-parts", f"a message has at most {_MAX_PARTS:,} parts", "send several messages")
    try:
        size = len(json.dumps(parts, ensure_ascii=False).encode("utf-8", "surrogatepass"))
    except RecursionError as error:
        raise Problem(422, "invalid-message", "parts are nested too deeply", "send flatter parts") from error
    if size > MAX_MESSAGE_BYTES:
        raise Problem(
            413, "content-too-large", f"a message has at most {MAX_MESSAGE_BYTES:,} bytes, this one has {size:,}", "send a shorter one"
        )
    return parts


def _says_something(part: JsonObject) -> bool:
    return part["type"] != "text" or bool(str(part.get("text", "")).strip())


class Answer(BaseModel):
    """What somebody says about a call that waits."""

    model_config = ConfigDict(frozen=True)

    call_id: str
    approved: bool | None = None
    output: str | None = None
    error: str | None = None
    goes_on: bool = True


def answers_of(parts: Sequence[JsonObject]) -> list[Answer]:
    """The answers that a client has put into the parts of an assistant's message."""
    found = []
    for part in parts:
        call_id = part.get("toolCallId")
        if isinstance(call_id, str) and (answer := _answer(call_id, part)) is not None:
            found.append(answer)
    return found


def _answer(call_id: str, part: JsonObject) -> Answer | None:
    match part.get("state"):
        case "output-available":
            return Answer(call_id=call_id, output=output_text(part.get("output")))
        case "output-error":
            return Answer(call_id=call_id, error=str(part.get("errorText") or "the tool failed")[:4000])
        case "approval-responded":
            approval = part.get("approval")
            if isinstance(approval, dict) and isinstance(approval.get("approved"), bool):
                reason = approval.get("reason")
                return Answer(call_id=call_id, approved=approval["approved"], error=reason[:4000] if isinstance(reason, str) else None)
    return None


def output_text(output: Any) -> str:
    """A tool's output as the model gets it: a text as it is, anything else as JSON. Raises Problem 413."""
    output = mended(output)
    text = output if isinstance(output, str) else json.dumps(output, ensure_ascii=False)
    if len(text) > 200_000:
        raise Problem(413, "content-too-large", "the output of a tool has at most 200,000 characters", "send less")
    return text


def edited_id(message: StoredMessage) -> str:
    """The id of an edited message: it becomes a branch beside the original, the same one when it is sent again."""
    digest = hashlib.sha256(json.dumps([message.id, message.parts]).encode("utf-8", "surrogatepass")).hexdigest()
    return f"{message.id[:100]}~{digest[:16]}"
