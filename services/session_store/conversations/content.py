"""What a message is made of: cleaned text, an estimate of its tokens, its searchable text, and a bound on its size. Pure."""

import json
import math
import re
from collections.abc import Iterable, Iterator
from typing import Any

from pydantic import TypeAdapter

from libs.contracts.conversation import StoredMessage
from services.session_store.errors import MessageTooLargeError

ROW_BYTES = 2_000_000
EXCERPT_CHARS = 80
_PREVIEW_CHARS = 2_000
_FILE_TOKENS = 1_000

CJK = "\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff"
"""Scripts without spaces between words, and Hangul, as a regular expression's class."""
_IS_CJK = re.compile(f"[{CJK}]")
_RESULTS = ("output", "result")
_MESSAGES: TypeAdapter[tuple[StoredMessage, ...]] = TypeAdapter(tuple[StoredMessage, ...])


def parsed(bodies: Iterable[str]) -> tuple[StoredMessage, ...]:
    """Messages of their stored JSON."""
    return _MESSAGES.validate_json("[" + ",".join(bodies) + "]")


def is_tool(part: dict[str, Any]) -> bool:
    """Whether a part is a tool call or its result."""
    kind = str(part.get("type", ""))
    return kind.startswith("tool-") or kind == "dynamic-tool"


def shorten_results(part: dict[str, Any], keep_chars: int, note: str) -> dict[str, Any]:
    """The part with a tool's output cut to its first `keep_chars` and a note; the same part when it is no longer than that."""
    if not is_tool(part):
        return part
    changed: dict[str, Any] = {}
    for name in _RESULTS:
        if name in part:
            text = part[name] if isinstance(part[name], str) else json.dumps(part[name], ensure_ascii=False)
            if len(text) > keep_chars + len(note):
                changed[name] = f"{text[:keep_chars]}\n{note.format(left_out=len(text) - keep_chars)}"
    return {**part, **changed} if changed else part


def bounded(message: StoredMessage) -> tuple[StoredMessage, str]:
    """The message as it is stored, and its JSON of at most 2 MB: over that its tool outputs are cut, the longest first.

    Raises:
        MessageTooLargeError: it is over 2 MB without them.
    """
    body = message.model_dump_json(exclude_none=True)
    note = "[{left_out} characters were left out, the message was too large to keep; run the tool again to see them]"
    order = sorted(range(len(message.parts)), key=lambda i: len(str(message.parts[i])), reverse=True) if len(body) * 4 > ROW_BYTES else []
    parts = list(message.parts)
    for index in order:
        if len(body.encode()) <= ROW_BYTES:
            break
        shorter = shorten_results(parts[index], _PREVIEW_CHARS, note)
        if shorter is not parts[index]:
            parts[index] = shorter
            message = message.model_copy(update={"parts": tuple(parts)})
            body = message.model_dump_json(exclude_none=True)
    if len(size := body.encode()) > ROW_BYTES:
        raise MessageTooLargeError(
            f"message {message.id} has {len(size)} bytes, at most {ROW_BYTES} are stored: send large content as a file and name it"
        )
    return message, body


def estimate(text: str) -> int:
    """Tokens of a text: max(characters / 4, words * 1.3), a CJK character counting as one token and as no word."""
    if text.isascii():
        return math.ceil(max(len(text) / 4, len(text.split()) * 1.3))
    rest, wide = _IS_CJK.subn(" ", text)
    return math.ceil(max(wide + (len(text) - wide) / 4, wide + len(rest.split()) * 1.3))


def message_tokens(parts: Iterable[dict[str, Any]]) -> int:
    """Estimated tokens of a message: those of its texts and tools, 1,000 a file, and 4 for the message."""
    total = 4
    for part in parts:
        total += _FILE_TOKENS if part.get("type") == "file" else sum(map(estimate, _texts(part)))
    return total


def plain_text(parts: Iterable[dict[str, Any]]) -> str:
    """What is searched in a message: its texts, then the names, inputs and outputs of its tools. Reasoning and data are left out."""
    shown = list(parts)
    texts = [str(p.get("text", "")) for p in shown if p.get("type") == "text"]
    tools = [text for p in shown if is_tool(p) for text in _texts(p)]
    return "\n".join((*texts, *tools))


def excerpt(text: str) -> str:
    """The beginning of a text, on one line."""
    line = " ".join(text[: EXCERPT_CHARS * 4].split())
    return line if len(line) <= EXCERPT_CHARS else line[: EXCERPT_CHARS - 1] + "…"


def _texts(part: dict[str, Any]) -> Iterator[str]:
    if not is_tool(part):
        if isinstance(part.get("text"), str):
            yield part["text"]
        return
    yield str(part.get("toolName") or str(part.get("type", "")).removeprefix("tool-"))
    for name in ("input", "args", "errorText", *_RESULTS):
        yield from _leaves(part.get(name))


def _leaves(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield str(key)
            yield from _leaves(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _leaves(inner)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield str(value)
