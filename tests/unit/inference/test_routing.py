"""Who answers when models fail, what is paid for it and what the asker is told."""

import asyncio

import pytest

from libs.bus.errors import Backoff, NoAnswer, Refusal
from libs.contracts.inference import ChatMessage, Complete, ModelDescription, ReadUsage
from services.inference.books import Books
from services.inference.breaker import Breakers
from services.inference.budget import Budget
from services.inference.cache import Cache
from services.inference.domain import Delta, ModelSpec, Price, ProviderFailure, RawReply
from services.inference.handlers import Desk, chain_for
from services.inference.replies import Replies
from services.inference.routing import Route, Router, Tries
from services.inference.store import MemoryRecords
from services.inference.usage import UsageBook

PRICE = Price(input_usd=1_000.0, output_usd=1_000.0)
LIMITED = ProviderFailure("rate_limited", "429: slow down", retryable=True)
BROKEN = ProviderFailure("upstream", "500: boom", retryable=True)
DENIED = ProviderFailure("upstream", "401: wrong key", status=401)
DROPPED = ProviderFailure("upstream", "the connection was lost", retryable=True, paid=True)


class Plays:
    """A provider that plays what it is given: failures, replies, or texts to stream before one of them."""

    def __init__(self, *acts, pieces=()):
        self.acts, self.pieces, self.calls = list(acts), pieces, []

    async def complete(self, call, on_delta):
        self.calls.append(call)
        if on_delta:
            for piece in self.pieces:
                await on_delta(Delta(text=piece))
        act = self.acts.pop(0)
        if isinstance(act, BaseException):
            raise act
        return act


def reply(text="hello", **more):
    return RawReply(content=text, input_tokens=10, output_tokens=10, **more)


def route(name, provider, **more):
    return Route(ModelSpec(description=ModelDescription(name=name), wire=name, price=PRICE, **more), provider)


def question(**more):
    base = {"request_id": "r", "account": "run", "messages": (ChatMessage(role="user", content="go"),), "max_output_tokens": 300}
    return Complete(**base | more)


class Naps:
    def __init__(self):
        self.taken = []

    async def __call__(self, seconds):
        self.taken.append(seconds)


@pytest.fixture
def naps():
    return Naps()


@pytest.fixture
def budget():
    return Budget(MemoryRecords())


def books(budget):
    return Books(budget, UsageBook(MemoryRecords()))


@pytest.fixture
def kept(budget):
    return books(budget)


@pytest.fixture
def router(kept, naps):
    return Router(kept, Tries(count=3, backoff=Backoff(1.0, 20.0), sleep=naps))


async def test_a_passing_failure_is_tried_again_with_backoff(router, naps):
    plays = Plays(LIMITED, BROKEN, reply())
    answer = await router.complete((route("a", plays),), question())
    assert (answer.model, answer.content) == ("a", "hello")
    assert [call.attempt for call in plays.calls] == [0, 1, 2]
    assert 0.5 <= naps.taken[0] <= 1.0 <= naps.taken[1] <= 2.0


async def test_retry_after_is_honoured(router, naps):
    limited = ProviderFailure("rate_limited", "429", retryable=True, retry_after_seconds=7.0)
    await router.complete((route("a", Plays(limited, reply())),), question())
    assert naps.taken == [7.0]


async def test_a_long_retry_after_is_left_to_the_asker(router, naps):
    limited = ProviderFailure("rate_limited", "429", retryable=True, retry_after_seconds=600.0)
    with pytest.raises(Refusal) as caught:
        await router.complete((route("a", Plays(limited)),), question())
    assert (caught.value.code, caught.value.retryable, caught.value.after) == ("rate_limited", True, 600.0)
    assert naps.taken == []


async def test_the_next_model_answers_when_the_first_stays_down_and_says_its_name(router):
    down, up = Plays(BROKEN, BROKEN, BROKEN), Plays(reply())
    assert (await router.complete((route("a", down), route("b", up)), question())).model == "b"
    assert len(down.calls) == 3


async def test_an_error_that_will_not_pass_goes_to_the_asker_as_it_is(router):
    other = Plays(reply())
    with pytest.raises(Refusal, match="a: 401: wrong key") as caught:
        await router.complete((route("a", Plays(DENIED)), route("b", other)), question())
    assert (caught.value.code, caught.value.retryable) == ("upstream", False)
    assert other.calls == []


async def test_when_all_are_down_every_model_has_its_say(router):
    with pytest.raises(Refusal, match="a: 500: boom; b: 429: slow down") as caught:
        await router.complete((route("a", Plays(*[BROKEN] * 3)), route("b", Plays(*[LIMITED] * 3))), question())
    assert (caught.value.code, caught.value.retryable) == ("rate_limited", True)


