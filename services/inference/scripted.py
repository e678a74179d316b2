"""The scripted test model: answers from a script, never from a model. Its name begins with `scripted:` wherever it is shown."""

import asyncio
import json
import re
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

from libs.contracts.inference import Complete
from services.inference import reference
from services.inference.domain import (
    Call,
    Delta,
    OnDelta,
    ProviderFailure,
    RawReply,
    RawToolCall,
    Upstream,
    estimate_input_tokens,
    estimate_tokens,
)
from services.inference.normalise import argument_text, call_id
from services.inference.script import Reference, Script, ScriptedError, ScriptedReply, choose, turn_of

_PIECES = re.compile(r"\S+\s*|\s+")


class ScriptedProvider:
    """Provider over one script."""

    def __init__(self, script: Script) -> None:
        self._script = script

    async def complete(self, call: Call, on_delta: OnDelta | None) -> RawReply:
        """The script's reply.

        Raises:
            ProviderFailure: the script says an error, breaks off, or has no rule for the prompt.
        """
        reply = choose(self._script, call.question)
        if reply is None:
            raise ProviderFailure("bad_request", _no_rule(call.question))
        if reply.delay_seconds:
            await asyncio.sleep(reply.delay_seconds)
        if reply.error is not None and (reply.error.times is None or call.attempt < reply.error.times):
            raise _failure(reply.error)
        raw = await asyncio.to_thread(raw_reply, reply, call.question)
        if on_delta is not None:
            for delta in deltas_of(raw, call.question.request_id, reply.chunk_characters):
                if reply.stream_delay_seconds:
                    await asyncio.sleep(reply.stream_delay_seconds)
                await on_delta(delta)
        if reply.dropped:
            raise ProviderFailure("upstream", "the connection was lost in mid-reply (scripted)", retryable=True, paid=True)
        return raw

    async def debug(self, call: Call) -> Upstream:
        """The script's reply as its provider would say it."""
        try:
            raw = await self.complete(call, None)
        except ProviderFailure as failure:
            return Upstream(json.dumps({"error": {"message": failure.detail}}), failure.status, failure=failure)
        return Upstream(json.dumps(asdict(raw), ensure_ascii=False), 200, reply=raw)

    async def close(self) -> None:
        """Nothing is kept open."""


def deltas_of(raw: RawReply, request_id: str, chunk_characters: int | None) -> Iterator[Delta]:
    """A reply as the pieces of a stream: reasoning, text, then each call's arguments; of `chunk_characters`, else word by word."""

    def cut(text: str) -> list[str]:
        if chunk_characters is None:
            return _PIECES.findall(text)
        return [text[start : start + chunk_characters] for start in range(0, len(text), chunk_characters)]

    yield from (Delta(reasoning=piece) for piece in cut(raw.reasoning))
    yield from (Delta(text=piece) for piece in cut(raw.content))
    for index, call in enumerate(raw.tool_calls):
        first, *rest = cut(argument_text(call.arguments)) or [""]
        name = call.id or call_id(request_id, index)
        yield Delta(tool_index=index, tool_call_id=name, tool_name=call.name, arguments=first)
        yield from (Delta(tool_index=index, tool_call_id=name, arguments=piece) for piece in rest)


def _no_rule(question: Complete) -> str:
    return f"the script has no rule for a prompt with the purpose {question.purpose!r} at turn {turn_of(question)}; add one"


def _failure(error: ScriptedError) -> ProviderFailure:
    limited, retryable = error.status == 429, error.status in (408, 429) or error.status >= 500
    return ProviderFailure(
        "rate_limited" if limited else "upstream",
        f"{error.status}: {error.message}",
        retryable=retryable,
        retry_after_seconds=error.retry_after_seconds,
        status=error.status,
    )


def raw_reply(reply: ScriptedReply, question: Complete) -> RawReply:
    """A scripted reply in the shape that a provider's has, usage estimated where the script gives none.

    Raises:
        ProviderFailure: its reference cannot be read.
    """
    calls = tuple(RawToolCall(call.id, call.name, call.arguments) for call in reply.tool_calls)
    raw = RawReply(content=reply.content, reasoning=reply.reasoning, tool_calls=calls, finish_reason=reply.finish_reason)
    if reply.reference is not None:
        content, calls = _from_reference(reply.reference, question)
        raw = replace(raw, content=content, tool_calls=calls)
    if reply.usage is not None:
        return replace(raw, **reply.usage.model_dump())
    written = raw.content + "".join(json.dumps(call.arguments, ensure_ascii=False) for call in raw.tool_calls)
    spent = estimate_input_tokens(question.messages, question.tools, question.json_schema)
    return replace(raw, input_tokens=spent, output_tokens=estimate_tokens(written))


def _from_reference(wanted: Reference, question: Complete) -> tuple[str, tuple[RawToolCall, ...]]:
    new = _new_texts(wanted.file)
    if question.purpose == "plan":
        return reference.as_plan(new, question.tools)
    old = _originals(wanted.originals, new)
    match wanted.form:
        case "whole_file":
            return reference.as_whole_files(new), ()
        case "search_replace":
            return reference.as_search_replace(old, new), ()
        case "unified_diff":
            return reference.as_unified_diff(old, new), ()
        case "tool_calls":
            calls = reference.as_tool_calls(old, new, question.tools, turn_of(question))
            return ("" if calls else "The reference change was made."), calls


def _new_texts(path: Path) -> dict[str, str]:
    try:
        return {str(name): str(text) for name, text in json.loads(path.read_text(encoding="utf-8")).items()}
    except (OSError, ValueError, AttributeError) as error:
        raise ProviderFailure("bad_request", f"the script's reference {path} cannot be read: {error}") from error


def _originals(folder: Path | None, new: dict[str, str]) -> dict[str, str]:
    if folder is None:
        return {}
    found = {name: folder / name for name in new}
    return {name: path.read_bytes().decode("utf-8") for name, path in found.items() if path.is_file()}
