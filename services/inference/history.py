"""A prompt's history made fit for any provider: every tool call has its result and every result its call. Pure."""

import json

from libs.contracts.inference import ChatMessage, Complete
from libs.contracts.work import ToolCall

NO_RESULT = "No result was recorded for this call. It may or may not have taken effect."


def repaired(messages: tuple[ChatMessage, ...]) -> tuple[ChatMessage, ...]:
    """The messages with a synthetic result for each call that has none; a result that no call asked for becomes a user message."""
    out: list[ChatMessage] = []
    open_calls: list[str] = []
    for message in messages:
        if message.role == "tool":
            if message.tool_call_id in open_calls:
                open_calls.remove(message.tool_call_id)
                out.append(message)
            elif not _answered(out, message.tool_call_id):
                out += [_missing(call) for call in open_calls]
                open_calls = []
                out.append(ChatMessage(role="user", content=f"Result of an earlier tool call:\n{message.content}"))
            continue
        out += [_missing(call) for call in open_calls]
        open_calls = [call.id for call in message.tool_calls]
        out.append(message.model_copy(update={"tool_calls": tuple(_whole(call) for call in message.tool_calls)}))
    return (*out, *(_missing(call) for call in open_calls))


def _answered(messages: list[ChatMessage], call_id: str | None) -> bool:
    """Whether the results right before this place hold one of that call already."""
    for message in reversed(messages):
        if message.role != "tool":
            return False
        if message.tool_call_id == call_id:
            return True
    return False


def _missing(call_id: str) -> ChatMessage:
    return ChatMessage(role="tool", content=NO_RESULT, tool_call_id=call_id)


def _whole(call: ToolCall) -> ToolCall:
    """Providers refuse arguments that are no JSON object, so broken ones go back to the model as a quotation."""
    try:
        if isinstance(json.loads(call.arguments), dict):
            return call
    except (ValueError, RecursionError):
        pass
    return call.model_copy(update={"arguments": json.dumps({"malformed_arguments": call.arguments}, ensure_ascii=False)})


def repairs(messages: tuple[ChatMessage, ...]) -> tuple[str, ...]:
    """What `repaired` changes, a sentence each, twenty at most."""
    after = repaired(messages)
    calls = {call.id: call.name for message in messages for call in message.tool_calls}
    given = [message.tool_call_id for message in messages if message.role == "tool"]
    kept = [message.tool_call_id for message in after if message.role == "tool" and message.content != NO_RESULT]
    added = [message.tool_call_id or "" for message in after if message.role == "tool" and message.content == NO_RESULT]
    broken = [call.id for message in messages for call in message.tool_calls if _whole(call) is not call]
    notes = [f"The call {name} of {calls.get(name, 'a tool')} had no result: a note says so in its place." for name in added]
    moved = sum(1 for message in after if message.role == "user") - sum(1 for message in messages if message.role == "user")
    if moved:
        notes.append(f"Results that belonged to no call before them became messages of the user: {moved}.")
    if dropped := len(given) - len(kept) - moved:
        notes.append(f"Results that repeated one that was there were left out: {dropped}.")
    notes += [f"The call {name} had arguments that are no JSON object: they went to the model as a quotation." for name in broken]
    return tuple(notes[:20])


def chat_messages(question: Complete) -> list[dict[str, object]]:
    """The repaired history in the form of the OpenAI chat API."""
    return [_chat_message(message) for message in repaired(question.messages)]


def _chat_message(message: ChatMessage) -> dict[str, object]:
    body: dict[str, object] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        body["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}} for call in message.tool_calls
        ]
    if message.role == "tool":
        body["tool_call_id"] = message.tool_call_id
    return body
