"""Completions of a server of one's own that speaks OpenAI's protocol, asked directly: litellm has no rules for a model unknown to it.

A reply is whole or it is a failure: a stream that ends without its end is one. A stream that is given up is closed upstream.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any

import aiohttp

from services.inference.chat_api import Counts, Gathered, request_body
from services.inference.deltas import CallDelta
from services.inference.domain import Call, Delta, ModelSpec, OnDelta, ProviderFailure, RawReply, Upstream
from services.inference.openai_errors import Said, broken, failure_of, misunderstood, shown

MOST_REPLY_BYTES = 32 * 1024 * 1024
_REPEATS = 100
_CONNECT_SECONDS = 30.0
_DONE = "[DONE]"


class OpenAiProvider:
    """Provider of one configured model behind a base URL. `close` lets go of its connections."""

    def __init__(self, spec: ModelSpec) -> None:
        self._spec = spec
        self._model = spec.wire.removeprefix("openai/")
        self._url = f"{(spec.base_url or '').rstrip('/')}/chat/completions"
        self._key = spec.api_key.get_secret_value() if spec.api_key else "none"
        self._session: aiohttp.ClientSession | None = None

    async def complete(self, call: Call, on_delta: OnDelta | None) -> RawReply:
        """One try, no retries.

        Raises:
            ProviderFailure: no whole reply.
        """
        gathered = Gathered(call.question.request_id)
        try:
            async with asyncio.timeout(call.timeout_seconds), self._post(call, on_delta is not None) as response:
                if response.status != 200:
                    raise failure_of(await _said(response), self._secrets())
                if on_delta is None:
                    _take_whole(gathered, (await _said(response)).body)
                else:
                    await _take_stream(gathered, response, on_delta)
        except (TimeoutError, aiohttp.ClientError, OSError, ValueError) as error:
            raise broken(error, call.timeout_seconds, self._secrets()) from error
        return gathered.reply(call.question)

    async def debug(self, call: Call) -> Upstream:
        """One try and what was said in it."""
        said, gathered = Said(0, {}, ""), Gathered(call.question.request_id)
        try:
            async with asyncio.timeout(call.timeout_seconds), self._post(call, False) as response:
                said = await _said(response)
            if said.status != 200:
                raise failure_of(said, self._secrets())
            _take_whole(gathered, said.body)
        except ProviderFailure as failure:
            return shown(said, self._secrets(), failure=failure)
        except (TimeoutError, aiohttp.ClientError, OSError, ValueError) as error:
            return shown(said, self._secrets(), failure=broken(error, call.timeout_seconds, self._secrets()))
        return shown(said, self._secrets(), reply=gathered.reply(call.question))

    async def close(self) -> None:
        """Close what is kept open."""
        if self._session is not None:
            await self._session.close()

    def _post(self, call: Call, stream: bool) -> Any:
        if self._session is None:
            timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_SECONDS)
            self._session = aiohttp.ClientSession(timeout=timeout, trust_env=True, connector=aiohttp.TCPConnector(limit=0))
        body = json.dumps(request_body(call.question, self._model, stream=stream), ensure_ascii=False).encode("utf-8", "replace")
        headers = {"Authorization": f"Bearer {self._key}", "Content-Type": "application/json"}
        return self._session.post(self._url, data=body, headers=headers, allow_redirects=False)

    def _secrets(self) -> Iterable[str]:
        return (self._key,)


async def _said(response: aiohttp.ClientResponse) -> Said:
    """A whole answer. Raises ValueError: it is larger than any reply."""
    pieces, size = [], 0
    async for piece in response.content.iter_any():
        pieces.append(piece)
        size += len(piece)
        if size > MOST_REPLY_BYTES:
            raise ValueError(f"the answer is larger than {MOST_REPLY_BYTES:,} bytes")
    return Said(response.status, dict(response.headers), b"".join(pieces).decode("utf-8", "replace"))


async def _take_stream(gathered: Gathered, response: aiohttp.ClientResponse, on_delta: OnDelta) -> None:
    """Everything that a stream brings, passed on at once; a server that does not stream is heard as well."""
    if "event-stream" not in response.headers.get("content-type", "event-stream"):
        _take_whole(gathered, (await _said(response)).body)
        return
    watch = _Refrain()
    async for event in _events(response.content):
        for delta in _take_chunk(gathered, event):
            watch.hear(delta.text)
            await on_delta(delta)
    if gathered.finish_reason is None:
        raise ProviderFailure("upstream", "the stream ended in mid-reply", retryable=True, paid=True)
    for delta in gathered.end():
        await on_delta(delta)


async def _events(content: aiohttp.StreamReader) -> AsyncIterator[Mapping[str, Any]]:
    """The JSON objects of a stream of server-sent events up to `[DONE]` (WHATWG HTML, section 9.2; one line of data each)."""
    rest, size = b"", 0
    async for piece in content.iter_any():
        size += len(piece)
        if size > MOST_REPLY_BYTES:
            raise ValueError(f"the stream is larger than {MOST_REPLY_BYTES:,} bytes")
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            if not line.startswith(b"data:"):
                continue
            text = line[5:].strip().decode("utf-8", "replace")
            if text == _DONE:
                return
            yield _object(text)


def _object(text: str) -> Mapping[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        raise misunderstood(text) from None
    if not isinstance(found, dict):
        raise misunderstood(text)
    if isinstance(error := found.get("error"), dict | str) and error:
        raise failure_of(Said(0, {}, text))
    return found


def _take_chunk(gathered: Gathered, chunk: Mapping[str, Any]) -> Iterable[Delta]:
    gathered.counts = _counts(chunk.get("usage")) or gathered.counts
    for choice in _list(chunk.get("choices"))[:1]:
        delta = _dict(choice.get("delta"))
        reason = choice.get("finish_reason")
        calls = [_call(call) for call in _list(delta.get("tool_calls"))]
        return gathered.take(_text(delta.get("content")), _reasoning(delta), calls, str(reason) if reason else None)
    return ()


def _take_whole(gathered: Gathered, body: str) -> None:
    found = _object(body)
    choices = _list(found.get("choices"))
    if not choices:
        raise misunderstood(body)
    message = _dict(choices[0].get("message"))
    calls = [_call({**call, "index": number}) for number, call in enumerate(_list(message.get("tool_calls")))]
    tuple(gathered.take(_text(message.get("content")), _reasoning(message), calls, str(choices[0].get("finish_reason") or "stop")))
    gathered.counts = _counts(found.get("usage")) or gathered.counts
    gathered.end()


def _call(call: Mapping[str, Any]) -> CallDelta:
    function = _dict(call.get("function"))
    index, ident, name = call.get("index"), call.get("id"), function.get("name")
    return CallDelta(
        index if isinstance(index, int) else None,
        str(ident) if ident else None,
        str(name) if name else None,
        function.get("arguments"),
    )


def _counts(usage: object) -> Counts | None:
    if not isinstance(usage, dict):
        return None
    cached = _dict(usage.get("prompt_tokens_details")).get("cached_tokens")
    return Counts(_count(usage.get("prompt_tokens")), _count(usage.get("completion_tokens")), _count(cached))


def _count(value: object) -> int:
    return int(value) if isinstance(value, int | float) and 0 < value < 1e12 else 0


def _text(content: object) -> str:
    """A text, which some servers give as a list of parts."""
    if isinstance(content, list):
        return "".join(_text(_dict(part).get("text")) for part in content)
    return content if isinstance(content, str) else ""


def _reasoning(message: Mapping[str, Any]) -> str:
    return _text(message.get("reasoning_content") or message.get("reasoning"))


def _dict(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: object) -> list[dict[str, Any]]:
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []


class _Refrain:
    """Stops a model that says the same piece without end."""

    def __init__(self) -> None:
        self._last, self._times = "", 0

    def hear(self, text: str) -> None:
        """One more piece. Raises ProviderFailure at the hundredth in a row that is the same."""
        if not text.strip():
            return
        self._times = self._times + 1 if text == self._last else 1
        self._last = text
        if self._times >= _REPEATS:
            raise ProviderFailure("upstream", f"the model is repeating {text[:50]!r} without end", retryable=True, paid=True)
