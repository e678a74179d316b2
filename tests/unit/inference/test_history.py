"""Any history that a loop can produce is one that providers accept."""

import json

from libs.contracts.inference import ChatMessage, Complete
from libs.contracts.work import ToolCall
from services.inference.history import NO_RESULT, chat_messages, repaired


def asks(*ids, arguments="{}"):
    return ChatMessage(role="assistant", tool_calls=tuple(ToolCall(id=i, name="read", arguments=arguments) for i in ids))


def result(call_id, text="ok"):
    return ChatMessage(role="tool", content=text, tool_call_id=call_id)


USER = ChatMessage(role="user", content="go")


def test_a_whole_history_is_left_as_it_is():
    history = (USER, asks("a", "b"), result("b"), result("a"), USER)
    assert repaired(history) == history


def test_a_call_without_result_gets_a_synthetic_one_before_the_next_message():
    fixed = repaired((USER, asks("a", "b"), result("a"), USER))
    assert [(m.role, m.tool_call_id) for m in fixed[2:4]] == [("tool", "a"), ("tool", "b")]
    assert fixed[3].content == NO_RESULT
    assert fixed[4] == USER


def test_a_call_at_the_end_gets_its_result_too():
    assert repaired((USER, asks("a")))[-1] == result("a", NO_RESULT)


def test_a_result_that_nobody_asked_for_is_told_by_the_user():
    fixed = repaired((USER, result("z", "lost"), asks("a"), result("a")))
    assert fixed[1].role == "user"
    assert "lost" in fixed[1].content
    assert [m.role for m in fixed] == ["user", "user", "assistant", "tool"]


def test_a_second_result_of_a_call_is_left_out():
    assert repaired((asks("a"), result("a"), result("a", "again"))) == (asks("a"), result("a"))


def test_cut_off_arguments_are_quoted_in_valid_json():
    fixed = repaired((asks("a", arguments='{"path": "x'), result("a")))
    assert json.loads(fixed[0].tool_calls[0].arguments) == {"malformed_arguments": '{"path": "x'}


def test_messages_take_the_form_of_the_chat_api():
    question = Complete(request_id="r", account="a", messages=(USER, asks("a"), result("a", "text")))
    user, assistant, tool = chat_messages(question)
    assert user == {"role": "user", "content": "go"}
    assert assistant["tool_calls"] == [{"id": "a", "type": "function", "function": {"name": "read", "arguments": "{}"}}]
    assert tool == {"role": "tool", "content": "text", "tool_call_id": "a"}
