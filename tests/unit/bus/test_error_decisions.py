"""What delivery does about each error, and how long it waits."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.bus.errors import (
    AskPerson,
    Away,
    Backoff,
    GiveUp,
    NeedsHuman,
    NoAnswer,
    Permanent,
    Refusal,
    Retry,
    Retryable,
    decide,
    describe,
)

BACKOFF = Backoff(base_seconds=1.0, cap_seconds=60.0)


def decided(error: BaseException, failures: int = 1, retries: int = 2):
    return decide(error, failures, retries, BACKOFF, seed=7)


@pytest.mark.parametrize(
    ("error", "decision"),
    [
        (Retryable("later", after=2.5), Retry(2.5)),
        (Retryable("at once", after=0.0), Retry(0.0)),
        (Retryable("later"), Retry(BACKOFF.delay(1, 7))),
        (NoAnswer("nobody"), Retry(BACKOFF.delay(1, 7))),
        (NeedsHuman("shall I?"), AskPerson("shall I?")),
        (Permanent("no such repository"), GiveUp("no such repository", "permanent", dead=False)),
        (Permanent("3 attempts", kind="attempts"), GiveUp("3 attempts", "attempts", dead=False)),
        (Permanent("too dear", kind="limit"), GiveUp("too dear", "limit", dead=False)),
        (Refusal("not_found", "no such file"), GiveUp("no such file", "permanent", dead=False)),
        (Refusal("rate_limited", "slow down", retryable=True, after=30.0), Retry(30.0)),
        (Refusal("unavailable", "starting", retryable=True), Retry(BACKOFF.delay(1, 7))),
        (KeyError("a bug"), Retry(BACKOFF.delay(1, 7))),
        (TimeoutError("too slow"), Retry(BACKOFF.delay(1, 7))),
    ],
)
def test_the_first_failure(error, decision):
    assert decided(error) == decision


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (Retryable("the upstream is down", after=1.0), "gave up after 3 tries: the upstream is down"),
        (Refusal("unavailable", "starting", retryable=True), "gave up after 3 tries: starting"),
        (ValueError("a bug"), "gave up after 3 tries: ValueError: a bug"),
    ],
)
def test_when_the_retries_end_the_message_goes_to_the_dead_letters(error, reason):
    assert isinstance(decided(error, failures=2), Retry)
    assert decided(error, failures=3) == GiveUp(reason, "exhausted", dead=True)


@pytest.mark.parametrize("error", [Away("nobody answers q.artifact.import"), Refusal("away", "the forge does not answer", retryable=True)])
def test_who_is_away_is_waited_for_longer_than_a_failure_of_the_step_itself(error):
    assert isinstance(decided(error, failures=12), Retry)
    assert decided(error, failures=13).kind == "exhausted"
    assert isinstance(decided(error, failures=1, retries=0), GiveUp)


def test_without_retries_the_first_failure_is_the_last():
    assert decided(Retryable("no"), failures=1, retries=0) == GiveUp("gave up after 1 try: no", "exhausted", dead=True)


@pytest.mark.parametrize("error", [NeedsHuman("shall I?"), Permanent("never"), Refusal("no", "no")])
def test_what_no_retry_helps_is_never_counted_as_exhausted(error):
    assert decided(error, failures=9) == decided(error, failures=1)


@pytest.mark.parametrize("error", [Retryable(), NoAnswer(), KeyError(), RuntimeError("x" * 5000), Permanent("")])
def test_an_error_has_a_text_for_a_person(error):
    assert 0 < len(describe(error)) <= 2000


@given(st.integers(1, 200), st.integers(0, 2**63), st.floats(0.01, 10), st.floats(0.01, 600))
def test_backoff_stays_between_half_and_the_whole_and_is_the_same_for_the_same_delivery(failures, seed, base, cap):
    backoff = Backoff(base, cap)
    whole = min(cap, base * 2.0 ** min(failures - 1, 30))
    assert whole / 2 <= backoff.delay(failures, seed) <= whole
    assert backoff.delay(failures, seed) == backoff.delay(failures, seed)


def test_deliveries_that_failed_together_do_not_come_back_together():
    assert len({BACKOFF.delay(3, seed) for seed in range(100)}) > 90