async def test_a_stream_that_breaks_off_is_neither_a_reply_nor_said_twice(router):
    plays = Plays(DROPPED, reply(), pieces=("hel",))
    seen = []

    async def on_delta(delta):
        seen.append(delta.text)

    with pytest.raises(Refusal) as caught:
        await router.complete((route("a", plays), route("b", Plays(reply()))), question(), on_delta)
    assert caught.value.retryable
    assert seen == ["hel"]


async def test_a_stream_that_fails_before_its_first_word_is_tried_again(router):
    async def on_delta(_):
        raise AssertionError

    assert (await router.complete((route("a", Plays(BROKEN, reply())),), question(), on_delta)).content == "hello"


async def test_only_what_was_used_is_spent(router, kept, budget):
    answer = await router.complete((route("a", Plays(BROKEN, reply())),), question(ceiling_usd=1.0))
    await kept.closed("r")
    account = await budget.read("run")
    assert answer.usage == account.spent
    assert (account.spent.cost_usd, account.spent.calls, account.reserved_usd) == (0.02, 1, 0.0)


async def test_a_call_of_unknown_end_counts_in_full(router, kept, budget):
    await router.complete((route("a", Plays(DROPPED, reply())),), question())
    await kept.closed("r")
    assert (await budget.read("run")).spent.cost_usd == pytest.approx(0.309 + 0.02)


async def test_a_cancelled_call_counts_in_full_and_reserves_nothing_more(router, budget):
    with pytest.raises(asyncio.CancelledError):
        await router.complete((route("a", Plays(asyncio.CancelledError())),), question())
    account = await budget.read("run")
    assert (account.spent.cost_usd, account.reserved_usd) == (pytest.approx(0.309), 0.0)


async def test_a_met_ceiling_is_refused_before_anything_is_called(router):
    plays = Plays(reply())
    with pytest.raises(Refusal, match=r"ceiling of \$0\.1000") as caught:
        await router.complete((route("a", plays),), question(ceiling_usd=0.1))
    assert caught.value.code == "budget_exceeded"
    assert plays.calls == []


async def test_output_is_shortened_to_the_budget_and_to_the_models_limit(router):
    plays = Plays(reply(), reply())
    await router.complete((route("a", plays),), question(max_output_tokens=4000, ceiling_usd=0.4))
    await router.complete((route("a", plays, most_output_tokens=100),), question(max_output_tokens=4000))
    assert [call.question.max_output_tokens for call in plays.calls] == [391, 100]


async def test_the_providers_own_cost_is_what_counts(router):
    answer = await router.complete((route("a", Plays(reply(cost_usd=0.5))),), question())
    assert answer.usage.cost_usd == 0.5


async def test_a_reply_is_not_lost_when_the_ledger_cannot_be_reached(naps):
    class Down(MemoryRecords):
        puts = 0

        async def put(self, key, value, expected_revision=None):
            self.puts += 1
            if self.puts > 2:
                raise NoAnswer("no answer")
            return await super().put(key, value, expected_revision)

    router = Router(books(Budget(Down())), Tries(sleep=naps))
    assert (await router.complete((route("a", Plays(reply())),), question())).content == "hello"


def desk(*chain, selectable=(), advice="", plans=None):
    kept = books(Budget(MemoryRecords()))
    return Desk(chain, selectable, advice, Router(kept, Tries()), Replies(MemoryRecords()), kept, plans or {})


def test_no_model_is_refused_with_the_variables_to_set():
    with pytest.raises(Refusal, match="MODEL_BASE_URL") as caught:
        chain_for(desk(), None)
    assert caught.value.code == "no_model"


def test_a_model_without_its_key_is_refused_with_the_variable_to_set():
    with pytest.raises(Refusal, match="set ANTHROPIC_API_KEY") as caught:
        chain_for(desk(route("a", Plays(), missing_key="ANTHROPIC_API_KEY"), route("b", Plays())), None)
    assert caught.value.code == "no_model"


def test_a_named_model_answers_alone():
    one, two, three = (route(name, Plays()) for name in "abc")
    both = desk(one, two, selectable=(three,))
    assert chain_for(both, None) == (one, two)
    assert chain_for(both, "b") == (two,)
    assert chain_for(both, "c") == (three,)
    with pytest.raises(Refusal, match="'z' is not configured; there are: a, b, c") as caught:
        chain_for(both, "z")
    assert caught.value.code == "bad_request"


def test_a_plan_is_a_chain_of_its_own():
    one, two, three = (route(name, Plays()) for name in "abc")
    planned = desk(one, two, selectable=(three,), plans={"free": ("c",), "pro": ("b", "c")})
    assert chain_for(planned, None, "pro") == (two, three)
    assert chain_for(planned, "c", "pro") == (three,)
    assert chain_for(planned, None) == (one, two)
    with pytest.raises(Refusal, match="'a' is not in the plan free; there are: c"):
        chain_for(planned, "a", "free")
    with pytest.raises(Refusal, match=r"'gold' is not in models\.toml; there are: free, pro") as caught:
        chain_for(planned, None, "gold")
    assert caught.value.code == "bad_request"


