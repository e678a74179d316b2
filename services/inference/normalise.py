"""A provider's reply in the one shape that the rest of the product knows. Pure.

What a model wrote is kept: arguments that are cut off stay the raw text that they are, so that the loop can tell the model.
"""

import hashlib
import json
import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from libs.contracts.work import ToolCall
from services.inference.domain import RawReply, RawToolCall

_FINISH = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "eos": "stop",
    "eos_token": "stop",
    "max_tokens": "length",
    "max_output_tokens": "length",
    "model_length": "length",
    "function_call": "tool_calls",
    "tool_use": "tool_calls",
}
_THINK = re.compile(r"\A\s*<think(?:ing)?>(.*?)</think(?:ing)?>\s*", re.DOTALL)
# How a printed call begins and ends. Two expressions, as one over both takes quadratic time where the end is missing.
_TAGGED = (re.compile(r"<(?:tool_call|function_call)>\s*(?=\{)"), re.compile(r"\}\s*</(?:tool_call|function_call)>"))
_FENCED = (
    re.compile(r"^```(?:json|tool_call|tool_code)?[ \t]*\n(?=\{)", re.MULTILINE),
    re.compile(r"\}\s*\n```[ \t]*$", re.MULTILINE),
)
_NAMED = (re.compile(r"<function=([A-Za-z0-9_-]+)>\s*(?=\{)"), re.compile(r"\}\s*</function>"))
_EDITS = re.compile(r"^[ \t]*(?:<file path=|<{5,9} ?SEARCH|diff --git |--- (?:a/|/dev/null))", re.MULTILINE)


@dataclass(frozen=True)
class Reply:
    """A reply in the product's shape."""

    content: str
    tool_calls: tuple[ToolCall, ...]
    finish_reason: str
    reasoning: str = ""


def argument_text(arguments: Any) -> str:
    if arguments is None:
        return ""
    if isinstance(arguments, str):
        return _unicode(arguments)
    text = json.dumps(arguments, ensure_ascii=False)
    return text if _unicode(text) == text else json.dumps(arguments)


def _unicode(text: str) -> str:
    """`text` with a question mark for each half of a character, as no JSON and no file can hold one."""
    return text.encode("utf-8", "replace").decode()


def normalise(raw: RawReply, offered: Collection[str], request_id: str) -> Reply:
    """A reply with every call named, identified and its arguments as text; a call that was printed as text becomes a call.

    `offered` are the names of the tools in the prompt; text that names another one, or that holds edits, stays text. Missing and double
    ids are derived from `request_id`, so that the same request gets the same ids.
    """
    reasoning, content = _unicode(raw.reasoning), _unicode(raw.content)
    if thought := _THINK.match(content):
        reasoning, content = reasoning + thought[1].strip(), content[thought.end() :]
    found = tuple(call for call in raw.tool_calls if call.name)
    if not found and offered and not _EDITS.search(content):
        found, content = printed_calls(content, offered)
    calls = _identified(found, request_id)
    return Reply(content, calls, _finish(raw.finish_reason, bool(calls)), reasoning)


def _finish(reason: str | None, called: bool) -> str:
    known = _FINISH.get((reason or "stop").lower(), (reason or "stop").lower())
    if called and known in ("stop", "tool_calls"):
        return "tool_calls"
    return "stop" if known == "tool_calls" and not called else known


def _identified(calls: tuple[RawToolCall, ...], request_id: str) -> tuple[ToolCall, ...]:
    seen: set[str] = set()
    named: list[ToolCall] = []
    for number, call in enumerate(calls):
        own = _unicode(str(call.id)).strip() if call.id else ""
        if not own or own in seen:
            own = call_id(request_id, number)
        seen.add(own)
        arguments = argument_text(call.arguments)
        named.append(ToolCall(id=own, name=_unicode(str(call.name)), arguments=arguments if arguments.strip() else "{}"))
    return tuple(named)


def call_id(request_id: str, number: int) -> str:
    """The id of a call that its provider gave none."""
    return "call_" + hashlib.sha256(f"{request_id}/{number}".encode("utf-8", "replace")).hexdigest()[:20]


def printed_calls(content: str, offered: Collection[str]) -> tuple[tuple[RawToolCall, ...], str]:
    """Tool calls that a model printed instead of making, and the text around them. All of them name an offered tool, or none counts."""
    stripped = content.strip()
    if stripped.startswith("{") and (whole := _printed(stripped, offered)):
        return (whole,), ""
    for form in (_TAGGED, _FENCED, _NAMED):
        found, around = _blocks(form, content)
        calls = [_named(name, text, offered) if form is _NAMED else _printed(text, offered) for name, text in found]
        kept = tuple(call for call in calls if call is not None)
        if kept and len(kept) == len(calls):
            return kept, around.strip()
    return (), content


def _blocks(form: tuple[re.Pattern[str], re.Pattern[str]], content: str) -> tuple[list[tuple[str, str]], str]:
    """The objects between a form's beginnings and ends, each with the name in its beginning, and the text around them."""
    opening, closing = form
    found: list[tuple[str, str]] = []
    around, position = "", 0
    while (begin := opening.search(content, position)) and (end := closing.search(content, begin.end())):
        found.append((begin[1] if opening.groups else "", content[begin.end() : end.start() + 1]))
        around += content[position : begin.start()]
        position = end.end()
    return found, around + content[position:]


def _named(name: str, text: str, offered: Collection[str]) -> RawToolCall | None:
    return RawToolCall(name=name, arguments=text) if name in offered else None


def _printed(text: str, offered: Collection[str]) -> RawToolCall | None:
    """`{"name": …, "arguments": {…}}` of an offered tool; anything else is None."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict):
        return None
    nested = found.get("function")
    inner: dict[str, Any] = nested if isinstance(nested, dict) else found
    arguments = inner.get("arguments", inner.get("parameters"))
    name = inner.get("name")
    if not isinstance(name, str) or name not in offered or not isinstance(arguments, dict | str):
        return None
    return RawToolCall(name=name, arguments=arguments)
