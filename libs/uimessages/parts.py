"""Between the record of a turn, the parts of a stored message (AI SDK 6 `UIMessage.parts`) and the messages of a prompt. Pure."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from libs.agent import Record, ToolResult
from libs.agent.conversation import estimate_tokens
from libs.agent.tools import parse_arguments
from libs.contracts.conversation import StoredMessage
from libs.contracts.envelope import JsonObject
from libs.contracts.inference import ChatMessage, Completion
from libs.contracts.turn import PendingCall, TurnAnswered
from libs.contracts.work import ToolCall

Answers = Mapping[str, TurnAnswered]
NO_RESULT = "[no result: the call was never answered]"
_LIMIT_BYTES = 700_000
_MOST_BYTES = 1_900_000
_NOTE_BYTES = 120
_KEPT = 400
_WAITING = ("input-available", "approval-requested", "approval-responded")


def call_id(prefix: str, call: int, index: int) -> str:
    """The id of a call, the same in the journal, in the live stream and in the stored message; both numbers from 1."""
    return f"{prefix}-{call}.{index}"


def call_input(call: ToolCall) -> Any:
    """The arguments of a call as a value; text that is no JSON object under `raw`."""
    parsed = parse_arguments(call.arguments)
    return parsed if parsed is not None and _is_text(parsed) else {"raw": call.arguments[:8000]}


def result_state(result: ToolResult, answers: Answers) -> JsonObject:
    """How a call ended, as fields of its part."""
    answer = answers.get(result.call_id)
    if not result.ok:
        denied = answer is not None and answer.approved is False
        return {"state": "output-denied"} if denied else {"state": "output-error", "errorText": result.text}
    return {"state": "output-available", "output": _value(result.text) if answer is not None and answer.output is not None else result.text}


def message_parts(
    record: Record, prefix: str, answers: Answers, pending: Sequence[PendingCall] = (), cut_off: str = ""
) -> list[JsonObject]:
    """The parts of the answer as far as it is recorded; `cut_off` is the text of a reply that was stopped in the middle."""
    waiting = {p.call_id: p for p in pending}
    parts: list[JsonObject] = []
    for number, reply in enumerate(record.replies, 1):
        parts.extend(_reply_parts(reply))
        for index, call in enumerate(reply.tool_calls, 1):
            parts.append(_tool_part(call, call_id(prefix, number, index), record, answers, waiting))
    if cut_off:
        parts.extend(({"type": "step-start"}, _text(cut_off)))
    return parts


def fitted(parts: Sequence[JsonObject]) -> tuple[tuple[JsonObject, ...], int]:
    """The parts, small enough to be stored as one message, and how many characters of texts that cost: long inputs and outputs of tools
    lose their end first, the oldest first, then the longest texts lose theirs, with a note.
    """
    kept = list(parts)
    size = _bytes(kept)
    for index, part in enumerate(parts):
        if size <= _LIMIT_BYTES:
            break
        shorter = {key: _shortened(value) if key in ("input", "output", "errorText") else value for key, value in part.items()}
        size -= _bytes(part) - _bytes(shorter)
        kept[index] = shorter
    left_out = 0
    for index in sorted(range(len(kept)), key=lambda i: len(str(kept[i].get("text", ""))), reverse=True):
        if size <= _MOST_BYTES:
            break
        fair = _MOST_BYTES // len(kept)
        shorter, fewer = _without_end(kept[index], max(_bytes(kept[index]) - (size - _MOST_BYTES), fair))
        size -= _bytes(kept[index]) - _bytes(shorter)
        kept[index], left_out = shorter, left_out + fewer
    return tuple(kept), left_out


def ended_calls(parts: Sequence[JsonObject], why: str) -> tuple[JsonObject, ...]:
    """The parts, the calls among them that wait for somebody ended with an error."""
    return tuple(
        {**part, "state": "output-error", "errorText": why} if _is_tool(part) and part.get("state") in _WAITING else part for part in parts
    )


def in_order(path: Sequence[StoredMessage], parent_id: str, own_id: str) -> list[StoredMessage]:
    """What the answer to `parent_id` follows: each answer behind the message that it answers, and nothing that came after `parent_id`.

    A message that was sent while an earlier answer was being written stands before it in the tree.
    """
    answers: dict[str, list[StoredMessage]] = {}
    ids = {message.id for message in path}
    for message in path:
        to = str(message.metadata.get("answers", ""))
        if message.role == "assistant" and to in ids:
            answers.setdefault(to, []).append(message)
    moved = {message.id for group in answers.values() for message in group}
    ordered: list[StoredMessage] = []
    for message in path:
        if message.id not in moved:
            ordered.append(message)
            if message.id != parent_id:
                ordered.extend(answers.get(message.id, ()))
        if message.id == parent_id:
            break
    return [message for message in ordered if message.id != own_id]


def chat_messages(history: Sequence[StoredMessage]) -> list[ChatMessage]:
    """Stored messages as a prompt. Calls get new short ids; a call without a result gets one that says so."""
    unloaded, found, count = _unloaded(history), list[ChatMessage](), 0
    for position, message in enumerate(history):
        if message.role != "assistant":
            if text := text_of(message):
                found.append(ChatMessage(role="system" if message.role == "system" else "user", content=text))
            continue
        for step in _steps(message):
            text = "\n".join(str(part.get("text", "")) for part in step if part.get("type") == "text")
            tools = [part for part in step if _is_tool(part)]
            calls = [_call(part, f"call_{count + i}") for i, part in enumerate(tools, 1)]
            count += len(calls)
            if text.strip() or calls:
                found.append(ChatMessage(role="assistant", content=text, tool_calls=tuple(calls)))
            for call, part in zip(calls, tools, strict=True):
                found.append(ChatMessage(role="tool", content=_result(part, position, unloaded), tool_call_id=call.id))
    return found


def within(messages: Sequence[ChatMessage], tokens: int) -> list[ChatMessage]:
    """A conversation that takes `tokens` at most, as far as its newest message lets it: a long text loses its middle, then what is
    oldest goes, from one message of a person to the next; summaries (system messages) stay.
    """
    kept = [_middle_cut(m, tokens // (2 if i == len(messages) - 1 else 4)) for i, m in enumerate(messages)]
    excess = sum(map(_tokens, kept)) - tokens
    newest = max((i for i, m in enumerate(kept) if m.role == "user"), default=0)
    left_out: set[int] = set()
    for index, message in enumerate(kept[:newest]):
        if excess <= 0 and message.role in ("user", "system"):
            break
        if message.role != "system":
            left_out.add(index)
            excess -= _tokens(message)
    note = [ChatMessage(role="user", content=f"[{len(left_out)} earlier messages are left out: they no longer fit]")] if left_out else []
    return note + [m for i, m in enumerate(kept) if i not in left_out]


def text_of(message: StoredMessage) -> str:
    """The text of a message; other parts are named."""
    lines = [str(part.get("text", "")) if part.get("type") == "text" else _named(part) for part in message.parts]
    return "\n".join(line for line in lines if line)


def tool_name(part: JsonObject) -> str:
    """The tool that a part is about."""
    kind = str(part.get("type", ""))
    return str(part.get("toolName", "")) if kind == "dynamic-tool" else kind.removeprefix("tool-")


def _tokens(message: ChatMessage) -> int:
    return estimate_tokens(message.content) + sum(estimate_tokens(call.name + call.arguments) for call in message.tool_calls)


def _middle_cut(message: ChatMessage, tokens: int) -> ChatMessage:
    size = estimate_tokens(message.content)
    if size <= tokens:
        return message
    half = int(len(message.content) * tokens / size) // 2
    end = len(message.content) - half
    note = f"\n[{end - half:,} characters are left out here: the text is too long]\n"
    return message.model_copy(update={"content": message.content[:half] + note + message.content[end:]})


def _reply_parts(reply: Completion) -> list[JsonObject]:
    reasoning = [{"type": "reasoning", "text": reply.reasoning, "state": "done"}] if reply.reasoning else []
    return [{"type": "step-start"}, *reasoning, *([_text(reply.content)] if reply.content else [])]


def _text(text: str) -> JsonObject:
    return {"type": "text", "text": text, "state": "done"}


def _tool_part(call: ToolCall, ident: str, record: Record, answers: Answers, waiting: Mapping[str, PendingCall]) -> JsonObject:
    part: JsonObject = {"type": f"tool-{call.name}", "toolCallId": ident, "state": "input-available", "input": call_input(call)}
    answer = answers.get(ident)
    if answer is not None and answer.approved is not None:
        part |= {"state": "approval-responded", "approval": {"id": ident, "approved": answer.approved}}
    elif ident in waiting and waiting[ident].waits_for == "approval":
        part |= {"state": "approval-requested", "approval": {"id": ident}}
    result = record.results.get(ident)
    return part | result_state(result, answers) if result is not None else part


def _value(text: str) -> Any:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return value if _is_text(value) else text


def _is_text(value: Any) -> bool:
    """Whether a value holds whole characters only: half of one cannot be stored or sent."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


