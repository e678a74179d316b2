"""Replies in odd shapes come out in one shape, and nothing that a model wrote is lost or made up."""

import json

import pytest

from services.inference.deltas import CallDelta, gather
from services.inference.domain import RawReply, RawToolCall
from services.inference.normalise import normalise

OFFERED = ("read", "exec")


def call(name="read", arguments='{"path":"a"}', id=None):
    return RawToolCall(id, name, arguments)


def test_arguments_given_as_an_object_become_text():
    reply = normalise(RawReply(tool_calls=(call(arguments={"path": "ü"}),)), OFFERED, "r")
    assert json.loads(reply.tool_calls[0].arguments) == {"path": "ü"}


def test_missing_and_double_ids_become_distinct_and_the_same_for_the_same_request():
    raw = RawReply(tool_calls=(call(), call(id="x"), call(id="x"), call(id="")))
    first, second = normalise(raw, OFFERED, "r1"), normalise(raw, OFFERED, "r1")
    ids = [c.id for c in first.tool_calls]
    assert len(set(ids)) == 4
    assert ids == [c.id for c in second.tool_calls]
    assert ids[0] != normalise(raw, OFFERED, "r2").tool_calls[0].id


def test_cut_off_arguments_stay_the_raw_text():
    reply = normalise(RawReply(tool_calls=(call(arguments='{"path": "a'),), finish_reason="length"), OFFERED, "r")
    assert reply.tool_calls[0].arguments == '{"path": "a'
    assert reply.finish_reason == "length"


@pytest.mark.parametrize(
    "text",
    [
        '{"name": "read", "arguments": {"path": "a"}}',
        'I look.\n```json\n{"name": "read", "arguments": {"path": "a"}}\n```\n',
        '<tool_call>\n{"name": "read", "arguments": {"path": "a"}}\n</tool_call>',
        '<function=read>{"path": "a"}</function>',
        '{"type": "function", "function": {"name": "read", "parameters": {"path": "a"}}}',
    ],
)
def test_a_call_printed_as_text_becomes_a_call(text):
    reply = normalise(RawReply(content=text, finish_reason="stop"), OFFERED, "r")
    assert [(c.name, json.loads(c.arguments)) for c in reply.tool_calls] == [("read", {"path": "a"})]
    assert reply.finish_reason == "tool_calls"
    assert "arguments" not in reply.content


@pytest.mark.parametrize(
    "text",
    [
        '{"name": "rm", "arguments": {"path": "a"}}',
        '```json\n{"name": "read"}\n```',
        '<tool_call>{"name": "read", "arguments": {"path": </tool_call>',
        "```json\n{broken\n```",
        '{"steps": []}',
    ],
)
def test_text_that_is_no_call_of_an_offered_tool_stays_text(text):
    reply = normalise(RawReply(content=text), OFFERED, "r")
    assert reply.tool_calls == ()
    assert reply.content == text


@pytest.mark.parametrize(
    "edit", ['<file path="a.md">\n%s\n</file>', "a.md\n<<<<<<< SEARCH\n=======\n%s\n>>>>>>> REPLACE", "--- a/x\n+++ b/x\n%s"]
)
def test_a_call_inside_of_an_edit_is_the_text_of_a_file(edit):
    text = edit % '```json\n{"name": "read", "arguments": {"path": "a"}}\n```'
    assert normalise(RawReply(content=text), OFFERED, "r").content == text


def test_printed_calls_count_only_when_tools_are_offered():
    text = '{"name": "read", "arguments": {"path": "a"}}'
    assert normalise(RawReply(content=text), (), "r").content == text


def test_two_printed_calls_become_two_calls():
    one = '<tool_call>{"name": "read", "arguments": {"path": "%s"}}</tool_call>'
    reply = normalise(RawReply(content=one % "a" + "\n" + one % "b"), OFFERED, "r")
    assert [json.loads(c.arguments)["path"] for c in reply.tool_calls] == ["a", "b"]


def test_reasoning_is_kept_apart_from_the_text():
    reply = normalise(RawReply(content="<think>hm\nhm</think>\nThe answer."), OFFERED, "r")
    assert (reply.content, reply.reasoning) == ("The answer.", "hm\nhm")


def test_an_empty_reply_is_an_empty_reply():
    reply = normalise(RawReply(finish_reason=None), OFFERED, "r")
    assert (reply.content, reply.tool_calls, reply.finish_reason) == ("", (), "stop")


@pytest.mark.parametrize(
    ("given", "calls", "wanted"),
    [
        ("end_turn", 0, "stop"),
        ("max_tokens", 0, "length"),
        ("function_call", 1, "tool_calls"),
        ("stop", 1, "tool_calls"),
        ("tool_calls", 0, "stop"),
        ("length", 1, "length"),
        ("content_filter", 0, "content_filter"),
    ],
)
def test_finish_reasons(given, calls, wanted):
    assert normalise(RawReply(tool_calls=(call(),) * calls, finish_reason=given), OFFERED, "r").finish_reason == wanted


D = CallDelta


@pytest.mark.parametrize(
    ("deltas", "wanted"),
    [
        pytest.param(
            [D(0, "a", "read", ""), D(0, None, None, '{"p'), D(0, None, None, '":1}'), D(1, "b", "exec", '{"c":2}')],
            [("a", "read", '{"p":1}'), ("b", "exec", '{"c":2}')],
            id="as the API says",
        ),
        pytest.param(
            [D(-1, None, "read", '{"p'), D(-1, None, None, '":1}'), D(None, None, "exec", {"c": 2})],
            [(None, "read", '{"p":1}'), (None, "exec", '{"c": 2}')],
            id="no index",
        ),
        pytest.param(
            [D(0, "a", "read", '{"p":1}'), D(0, "b", "read", '{"p":2}')],
            [("a", "read", '{"p":1}'), ("b", "read", '{"p":2}')],
            id="parallel calls that share an index",
        ),
        pytest.param(
            [D(0, None, "read", '{"p":1}'), D(0, None, "read", '{"p":2}')],
            [(None, "read", '{"p":1}'), (None, "read", '{"p":2}')],
            id="parallel calls that share index and name",
        ),
        pytest.param(
            [D(0, "a", "read", '{"p'), D(0, "a", "read", '":1}')], [("a", "read", '{"p":1}')], id="id and name in every piece"
        ),
        pytest.param([D(0, "a", "read", '{"p'), D(0, "z", None, '":1}')], [("a", "read", '{"p":1}')], id="a new id in every piece"),
        pytest.param([D(0, "a", "read"), D(1, "b", "exec"), D(0, None, None, "{}"), D(1, None, None, '{"c":2}')],
            [("a", "read", "{}"), ("b", "exec", '{"c":2}')], id="interleaved"),
        pytest.param([D(0, "a", "read", ""), D(0, None, None, None), D(0, None, "", '{"p":1}')], [("a", "read", '{"p":1}')],
            id="arguments in the last piece only"),
        pytest.param([D(0, None, "read", ""), D(0, "a", None, '{"p":1}')], [("a", "read", '{"p":1}')], id="id after the name"),
        pytest.param([D(0, None, None, None)], [], id="nothing at all"),
    ],
)  # fmt: skip
def test_streamed_calls_are_put_together(deltas, wanted):
    assert [(c.id, c.name, c.arguments) for c in gather(deltas)] == wanted
