"""One function per question: complete a prompt, name the models, read an account or the usage, look at a provider's own words."""

import asyncio
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial

from libs.bus.errors import Refusal
from libs.bus.questions import Asker
from libs.contracts.envelope import Usage
from libs.contracts.inference import (
    Account,
    Complete,
    Completion,
    DebugCompletion,
    DebugReply,
    DescribeModels,
    Models,
    ReadAccount,
    ReadUsage,
    TextDelta,
    UsageReport,
)
from services.inference.books import Books
from services.inference.cache import LOCAL
from services.inference.domain import Call, ModelSpec, OnDelta, Upstream, usage_of
from services.inference.replies import Replies
from services.inference.routing import Route, Router
from services.inference.settings import ADVICE, key_advice
from services.inference.streams import Streams
from services.inference.usage import account_name

_USERINFO = re.compile(r"//[^/@]*@")


@dataclass(frozen=True)
class Desk:
    """What the handlers work with. `chain` is the order of fallback; `selectable` may be named by a question or a plan besides."""

    chain: tuple[Route, ...]
    selectable: tuple[Route, ...]
    advice: str
    router: Router
    replies: Replies
    books: Books
    plans: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    streams: Streams = field(default_factory=Streams)


async def complete(desk: Desk, question: Complete, asker: Asker) -> Completion:
    """The reply of the request, from its record, from its stream under way, from the cache, or a model's."""
    chain = chain_for(desk, question.model, question.plan)
    key = question.request_id if question.tenant in (None, LOCAL) else f"{question.tenant}\0{question.request_id}"

    async def work(on_delta: OnDelta) -> Completion:
        passed_on = on_delta if question.stream else None
        ask = partial(desk.router.complete, chain, question, passed_on)
        if not question.recorded:
            return await ask()  # settled beside the answer: what is not settled counts in full
        completion = await desk.replies.once(key, ask)
        await desk.books.closed(question.request_id)
        return completion

    async def listen(frame: TextDelta) -> None:
        await asker.frame(frame)

    return await desk.streams.join(question.request_id, key, work, listen if question.stream else None)


def chain_for(desk: Desk, model: str | None, plan: str | None = None) -> tuple[Route, ...]:
    """The models to ask: the plan's or the default chain, or the one that is named and no other.

    Raises:
        Refusal: `no_model` with the variables to set; `bad_request` for a model or a plan that is not configured, or a model outside
            of the plan.
    """
    chain = planned(desk, plan)
    if not chain:
        raise Refusal("no_model", desk.advice or ADVICE)
    if model is not None:
        known = chain if plan and desk.plans else (*desk.chain, *desk.selectable)
        chain = tuple(route for route in known if route.spec.name == model)
        if not chain:
            names = ", ".join(route.spec.name for route in known)
            where = f"not in the plan {plan}" if plan and desk.plans else "not configured"
            raise Refusal("bad_request", f"the model {model!r} is {where}; there are: {names}")
    if chain[0].spec.missing_key:
        raise Refusal("no_model", key_advice(chain[0].spec))
    return tuple(route for route in chain if not route.spec.missing_key)


def planned(desk: Desk, plan: str | None) -> tuple[Route, ...]:
    """The models of a plan in its order; the default chain without one, or where no plans are configured.

    Raises:
        Refusal: `bad_request`, no such plan.
    """
    if plan is None or not desk.plans:
        return desk.chain
    if plan not in desk.plans:
        raise Refusal("bad_request", f"the plan {plan!r} is not in models.toml; there are: {', '.join(desk.plans)}")
    routes = {route.spec.name: route for route in (*desk.chain, *desk.selectable)}
    return tuple(routes[name] for name in desk.plans[plan])


async def describe(desk: Desk, question: DescribeModels, _: Asker) -> Models:
    """The configured models in the order of fallback, those that can only be named last; or those of a plan."""
    routes = planned(desk, question.plan) if question.plan and desk.plans else (*desk.chain, *desk.selectable)
    specs: list[ModelSpec] = [route.spec for route in routes]
    return Models(models=tuple(spec.description for spec in specs), advice=desk.advice)


async def read_account(desk: Desk, question: ReadAccount, _: Asker) -> Account:
    """What an account has spent and reserved, the replies that were given here included."""
    await desk.books.drained()
    account = await desk.books.budget.read(account_name(question.account))
    return account.model_copy(update={"account": question.account})


async def read_usage(desk: Desk, question: ReadUsage, _: Asker) -> UsageReport:
    """What was used, by the dimensions that are asked for, the replies that were given here included."""
    await desk.books.drained()
    return await desk.books.usage.report(question)


async def debug(desk: Desk, question: DebugCompletion, asker: Asker) -> DebugReply:
    """One exchange with one model as it was; paid for like any other."""
    route = chain_for(desk, question.model)[0]
    request = _debug_request(question, asker.id)
    entry = await desk.books.open(request, route.spec)
    started, used = time.monotonic(), None
    try:
        call = Call(request.model_copy(update={"max_output_tokens": entry.held.output_tokens}))
        upstream = await route.provider.debug(call)
        used = _debug_usage(upstream, route.spec)
    finally:
        await asyncio.shield(desk.books.close(entry, used))
    return _debug_reply(route.spec, upstream, used or entry.held.most, round(time.monotonic() - started, 3))


def _debug_request(question: DebugCompletion, question_id: str) -> Complete:
    return Complete(
        request_id=f"debug:{question_id}",
        account=f"debug:{question_id}",
        purpose="debug",
        messages=question.messages,
        tools=question.tools,
        max_output_tokens=question.max_output_tokens,
        tenant=question.tenant,
        user=question.user,
    )


def _debug_usage(upstream: Upstream, spec: ModelSpec) -> Usage | None:
    if upstream.reply is not None:
        return usage_of(upstream.reply, spec.price)
    return None if upstream.failure is None or upstream.failure.paid else Usage()


def _debug_reply(spec: ModelSpec, upstream: Upstream, usage: Usage, seconds: float) -> DebugReply:
    failure = upstream.failure
    return DebugReply(
        model=spec.name,
        wire=spec.wire,
        base_url=spec.base_url and _USERINFO.sub("//***@", spec.base_url),
        outcome="ok" if failure is None else "error",
        status=upstream.status,
        headers=upstream.headers,
        body=upstream.body,
        error=failure.detail if failure else None,
        retryable=bool(failure and failure.retryable),
        seconds=seconds,
        usage=usage,
    )
