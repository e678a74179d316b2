"""The prompt fits into the model's context: older outputs are left out, the newest are cut in the middle, and what cannot fit is said."""

import pytest

from libs.agent.conversation import Conversation, estimate_tokens
from libs.agent.limits import ContextLimit
from libs.contracts.inference import ChatMessage, Completion
from libs.contracts.work import ToolCall


def conversation(context_tokens: int, *outputs: str, said: str = "task") -> Conversation:
    talk = Conversation(context_tokens, reserve=context_tokens // 4)
    talk.add(ChatMessage(role="user", content=said))
    for number, output in enumerate(outputs):
        call = ToolCall(id=f"c{number}", name="read", arguments='{"path": "a.py"}')
        talk.reply(Completion(model="m", tool_calls=(call,)))
        talk.output(call, output)
    return talk


def tokens(talk: Conversation) -> int:
    return sum(estimate_tokens(message.content) for message in talk.messages)


def test_what_fits_stays_as_it_is():
    talk = conversation(8000, "x" * 300)
    assert not talk.fit()
    assert talk.messages[-1].content == "x" * 300


def test_older_outputs_are_left_out_before_newer_ones_are_touched():
    talk = conversation(8000, *("x" * 6000 for _ in range(4)))
    assert talk.fit()
    contents = [message.content for message in talk.messages if message.role == "tool"]
    assert contents[0].startswith("[output of read(path='a.py') left out")
    assert contents[-2:] == ["x" * 6000] * 2


@pytest.mark.parametrize("letter", ["x", "字", "☃é"])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_an_output_larger_than_the_context_keeps_its_beginning_and_its_end(letter, count):
    talk = conversation(2048, *(f"begin {letter * 8000} end" for _ in range(count)))
    assert talk.fit()
    newest = [message.content for message in talk.messages if message.role == "tool"][-2:]
    for content in newest:
        assert content.startswith("begin")
        assert content.endswith("end")
        assert "characters are left out here" in content
    assert tokens(talk) <= 2048 * 3 // 4


def test_a_task_larger_than_the_context_is_said_with_the_numbers():
    with pytest.raises(ContextLimit, match=r"about [\d,]+ tokens\. The model takes 2,048, which leave 1,536"):
        conversation(2048, said="x" * 9000).fit()
