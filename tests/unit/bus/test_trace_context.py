"""Trace context in and out of headers, and times as the server writes them."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.bus.errors import NeedsHuman
from libs.bus.journal import parse_time
from libs.telemetry import Telemetry, extract, inject, trace_id

GOOD = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def test_outside_of_a_span_there_is_nothing_to_send():
    assert inject() == {}


def test_what_is_injected_is_extracted():
    telemetry = Telemetry("planner")
    with telemetry.span("process run.opened", "consumer") as span:
        sent = inject()
    found = extract(sent)
    assert found.trace_id == span.get_span_context().trace_id
    assert found.span_id == span.get_span_context().span_id
    assert found.is_remote
    assert trace_id(sent) == f"{found.trace_id:032x}"
    telemetry.shutdown()


def test_a_failed_span_says_why():
    telemetry = Telemetry("inference")
    with pytest.raises(ConnectionError), telemetry.span("chat m", "client") as span:
        raise ConnectionError("429 slow down" + "!" * 1000)
    assert span.attributes["error.type"] == "ConnectionError"
    assert span.attributes["error.message"].startswith("429 slow down!")
    assert len(span.attributes["error.message"]) == 300
    telemetry.shutdown()


def test_a_question_to_a_person_is_no_failure():
    telemetry = Telemetry("editor")
    with pytest.raises(NeedsHuman), telemetry.span("invoke_agent editor") as span:
        raise NeedsHuman("Shall this plan be carried out?")
    assert span.status.is_unset
    assert span.attributes["error.message"] == "Shall this plan be carried out?"
    telemetry.shutdown()


def test_a_span_with_a_parent_stays_in_its_trace():
    telemetry = Telemetry("planner")
    with telemetry.span("process", "consumer", parent=extract({"traceparent": GOOD})):
        assert trace_id(inject()) == "4bf92f3577b34da6a3ce929d0e0e4736"
    telemetry.shutdown()


@pytest.mark.parametrize(
    "broken",
    [
        "",
        "00",
        GOOD[:-1],
        GOOD.replace("4bf9", "zzzz"),
        GOOD.replace("4bf9", "+bf9"),
        GOOD.replace("4bf9", "4_f9"),
        GOOD.replace("4bf9", " bf9"),
        GOOD.replace("4bf9", "4BF9"),
        GOOD.replace("00f067aa0ba902b7", "0" * 16),
        GOOD.replace("4bf92f3577b34da6a3ce929d0e0e4736", "0" * 32),
        "ff" + GOOD[2:],
        "zz" + GOOD[2:],
        GOOD[:-2] + "0x",
        GOOD + "-more",
        "٠٠" + GOOD[2:],
    ],
)
def test_a_broken_context_is_none(broken):
    assert extract({"traceparent": broken}) is None
    assert trace_id({"traceparent": broken}) is None


def test_no_headers_carry_no_context():
    assert extract(None) is None
    assert extract({}) is None


@given(st.text(st.sampled_from("0123456789abcdef-+_ x"), max_size=60))
def test_no_header_breaks_the_reader(text):
    assert extract({"traceparent": text}) is None or len(text) == 55


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2026-01-02T03:04:05Z", datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)),
        ("2026-01-02T03:04:05.1Z", datetime(2026, 1, 2, 3, 4, 5, 100_000, tzinfo=UTC)),
        ("2026-01-02T03:04:05.123456789Z", datetime(2026, 1, 2, 3, 4, 5, 123_456, tzinfo=UTC)),
        ("2026-01-02T03:04:05.000000001Z", datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)),
        ("2026-01-02T05:04:05.5+02:00", datetime(2026, 1, 2, 3, 4, 5, 500_000, tzinfo=UTC)),
    ],
)
def test_times_of_the_server_are_utc_to_the_microsecond(text, expected):
    assert parse_time(text) == expected
    assert parse_time(text).tzinfo is UTC
