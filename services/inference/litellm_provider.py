"""Completions through litellm: the one place that imports it, in a thread, at the first call.

A reply is whole or it is a failure: a stream that ends without its end is one. A stream that is given up is closed upstream.
"""

import asyncio
import functools
import importlib
import os
from collections.abc import Iterable
from typing import Any

from services.inference.chat_api import Counts, Gathered, request_body
from services.inference.deltas import CallDelta
from services.inference.domain import Call, ModelSpec, OnDelta, ProviderFailure, RawReply, RawToolCall, Upstream
from services.inference.litellm_errors import failure_of, last_response
from services.inference.openai_errors import MOST_SHOWN
from services.inference.redaction import without_secrets

_KEY_SUFFIXES = ("_API_KEY", "_SECRET_ACCESS_KEY", "_TOKEN")


@functools.cache
def _litellm() -> Any:
    """litellm, quiet, without its own retries and with the lists that it ships; it would fetch newer ones from the internet."""
    for source in ("MODEL_COST_MAP", "ANTHROPIC_BETA_HEADERS"):
        os.environ.setdefault(f"LITELLM_LOCAL_{source}", "True")
    litellm: Any = importlib.import_module("litellm")
    litellm.telemetry = False
    litellm.suppress_debug_info = True
    litellm.drop_params = True
    litellm.modify_params = True
    return litellm


async def loaded() -> Any:
    """litellm, imported off the loop if it is not there yet."""
    return _litellm() if _litellm.cache_info().currsize else await asyncio.to_thread(_litellm)


async def warm_up() -> None:
    """Import litellm, so that the first call need not."""
    await loaded()


class LiteLlmProvider:
    """Provider of one configured model."""

    def __init__(self, spec: ModelSpec) -> None:
        self._spec = spec

    async def complete(self, call: Call, on_delta: OnDelta | None) -> RawReply:
        """One try, no retries.

        Raises:
            ProviderFailure: no whole reply.
        """
        litellm = await loaded()
        try:
            async with asyncio.timeout(call.timeout_seconds):
                response = await litellm.acompletion(**self._request(call, litellm, on_delta is not None))
                request_id = call.question.request_id
                found = _whole(response, request_id) if on_delta is None else await _streamed(response, on_delta, request_id)
        except ProviderFailure:
            raise
        except TimeoutError as error:
            raise _late(call) from error
        except Exception as error:
            raise failure_of(error, litellm, self._secrets()) from error
        return self._counted(*found, call, litellm)

    async def debug(self, call: Call) -> Upstream:
        """One try and what was said in it."""
        litellm = await loaded()
        said: list[Any] = []

        def note(details: dict[str, Any]) -> None:
            if isinstance(body := details.get("original_response"), str):
                said.append(body)

        try:
            async with asyncio.timeout(call.timeout_seconds):
                response = await litellm.acompletion(**self._request(call, litellm, False), logger_fn=note)
                reply = self._counted(*_whole(response, call.question.request_id), call, litellm)
        except TimeoutError:
            return Upstream("", failure=_late(call))
        except Exception as error:  # noqa: BLE001 - whatever it is, it is what the operator asks to see
            failure = error if isinstance(error, ProviderFailure) else failure_of(error, litellm, self._secrets())
            return self._upstream_error(error, failure, said)
        headers = getattr(response, "_hidden_params", {}).get("headers") or {}
        return Upstream(self._shown(said[-1] if said else response.model_dump_json()), 200, self._shown_headers(headers), reply)

    async def close(self) -> None:
        """litellm keeps its connections to itself."""

    def _upstream_error(self, error: Exception, failure: ProviderFailure, said: list[Any]) -> Upstream:
        response = last_response(error)
        if response is None:
            return Upstream(self._shown(said[-1] if said else str(error)), failure.status, failure=failure)
        return Upstream(self._shown(response.text), response.status_code, self._shown_headers(response.headers), failure=failure)

    def _shown(self, text: str) -> str:
        return without_secrets(text, self._secrets())[:MOST_SHOWN]

    def _shown_headers(self, headers: Any) -> dict[str, str]:
        return {str(name): self._shown(str(value)) for name, value in dict(headers).items() if str(name).lower() != "set-cookie"}

    def _request(self, call: Call, litellm: Any, stream: bool) -> dict[str, Any]:
        question, spec = call.question, self._spec
        takes_schema = question.json_schema is not None and litellm.supports_response_schema(spec.wire)
        body = request_body(question, spec.wire, stream=stream, takes_schema=takes_schema)
        body |= {"timeout": call.timeout_seconds, "num_retries": 0, "max_retries": 0}
        if spec.base_url:
            body |= {"api_base": spec.base_url, "api_key": "none"}
        if spec.api_key:
            body["api_key"] = spec.api_key.get_secret_value()
        return body

    def _secrets(self) -> Iterable[str]:
        if self._spec.api_key:
            yield self._spec.api_key.get_secret_value()
        yield from (value for name, value in os.environ.items() if name.endswith(_KEY_SUFFIXES))

    def _counted(self, gathered: Gathered, usage: Any, call: Call, litellm: Any) -> RawReply:
        """The reply with its tokens and litellm's price of them."""
        details = getattr(usage, "prompt_tokens_details", None)
        gathered.counts = Counts(
            getattr(usage, "prompt_tokens", 0) or 0,
            getattr(usage, "completion_tokens", 0) or 0,
            getattr(details, "cached_tokens", 0) or 0,
        )
        return gathered.reply(call.question, self._listed_cost(usage, litellm))

    def _listed_cost(self, usage: Any, litellm: Any) -> float | None:
        if usage is None or self._spec.price.source != "listed" or not self._spec.price.cost(1, 1):
            return None
        try:
            return float(sum(litellm.cost_per_token(model=self._spec.wire, usage_object=usage)))
        except Exception:  # noqa: BLE001 - a reply that was paid for is never lost over its price; the listed price per token counts then
            return None


