"""No account is ever taken above its ceiling, whoever dies on the way."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from libs.bus.errors import NoAnswer
from libs.contracts.envelope import Usage
from services.inference.budget import Budget, BudgetExceeded, Limit
from services.inference.domain import UNKNOWN_PRICE, Price
from services.inference.store import MemoryRecords

PRICE = Price(input_usd=1_000.0, output_usd=1_000.0)  # a tenth of a cent a token


class Clock:
    def __init__(self):
        self.now = datetime(2026, 1, 1, tzinfo=UTC)

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def budget(clock):
    return Budget(MemoryRecords(), hold_seconds=60, clock=clock)


async def test_a_reservation_is_replaced_by_what_was_used(budget):
    held = await budget.reserve((Limit("run 1", 1.0),), PRICE, 100, 400)
    assert held.output_tokens == 400
    assert (await budget.read("run 1")).reserved_usd == pytest.approx(0.5)
    await budget.settle(held, Usage(input_tokens=90, output_tokens=10, cost_usd=0.1, calls=1))
    account = await budget.read("run 1")
    assert (account.spent.cost_usd, account.reserved_usd, account.spent.calls) == (0.1, 0.0, 1)


async def test_output_is_shortened_to_what_the_ceiling_leaves(budget):
    held = await budget.reserve((Limit("a", 0.5),), PRICE, 100, 4000)
    assert held.output_tokens == 400


async def test_a_call_with_no_room_is_refused_with_the_numbers(budget):
    await budget.reserve((Limit("a", 1.0),), PRICE, 100, 500)
    with pytest.raises(BudgetExceeded, match=r"\$1\.0000 leaves no room: \$0\.0000 spent, \$0\.6000 reserved"):
        await budget.reserve((Limit("a", 1.0),), PRICE, 200, 4000)


async def test_accounts_do_not_touch_each_other(budget):
    await budget.reserve((Limit("a", 1.0),), PRICE, 500, 500)
    await budget.reserve((Limit("b", 1.0),), PRICE, 500, 500)


async def test_reservations_at_the_same_time_never_pass_the_ceiling_together(budget):
    tries = [budget.reserve((Limit("a", 1.0),), PRICE, 100, 200) for _ in range(8)]
    results = await asyncio.gather(*tries, return_exceptions=True)
    assert sum(not isinstance(r, BaseException) for r in results) == 3
    assert (await budget.read("a")).reserved_usd <= 1.0


async def test_a_reservation_whose_holder_died_counts_as_spent(budget, clock):
    await budget.reserve((Limit("a", 1.0),), PRICE, 100, 400)
    clock.now += timedelta(seconds=61)
    account = await budget.read("a")
    assert (account.spent.cost_usd, account.reserved_usd) == (0.5, 0.0)


async def test_a_late_settling_still_replaces_what_had_expired(budget, clock):
    held = await budget.reserve((Limit("a", 1.0),), PRICE, 100, 400)
    clock.now += timedelta(seconds=61)
    await budget.settle(held, Usage(cost_usd=0.2, calls=1))
    assert (await budget.read("a")).spent.cost_usd == 0.2


async def test_settling_twice_counts_once(budget):
    held = await budget.reserve((Limit("a", None),), PRICE, 1, 1)
    for _ in range(2):
        await budget.settle(held, Usage(cost_usd=0.2))
    assert (await budget.read("a")).spent.cost_usd == 0.2


async def test_a_lapsed_call_counts_in_full(budget):
    held = await budget.reserve((Limit("a", None),), PRICE, 100, 400)
    await budget.settle(held, held.most)
    assert (await budget.read("a")).spent.cost_usd == 0.5


async def test_a_model_of_unknown_price_costs_nothing_even_under_a_ceiling_of_nothing(budget):
    held = await budget.reserve((Limit("a", 0.0),), UNKNOWN_PRICE, 100, 400)
    assert held.output_tokens == 400
    await budget.settle(held, Usage(input_tokens=100, calls=1))
    assert (await budget.read("a")).spent.input_tokens == 100


def test_cached_tokens_have_their_own_price():
    price = Price(input_usd=3.0, output_usd=15.0, cached_usd=0.3)
    assert price.cost(1_000_000, 1_000_000, cached_tokens=500_000) == pytest.approx(1.5 + 0.15 + 15.0)


BOTH = (Limit("run", 1.0), Limit("user:local:anna:2026-01-01", 0.5, "budget of anna for 2026-01-01", datetime(2026, 1, 2, tzinfo=UTC)))


async def test_a_call_is_held_and_settled_on_all_its_accounts(budget):
    held = await budget.reserve(BOTH, PRICE, 100, 300)
    assert [(await budget.read(limit.account)).reserved_usd for limit in BOTH] == [0.4, 0.4]
    await budget.settle(held, Usage(cost_usd=0.1, calls=1))
    assert [(await budget.read(limit.account)).spent.cost_usd for limit in BOTH] == [0.1, 0.1]


async def test_the_tighter_account_shortens_the_output(budget):
    assert (await budget.reserve(BOTH, PRICE, 100, 900)).output_tokens == 400


async def test_an_account_that_refuses_leaves_nothing_reserved_on_the_others(budget):
    with pytest.raises(BudgetExceeded, match=r"budget of anna for 2026-01-01 of \$0\.5000 .* It resets at 2026-01-02 00:00 UTC") as caught:
        await budget.reserve(BOTH, PRICE, 600, 300)
    assert caught.value.resets_at == datetime(2026, 1, 2, tzinfo=UTC)
    assert [(await budget.read(limit.account)).reserved_usd for limit in BOTH] == [0.0, 0.0]


async def test_replicas_never_pass_a_ceiling_together(clock):
    records = Slow()
    replicas = [Budget(records, clock=clock) for _ in range(3)]
    tries = [replicas[n % 3].reserve((Limit(f"run-{n}", 9.0), Limit("day", 2.0)), PRICE, 100, 300) for n in range(30)]
    results = await asyncio.gather(*tries, return_exceptions=True)
    assert sum(not isinstance(r, BaseException) for r in results) == 5
    assert all(isinstance(r, BudgetExceeded) for r in results if isinstance(r, BaseException))
    assert (await replicas[0].read("day")).reserved_usd == 2.0


async def test_a_busy_account_costs_few_puts(clock):
    records = Slow()
    budget = Budget(records, clock=clock)
    held = await asyncio.gather(*(budget.reserve((Limit("day", 1000.0),), PRICE, 100, 300) for _ in range(500)))
    await asyncio.gather(*(budget.settle(one, Usage(cost_usd=0.01, calls=1)) for one in held))
    account = await budget.read("day")
    assert (account.spent.calls, account.reserved_usd) == (500, 0.0)
    assert records.puts < 10


async def test_a_cancelled_reservation_leaves_nothing_behind(clock):
    records = Slow()
    budget = Budget(records, clock=clock)
    task = asyncio.create_task(budget.reserve(BOTH, PRICE, 100, 300))
    await records.putting.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [(await budget.read(limit.account)).reserved_usd for limit in BOTH] == [0.0, 0.0]


async def test_a_put_whose_acknowledgement_was_lost_counts_once(clock):
    records = Slow(lost={1, 3})
    budget = Budget(records, clock=clock)
    held = await budget.reserve((Limit("a", 1.0),), PRICE, 100, 300)
    await budget.settle(held, Usage(cost_usd=0.3, calls=1))
    account = await budget.read("a")
    assert (account.spent.cost_usd, account.spent.calls, account.reserved_usd) == (0.3, 1, 0.0)


class Slow(MemoryRecords):
    """Gives way at each step, as a real bucket does; loses the acknowledgement of chosen puts."""

    def __init__(self, lost=()):
        super().__init__()
        self.puts, self.lost, self.putting = 0, lost, asyncio.Event()

    async def get(self, key):
        await asyncio.sleep(0)
        return await super().get(key)

    async def put(self, key, value, expected_revision=None):
        self.putting.set()
        await asyncio.sleep(0)
        revision = await super().put(key, value, expected_revision)
        self.puts += 1
        await asyncio.sleep(0)
        if self.puts in self.lost:
            raise NoAnswer("no acknowledgement")
        return revision


class Stuck(MemoryRecords):
    """Takes nothing before it is let, and refuses when it is broken."""

    def __init__(self):
        super().__init__()
        self.let, self.broken = asyncio.Event(), False

    async def put(self, key, value, expected_revision=None):
        await self.let.wait()
        if self.broken:
            raise NoAnswer("the disk is full")
        return await super().put(key, value, expected_revision)


async def test_without_a_ceiling_nobody_waits_for_the_ledger_and_it_is_right_in_the_end(clock):
    records = Stuck()
    budget = Budget(records, hold_seconds=60, clock=clock)
    held = await asyncio.wait_for(budget.reserve((Limit("day", None),), PRICE, 100, 400), 5)
    assert (held.output_tokens, held.most.cost_usd) == (400, 0.5)
    settling = asyncio.create_task(budget.settle(held, Usage(cost_usd=0.1, calls=1)))
    records.let.set()
    await settling
    account = await budget.read("day")
    assert (account.spent.cost_usd, account.reserved_usd) == (0.1, 0.0)


async def test_a_call_that_died_without_a_ceiling_counts_in_full(budget, clock):
    await budget.reserve((Limit("day", None),), PRICE, 100, 400)
    assert (await budget.read("day")).reserved_usd == 0.5
    clock.now += timedelta(seconds=61)
    assert (await budget.read("day")).spent.cost_usd == 0.5


async def test_beside_a_ceiling_that_refuses_nothing_is_noted(budget):
    with pytest.raises(BudgetExceeded):
        await budget.reserve((Limit("run", 0.1), Limit("day", None)), PRICE, 100, 400)
    assert (await budget.read("day")).reserved_usd == 0


async def test_a_ledger_that_cannot_be_written_is_told_of_and_holds_no_call_back(clock, caplog):
    records = Stuck()
    records.broken = True
    records.let.set()
    budget = Budget(records, hold_seconds=60, clock=clock)
    assert (await budget.reserve((Limit("day", None),), PRICE, 100, 400)).output_tokens == 400
    with pytest.raises(NoAnswer):
        await budget.reserve((Limit("run", 9.0),), PRICE, 100, 400)
    async with asyncio.timeout(10):
        while "a call of day is not in its ledger: the disk is full" not in caplog.text:
            await asyncio.sleep(0)
