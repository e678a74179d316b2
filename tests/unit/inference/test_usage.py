"""Usage by day, tenant, user, account and model, counted once."""

import pytest

from libs.bus.errors import Refusal
from libs.contracts.envelope import Usage
from libs.contracts.inference import ReadUsage
from services.inference.store import MemoryRecords
from services.inference.usage import UsageBook, Where, user_day_account

ONE = Usage(input_tokens=10, output_tokens=5, cost_usd=0.01, calls=1)


def where(day="2026-01-01", tenant="local", user="anna", account="run-1", model="openai/gpt-4o"):
    return Where(day=day, tenant=tenant, user=user, account=account, model=model)


@pytest.fixture
async def book():
    book = UsageBook(MemoryRecords())
    for number, place in enumerate(
        [
            where(),
            where(),
            where(model="b"),
            where(day="2026-01-02"),
            where(user="bo.b *>"),
            where(tenant="x", user="名字", account="turn:1"),
        ]
    ):
        await book.count(place, str(number), ONE)
    return book


async def rows(book, *by, **filters):
    report = await book.report(ReadUsage(by=by, **filters))
    return [(*(getattr(row, name) for name in by), row.usage.calls) for row in report.rows], report.total.calls


async def test_it_is_summed_by_what_is_asked_for(book):
    assert await rows(book, "user") == ([("anna", 4), ("bo.b *>", 1), ("名字", 1)], 6)
    assert await rows(book, "day", "model", user="anna") == (
        [("2026-01-01", "b", 1), ("2026-01-01", "openai/gpt-4o", 2), ("2026-01-02", "openai/gpt-4o", 1)],
        4,
    )
    assert await rows(book) == ([(6,)], 6)


async def test_it_is_filtered_by_any_part(book):
    assert (await rows(book, tenant="x"))[1] == 1
    assert (await rows(book, user="bo.b *>"))[1] == 1
    assert (await rows(book, account="run:run-1", model="b"))[1] == 1
    assert (await rows(book, user="*"))[1] == 0


async def test_days_are_a_span_with_both_ends(book):
    assert (await rows(book, first_day="2026-01-02"))[1] == 1
    assert (await rows(book, last_day="2026-01-01"))[1] == 5
    assert (await rows(book, first_day="2026-01-01", last_day="2026-01-02"))[1] == 6
    assert (await rows(book, first_day="2025-12-01", last_day="2026-03-01"))[1] == 6


@pytest.mark.parametrize(
    "days",
    [
        {"first_day": "2026-02-30"},
        {"first_day": "2026-01-02", "last_day": "2026-01-01"},
        {"first_day": "2020-01-01", "last_day": "2026-01-01"},
    ],
)
async def test_days_that_are_none_are_refused(book, days):
    with pytest.raises(Refusal) as caught:
        await rows(book, **days)
    assert caught.value.code == "bad_request"


async def test_a_report_says_when_it_is_cut_and_still_sums_all(book):
    report = await book.report(ReadUsage(limit=2))
    assert (len(report.rows), report.truncated, report.total.calls) == (2, True, 6)


async def test_a_call_counted_twice_counts_once(book):
    await book.count(where(), "0", ONE)
    assert (await rows(book))[1] == 6


def test_no_two_users_share_a_days_account():
    accounts = {user_day_account(t, u, "2026-01-01") for t, u in [("a:b", "c"), ("a", "b:c"), ("a", "b%3Ac"), ("a%3Ab", "c")]}
    assert len(accounts) == 4