def _late(call: Call) -> ProviderFailure:
    return ProviderFailure("upstream", f"no reply within {call.timeout_seconds:g} s", retryable=True, paid=True)


def _whole(response: Any, request_id: str) -> tuple[Gathered, Any]:
    """A reply that came at once, and its usage."""
    gathered = Gathered(request_id)
    choice = response.choices[0]
    message = choice.message
    gathered.content = message.content or ""
    gathered.reasoning = getattr(message, "reasoning_content", None) or ""
    gathered.tool_calls = tuple(RawToolCall(c.id, c.function.name, c.function.arguments) for c in message.tool_calls or ())
    gathered.finish_reason = choice.finish_reason
    return gathered, getattr(response, "usage", None)


async def _streamed(stream: Any, on_delta: OnDelta, request_id: str) -> tuple[Gathered, Any]:
    """Everything that a stream brings, passed on at once, and its usage; the stream is closed whatever happens.

    Raises:
        ProviderFailure: it ended without saying why; litellm would call that `stop`.
    """
    gathered, usage = Gathered(request_id), None
    try:
        async for chunk in stream:
            usage = getattr(chunk, "usage", None) or usage
            for choice in chunk.choices[:1]:
                text, reasoning = choice.delta.content or "", getattr(choice.delta, "reasoning_content", None) or ""
                calls = [CallDelta(c.index, c.id, c.function.name, c.function.arguments) for c in choice.delta.tool_calls or ()]
                for delta in gathered.take(text, reasoning, calls, choice.finish_reason):
                    await on_delta(delta)
    finally:
        await stream.aclose()
    if not (getattr(stream, "received_finish_reason", None) or getattr(stream, "intermittent_finish_reason", None)):
        raise ProviderFailure("upstream", "the stream ended in mid-reply", retryable=True, paid=True)
    for delta in gathered.end():
        await on_delta(delta)
    return gathered, usage
