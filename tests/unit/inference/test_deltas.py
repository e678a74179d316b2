"""Streams of every habit: what is passed on and what is made of it at the end."""

import pytest

from services.inference.deltas import CallDelta, Calls, Reasoning, gather, resolved
from services.inference.domain import Delta
from services.inference.normalise import call_id

D = CallDelta
FULL = '{"path":"x"}'


def told(deltas):
    """What a stream passes on, joined by call: (index, id, name, arguments)."""
    calls, out = Calls("r"), {}
    for delta in [piece for d in deltas for piece in calls.add(d)] + calls.rest():
        number, name, arguments = out.setdefault(delta.tool_index, (delta.tool_call_id, delta.tool_name, ""))
        assert delta.tool_call_id == number
        out[delta.tool_index] = (number, name, arguments + delta.arguments)
    return list(out.values()), [(c.id, c.name, c.arguments) for c in calls.whole()]


@pytest.mark.parametrize(
    "deltas",
    [
        pytest.param([D(0, "a", "read", ""), D(0, None, None, '{"path":'), D(0, None, None, '"x"}')], id="as the API says"),
        pytest.param([D(0, "a", "read", None), D(0, None, None, None), D(0, None, None, FULL)], id="arguments in the last event only"),
        pytest.param([D(0, None, None, '{"path":'), D(0, "a", "read", None), D(0, None, None, '"x"}')], id="the name after arguments"),
        pytest.param([D(-1, "a", "read", ""), D(-1, None, None, '{"path":"'), D(-1, None, "", 'x"}')], id="index -1"),
        pytest.param([D(0, "a", "re", ""), D(0, None, "ad", ""), D(0, None, None, FULL)], id="the name in pieces"),
        pytest.param([D(0, "a", "read", FULL), D(0, "a", "read", FULL)], id="the whole call twice"),
        pytest.param([D(0, "a", "read", '{"path":'), D(0, None, None, '"x"}'), D(0, "a", "read", FULL)], id="whole again at the end"),
    ],
)
def test_what_is_passed_on_is_what_is_made_of_it(deltas):
    passed_on, whole = told(deltas)
    assert passed_on == whole == [("a", "read", FULL)]


def test_a_call_without_an_id_gets_one_that_the_whole_reply_keeps():
    passed_on, whole = told([D(-1, None, "read", '{"a'), D(-1, None, None, '":1}'), D(-1, None, "exec", "{}")])
    assert passed_on == whole == [(call_id("r", 0), "read", '{"a":1}'), (call_id("r", 1), "exec", "{}")]


def test_an_id_that_comes_too_late_changes_nothing_and_opens_no_other_call():
    passed_on, whole = told([D(0, None, "read", '{"path":'), D(0, "late", None, '"x"}')])
    assert passed_on == whole == [(call_id("r", 0), "read", FULL)]


def test_parallel_calls_that_are_interleaved_are_told_apart():
    deltas = [D(0, "a", "read"), D(1, "b", "exec"), D(1, None, None, '{"c'), D(0, None, None, "{}"), D(1, None, None, '":2}')]
    passed_on, whole = told(deltas)
    assert whole == [("a", "read", "{}"), ("b", "exec", '{"c":2}')]
    assert sorted(passed_on) == sorted(whole)


def test_a_call_without_arguments_is_told_of_at_the_end():
    passed_on, _ = told([D(0, "a", "now", "")])
    assert passed_on == [("a", "now", "")]


def test_the_same_complete_call_without_an_id_is_one_call():
    assert len(gather([D(0, None, "read", FULL), D(0, None, "read", FULL)])) == 1


@pytest.mark.parametrize(
    ("pieces", "wanted"),
    [
        (['{"a":', "1}"], '{"a":1}'),
        (['{"a":', '{"a":1}', "}"], '{"a":{"a":1}}'),
        (['{"a":', "1}", '{"a":1}'], '{"a":1}'),
        (["{", '{"a":', '{"a":1}'], '{"a":1}'),
        (['{"a":', '{"a":', "1}", "1}"], '{"a":1}'),
        (['{"a":', "1"], '{"a":1'),
        (['{"a":1}', '{"b":2}'], '{"a":1}{"b":2}'),
        ([], ""),
    ],
    ids=["plain", "nested alike", "repeated at the end", "growing", "each twice", "cut off", "two objects", "none"],
)
def test_arguments_are_read_as_repetitions_only_when_together_they_are_no_object(pieces, wanted):
    assert resolved(pieces) == wanted


def split(*texts):
    reasoning = Reasoning()
    deltas = [*(reasoning.split(text) for text in texts), reasoning.rest()]
    return "".join(d.text for d in deltas), "".join(d.reasoning for d in deltas)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("<think>hm\nhm</think>\n\nThe answer.", ("The answer.", "hm\nhm")),
        ("\n<thinking>a < b</thinking> yes", ("yes", "a < b")),
        ("no tags <think>here</think>", ("no tags <think>here</think>", "")),
        ("<thin ice>", ("<thin ice>", "")),
        ("<think>never closed", ("", "never closed")),
        ("<th", ("<th", "")),
        ("", ("", "")),
    ],
)
def test_reasoning_in_the_text_is_split_off_whatever_the_pieces(text, wanted):
    assert split(text) == wanted
    assert split(*text) == wanted
    for size in (2, 3, 5):
        assert split(*(text[i : i + size] for i in range(0, len(text), size))) == wanted


def test_plain_text_is_passed_on_at_once():
    assert Reasoning().split("Hello") == Delta(text="Hello")