def _bytes(value: Any) -> int:
    return len(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace"))


def _shortened(value: Any) -> Any:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return (
        value if len(text) <= _KEPT else f"{text[:_KEPT]}\n[{len(text) - _KEPT:,} characters are left out; call the tool again to see them]"
    )


def _without_end(part: JsonObject, size: int) -> tuple[JsonObject, int]:
    """The part with as much of its text as `size` bytes of JSON have room for, and how many characters that leaves out."""
    text = str(part.get("text", ""))
    room = max(size - _bytes({**part, "text": ""}) - _NOTE_BYTES, 0)
    keep = min(len(text), room)
    while keep and _bytes(text[:keep]) > room:
        keep = keep * 9 // 10
    left_out = len(text) - keep
    if left_out <= _NOTE_BYTES:
        return part, 0
    return {**part, "text": f"{text[:keep]}\n[{left_out:,} characters are left out here: the answer was too long to be kept]"}, left_out


def _steps(message: StoredMessage) -> list[list[JsonObject]]:
    steps: list[list[JsonObject]] = [[]]
    for part in message.parts:
        if part.get("type") == "step-start":
            steps.append([])
        else:
            steps[-1].append(part)
    return [step for step in steps if step]


def _is_tool(part: JsonObject) -> bool:
    kind = str(part.get("type", ""))
    return (kind.startswith("tool-") or kind == "dynamic-tool") and bool(tool_name(part))


def _call(part: JsonObject, ident: str) -> ToolCall:
    arguments = part.get("input")
    return ToolCall(id=ident, name=tool_name(part)[:64], arguments=json.dumps(arguments if isinstance(arguments, dict) else {}))


def _result(part: JsonObject, position: int, unloaded: Mapping[str, int]) -> str:
    skill = str((part.get("input") or {}).get("name", "")) if isinstance(part.get("input"), dict) else ""
    if tool_name(part) == "load_skill" and unloaded.get(skill, -1) >= position:
        return f"[the skill {skill} was unloaded]"
    match part.get("state"):
        case "output-available":
            output = part.get("output")
            return output if isinstance(output, str) else json.dumps(output, ensure_ascii=False)
        case "output-error":
            return str(part.get("errorText", ""))
        case "output-denied":
            return "The user did not allow this call."
    return NO_RESULT


def _unloaded(history: Sequence[StoredMessage]) -> dict[str, int]:
    """The position of the last message that unloads each skill."""
    found: dict[str, int] = {}
    for position, message in enumerate(history):
        for part in message.parts:
            if tool_name(part) == "unload_skill" and isinstance(part.get("input"), dict):
                found[str(part["input"].get("name", ""))] = position
    return found


def _named(part: JsonObject) -> str:
    kind = str(part.get("type", ""))
    return f"[attached file {str(part.get('filename') or part.get('mediaType') or '')[:200]}]" if kind == "file" else ""
