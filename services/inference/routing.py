"""Which model answers: the first of the chain, tried three times, then the next one. The reply says who it was.

Only failures that may pass (429, 5xx, timeouts, lost connections) are retried or handed on; any other goes to the asker as it is.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace

from opentelemetry.trace import Span, get_tracer

from libs.bus.errors import Backoff, Refusal
from libs.contracts.envelope import Usage
from libs.contracts.inference import Complete, Completion
from services.inference.books import Books
from services.inference.breaker import Breakers, Outcome
from services.inference.cache import Cache
from services.inference.deltas import Reasoning
from services.inference.domain import (
    Call,
    Delta,
    ModelSpec,
    OnDelta,
    Provider,
    ProviderFailure,
    RawReply,
    estimate_input_tokens,
    estimate_tokens,
    usage_of,
)
from services.inference.governance import owner_of
from services.inference.history import repairs
from services.inference.normalise import normalise

log = logging.getLogger(__name__)
PATIENCE_SECONDS = 60.0
Attributes = dict[str, str | int | float]
Spans = Callable[[str, Attributes], AbstractContextManager[Span]]


@dataclass(frozen=True)
class Route:
    """A configured model and where it is spoken to."""

    spec: ModelSpec
    provider: Provider


@dataclass(frozen=True)
class Tries:
    """How often and how long one model is tried. A `Retry-After` over a minute is not waited for."""

    count: int = 3
    call_timeout_seconds: float = 280.0
    total_seconds: float = 570.0
    backoff: Backoff = field(default_factory=lambda: Backoff(1.0, 20.0))
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep


class _Spoken:
    """Passes pieces on, reasoning apart from text, and remembers them: after the first one a retry would say things twice."""

    def __init__(self, on_delta: OnDelta) -> None:
        self._on_delta = on_delta
        self._reasoning = Reasoning()
        self._came: list[str] = []

    @property
    def begun(self) -> bool:
        """Whether anything was passed on."""
        return bool(self._came)

    async def __call__(self, delta: Delta) -> None:
        self._came.append(delta.text + delta.reasoning + delta.arguments)
        if delta.text:
            split = self._reasoning.split(delta.text)
            delta = replace(delta, text=split.text, reasoning=delta.reasoning + split.reasoning)
        await self._pass_on(delta)

    async def end(self) -> None:
        """Pass on what was held back."""
        await self._pass_on(self._reasoning.rest())

    async def _pass_on(self, delta: Delta) -> None:
        if delta != Delta():
            await self._on_delta(delta)

    def partial(self, question: Complete) -> RawReply:
        """What came of a reply that broke off, its tokens estimated rather too high."""
        given = estimate_input_tokens(question.messages, question.tools, question.json_schema)
        return RawReply(input_tokens=given, output_tokens=estimate_tokens("".join(self._came)))


def _untraced(name: str, attributes: Attributes) -> AbstractContextManager[Span]:
    return get_tracer("agent-coder").start_as_current_span(name, attributes=attributes)


class Router:
    """Completes prompts with a chain of models, inside of the budgets."""

    def __init__(
        self, books: Books, tries: Tries, breakers: Breakers | None = None, cache: Cache | None = None, spans: Spans = _untraced
    ) -> None:
        self._books = books
        self._spans = spans
        self._tries = tries
        self._cache = cache
        self._breakers = breakers or Breakers()
        self._warned: set[str] = set()

    async def complete(self, chain: tuple[Route, ...], question: Complete, on_delta: OnDelta | None = None) -> Completion:
        """The first whole reply.

        Raises:
            Refusal: `budget_exceeded`; `bad_request`, `upstream` as the provider said it; `rate_limited` or `upstream`, retryable,
                when every model of the chain failed for now.
        """
        deadline = time.monotonic() + self._tries.total_seconds
        spoken = _Spoken(on_delta) if on_delta else None
        failures: list[tuple[str, ProviderFailure]] = []
        for route in chain:
            try:
                return await self._cached(route, question, spoken, deadline)
            except ProviderFailure as failure:
                failures.append((route.spec.name, failure))
                if not failure.retryable or (spoken is not None and spoken.begun):
                    break
                log.warning("%s gave no reply: %s", route.spec.name, failure.detail)
        raise refusal_of(failures)

    async def _cached(self, route: Route, question: Complete, spoken: _Spoken | None, deadline: float) -> Completion:
        if self._cache is not None and (found := await self._cache.find(question, route.spec)):
            return found
        completion = await self._with_retries(route, question, spoken, deadline)
        if self._cache is not None:
            await self._cache.keep(question, route.spec, completion)
        return completion

    async def _with_retries(self, route: Route, question: Complete, spoken: _Spoken | None, deadline: float) -> Completion:
        attempt = 0
        while True:
            left = deadline - time.monotonic()
            call = Call(question, attempt, max(1.0, min(self._tries.call_timeout_seconds, left)))
            try:
                return await self._paid(route, call, spoken)
            except ProviderFailure as failure:
                attempt += 1
                wait = failure.retry_after_seconds
                if wait is None:
                    wait = self._tries.backoff.delay(attempt, hash(question.request_id))
                over = attempt >= self._tries.count or wait > min(PATIENCE_SECONDS, deadline - time.monotonic())
                begun = spoken is not None and spoken.begun
                if over or begun or not failure.retryable or not self._breakers.of(route.spec.name).allows:
                    raise
                log.info("%s is tried again in %.1f s: %s", route.spec.name, wait, failure.detail)
                await self._tries.sleep(wait)

    async def _paid(self, route: Route, call: Call, spoken: _Spoken | None) -> Completion:
        """One try inside of a reservation, which is settled whatever happens.

        A stream that broke off counts what came of it; any other end that nobody knows counts in full.
        """
        spec, question = route.spec, call.question
        self._warn_of_price(spec)
        self._breakers.of(spec.name).check()
        entry = await self._books.open(question, spec)
        call = replace(call, question=question.model_copy(update={"max_output_tokens": entry.held.output_tokens}))
        used: Usage | None = None
        try:
            raw = await self._guarded(route, call, spoken)
            used = usage_of(raw, spec.price)
        except BaseException as error:
            if isinstance(error, ProviderFailure) and not error.paid:
                used = Usage()
            elif spoken is not None and spoken.begun:
                used = usage_of(spoken.partial(question), spec.price)
            await asyncio.shield(self._books.close(entry, used))
            raise
        self._books.close_later(question, entry, used)
        return completion_of(raw, question, spec.name, used)

    async def _guarded(self, route: Route, call: Call, spoken: _Spoken | None) -> RawReply:
        """One try that its model's breaker hears of."""
        breaker = self._breakers.of(route.spec.name)
        ticket = breaker.enter()
        outcome: Outcome = "unknown"
        detail = ""
        try:
            raw = await self._traced(route, call, spoken)
            outcome = "answered"
        except ProviderFailure as failure:
            outcome, detail = "failed" if failure.retryable else "answered", failure.detail
            raise
        finally:
            breaker.leave(ticket, outcome, detail)
        if spoken is not None:
            await spoken.end()
        return raw

    async def _traced(self, route: Route, call: Call, spoken: _Spoken | None) -> RawReply:
        """One try in a span of its own (OpenTelemetry's conventions for generative AI)."""
        name, question = route.spec.name, call.question
        attributes: Attributes = {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": route.spec.wire.split("/")[0].split(":")[0],
            "gen_ai.request.model": name,
            "gen_ai.request.max_tokens": question.max_output_tokens,
            "agent_coder.account": question.account,
            "agent_coder.purpose": question.purpose,
            "agent_coder.attempt": call.attempt + 1,
            "agent_coder.tenant": owner_of(question)[0],
            "agent_coder.user": owner_of(question)[1],
        }
        with self._spans(f"chat {name}", attributes) as span:
            raw = await route.provider.complete(call, spoken)
            span.set_attribute("gen_ai.usage.input_tokens", raw.input_tokens)
            span.set_attribute("gen_ai.usage.output_tokens", raw.output_tokens)
            span.set_attribute("agent_coder.cost_usd", usage_of(raw, route.spec.price).cost_usd)
            return raw

    def _warn_of_price(self, spec: ModelSpec) -> None:
        if spec.price.source == "unknown" and spec.name not in self._warned:
            self._warned.add(spec.name)
            if not spec.description.scripted:
                log.warning("the price of %s is not known: its calls count as $0. Set MODEL_PRICE_IN and MODEL_PRICE_OUT.", spec.name)


def completion_of(raw: RawReply, question: Complete, model: str, usage: Usage) -> Completion:
    """The answer that a raw reply makes."""
    reply = normalise(raw, {tool.name for tool in question.tools}, question.request_id)
    return Completion(
        model=model,
        content=reply.content,
        reasoning=reply.reasoning,
        tool_calls=reply.tool_calls,
        finish_reason=reply.finish_reason,
        usage=usage,
        repairs=repairs(question.messages),
    )


def refusal_of(failures: list[tuple[str, ProviderFailure]]) -> Refusal:
    """What the asker is told: the last word of each model that was asked."""
    last = failures[-1][1]
    detail = "; ".join(f"{name}: {failure.detail}" for name, failure in failures)
    waits = [failure.retry_after_seconds for _, failure in failures if failure.retry_after_seconds is not None]
    return Refusal(last.code, detail, retryable=last.retryable, after=min(waits) if waits and last.retryable else None)