def test_without_plans_every_plan_has_the_default_chain():
    assert len(chain_for(desk(route("a", Plays())), None, "free")) == 1


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


async def test_a_model_that_stays_down_is_passed_over_and_tried_once_after_its_cooldown(budget, naps):
    clock = Clock()
    router = Router(books(budget), Tries(count=3, sleep=naps), Breakers(3, 120.0, clock))
    down, up = Plays(*[BROKEN] * 4, reply("back")), Plays(*[reply("fallback")] * 3)
    chain = (route("a", down), route("b", up))
    for _ in range(2):
        assert (await router.complete(chain, question())).content == "fallback"
    assert len(down.calls) == 3
    clock.now = 120.0
    assert (await router.complete(chain, question())).content == "fallback"
    assert len(down.calls) == 4
    clock.now = 240.0
    assert (await router.complete(chain, question())).content == "back"


async def test_the_last_model_that_is_held_back_says_when_to_come_again(budget, naps):
    router = Router(books(budget), Tries(count=3, sleep=naps), Breakers(3, 120.0, Clock()))
    down = Plays(*[BROKEN] * 3)
    for _ in range(2):
        with pytest.raises(Refusal) as caught:
            await router.complete((route("a", down),), question())
    assert "3 times in a row, the last time with: 500: boom" in caught.value.detail
    assert (caught.value.retryable, caught.value.after, len(down.calls)) == (True, 120.0, 3)
    assert (await budget.read("run")).reserved_usd == 0


async def test_errors_of_the_asker_do_not_open_a_breaker(budget, naps):
    router = Router(books(budget), Tries(sleep=naps), Breakers(2, 120.0, Clock()))
    plays = Plays(*[DENIED] * 5, reply())
    for _ in range(5):
        with pytest.raises(Refusal):
            await router.complete((route("a", plays),), question())
    assert (await router.complete((route("a", plays),), question())).content == "hello"


async def test_a_cached_reply_asks_nobody_and_costs_nothing(kept, budget, naps):
    router = Router(kept, Tries(sleep=naps), cache=Cache(MemoryRecords()))
    plays = Plays(reply())
    asked = question(cache_ttl_seconds=60)
    first, second = [await router.complete((route("a", plays),), asked) for _ in range(2)]
    assert (first.cached, second.cached, second.content) == (False, True, "hello")
    await kept.closed("r")
    assert (await budget.read("run")).spent.calls == 1


@pytest.mark.parametrize("end", [asyncio.CancelledError(), DROPPED], ids=["cancelled", "dropped"])
async def test_a_stream_that_broke_off_counts_what_came_of_it(router, budget, end):
    async def on_delta(_):
        pass

    with pytest.raises((asyncio.CancelledError, Refusal)):
        await router.complete((route("a", Plays(end, pieces=("x" * 30,))),), question(), on_delta)
    account = await budget.read("run")
    assert (account.spent.output_tokens, account.spent.calls, account.reserved_usd) == (10, 1, 0.0)
    assert account.spent.cost_usd == pytest.approx(0.019)


async def test_tagged_reasoning_is_passed_on_as_reasoning(router):
    seen = []

    async def on_delta(delta):
        seen.append(delta)

    plays = Plays(reply("<think>hm</think> yes"), pieces=("<thi", "nk>h", "m</thi", "nk> ", "yes"))
    answer = await router.complete((route("a", plays),), question(), on_delta)
    assert ("".join(d.reasoning for d in seen), "".join(d.text for d in seen)) == ("hm", "yes") == (answer.reasoning, answer.content)


async def test_what_was_mended_in_a_history_is_reported(router):
    history = (
        ChatMessage(role="user", content="go"),
        ChatMessage(role="assistant", tool_calls=({"id": "c1", "name": "read", "arguments": '{"pa'},)),
        ChatMessage(role="user", content="on"),
        ChatMessage(role="tool", content="late", tool_call_id="c9"),
    )
    answer = await router.complete((route("a", Plays(reply())),), question(messages=history))
    assert answer.repairs == (
        "The call c1 of read had no result: a note says so in its place.",
        "Results that belonged to no call before them became messages of the user: 1.",
        "The call c1 had arguments that are no JSON object: they went to the model as a quotation.",
    )
    whole = await router.complete((route("a", Plays(reply())),), question())
    assert whole.repairs == ()


async def test_usage_is_counted_for_the_user_the_run_and_the_model(kept, budget):
    await Router(kept, Tries()).complete((route("a", Plays(reply())),), question(tenant="t", user="anna", account="run:run"))
    await kept.closed("r")
    (row,) = (await kept.usage.report(ReadUsage())).rows
    assert (row.tenant, row.user, row.account, row.model, row.usage.calls) == ("t", "anna", "run", "a", 1)
    assert (await budget.read(f"user:t:anna:{row.day}")).spent == row.usage == (await budget.read("run")).spent
