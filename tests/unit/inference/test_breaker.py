"""A model that fails in a row is left alone, then tried by exactly one call."""

import pytest

from services.inference.breaker import Breaker, HeldBack


class Clock:
    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def breaker(clock):
    return Breaker(failures=3, cooldown_seconds=120.0, clock=clock)


def fail(breaker, times):
    for _ in range(times):
        breaker.leave(breaker.enter(), "failed", "503: down")


def test_failures_in_a_row_open_it_and_the_refusal_says_why_and_how_long(breaker, clock):
    fail(breaker, 3)
    clock.now += 20
    with pytest.raises(HeldBack, match="3 times in a row, the last time with: 503: down; it is tried again in 100 s") as caught:
        breaker.enter()
    assert (caught.value.retryable, caught.value.paid, caught.value.retry_after_seconds) == (True, False, 100.0)


def test_an_answer_between_failures_keeps_it_closed(breaker):
    fail(breaker, 2)
    breaker.leave(breaker.enter(), "answered")
    fail(breaker, 2)
    assert breaker.state == "closed"


def test_after_the_cooldown_exactly_one_call_goes(breaker, clock):
    fail(breaker, 3)
    clock.now += 120
    probe = breaker.enter()
    assert probe.probe
    for _ in range(3):
        with pytest.raises(HeldBack, match="a call tries it"):
            breaker.enter()


def test_a_probe_that_is_answered_closes_it(breaker, clock):
    fail(breaker, 3)
    clock.now += 120
    breaker.leave(breaker.enter(), "answered")
    assert breaker.state == "closed"
    assert not breaker.enter().probe


def test_a_probe_that_fails_opens_it_for_another_cooldown(breaker, clock):
    fail(breaker, 3)
    clock.now += 120
    fail(breaker, 1)
    assert breaker.state == "open"
    clock.now += 120
    assert breaker.enter().probe


def test_a_cancelled_probe_leaves_the_next_call_to_be_the_probe(breaker, clock):
    fail(breaker, 3)
    clock.now += 120
    breaker.leave(breaker.enter(), "unknown")
    assert breaker.enter().probe


def test_calls_that_were_under_way_when_it_opened_do_not_prolong_it(breaker, clock):
    late = breaker.enter()
    fail(breaker, 3)
    clock.now += 60
    breaker.leave(late, "failed", "late")
    clock.now += 60
    assert breaker.state == "half_open"


def test_a_call_that_was_under_way_and_is_answered_closes_it(breaker):
    late = breaker.enter()
    fail(breaker, 3)
    breaker.leave(late, "answered")
    assert breaker.state == "closed"
