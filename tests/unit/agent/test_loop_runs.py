import json

import pytest

from libs.agent import Limits, MemoryTranscript, NativeCalls, run_loop
from libs.agent.limits import CallLimit, FailedCalls, MalformedCalls, MoneyLimit, NothingDone, RepeatedCalls, TimeLimit, TokenLimit
from libs.contracts.envelope import Usage
from libs.contracts.work import ToolCall
from tests.unit.agent.scripted import START, Files, ScriptedModel, call, no_more, says


async def run(*replies, limits=None, files=None, next_task=no_more, transcript=None):
    model, files = ScriptedModel(replies), files or Files()
    transcript = transcript or MemoryTranscript("run-1-7")
    try:
        result = await run_loop(model, files.tools(), transcript, limits or Limits(), START, next_task)
    except Exception as error:
        error.model = model
        raise
    return result, model, files, transcript


def last_output(model, back=1):
    return [message.content for message in model.prompts[-1] if message.role == "tool"][-back]


async def test_calls_of_one_reply_run_in_order_and_done_ends_the_loop():
    reply = says(call("write", path="a", content="1"), call("write", path="a", content="2"), call("done", summary="wrote a"))
    result, model, files, transcript = await run(reply)
    assert (result.summary, result.calls, result.changed, files.files) == ("wrote a", 1, True, {"a": "2"})
    assert result.usage.input_tokens == 10
    assert list(transcript.record.results) == ["run-1-7-1.1", "run-1-7-1.2", "run-1-7-1.3"]
    assert model.asked == ["run-1-7-1"]


async def test_done_before_the_last_task_gives_the_next_one():
    tasks = iter(["second step"])

    async def next_task(summary):
        return next(tasks, None)

    first, second = says(call("done", summary="one")), says(call("done", summary="two"))
    result, model, _, _ = await run(first, second, next_task=next_task)
    assert result.summary == "one\n\ntwo"
    assert model.prompts[1][-1].content == "second step"


async def test_done_does_not_count_when_an_earlier_call_of_the_reply_failed():
    hasty = says(call("read", path="gone"), call("done", summary="fixed"))
    result, model, _, _ = await run(hasty, says(call("done", summary="really")))
    assert result.summary == "really"
    assert "earlier call of this reply failed" in last_output(model)


async def test_calls_after_done_are_not_run():
    _, _, files, _ = await run(says(call("done", summary="ready"), call("write", path="a", content="1")))
    assert files.files == {}


@pytest.mark.parametrize(
    ("bad", "expected"),
    [
        (call("read"), "path: Field required. Expected: read(path: string, start?: integer)"),
        (call("read", path="a", start="x"), "start: Input should be a valid integer"),
        (call("read", path="a", lines=3), "lines: Extra inputs are not permitted"),
        (call("open", path="a"), "There is no tool 'open'. The tools are: read, write, send, done."),
        (ToolCall(id="x", name="write", arguments='{"path": "a", "content": "half'), "end in the middle"),
        (ToolCall(id="x", name="read", arguments="[1]"), "not a JSON object"),
    ],
)
async def test_a_malformed_call_comes_back_as_text_that_names_field_and_form(bad, expected):
    _, model, _, _ = await run(says(bad), says(call("done", summary="ok")))
    assert expected in last_output(model)


async def test_three_malformed_calls_in_a_row_stop_the_loop():
    with pytest.raises(MalformedCalls, match="3 malformed tool calls in a row"):
        await run(says(call("read")))


async def test_arguments_with_bare_line_breaks_are_understood():
    raw = ToolCall(id="", name="write", arguments='{"path": "a", "content": "1\n2"}')
    _, _, files, _ = await run(says(raw, call("done", summary="ok")))
    assert files.files == {"a": "1\n2"}


async def test_the_third_identical_call_is_refused_by_name_and_the_fifth_stops_the_loop():
    files = Files()
    files.files["a"] = "text"
    with pytest.raises(RepeatedCalls, match="called read 5 times") as stopped:
        await run(says(call("read", path="a")), files=files)
    outputs = [message.content for message in stopped.value.model.prompts[-1] if message.role == "tool"]
    assert outputs[:2] == ["text", "text"]
    assert all("this very call of read" in text for text in outputs[2:])


async def test_a_change_in_between_allows_the_same_call_again():
    files = Files()
    files.files["a"] = "0"
    replies = [says(call("read", path="a"), call("write", path="a", content=str(n))) for n in range(6)]
    result, _, _, _ = await run(*replies, says(call("done", summary="ok")), files=files)
    assert result.calls == 7


async def test_failing_calls_in_a_row_stop_the_loop():
    replies = [says(call("read", path=f"gone{n}")) for n in range(20)]
    with pytest.raises(FailedCalls, match="no such file"):
        await run(*replies)


async def test_empty_replies_are_nudged_then_stop_the_loop():
    with pytest.raises(NothingDone, match="empty replies"):
        await run(says())


async def test_text_alone_stops_the_loop_when_nothing_was_changed():
    with pytest.raises(NothingDone, match="I would change the file"):
        await run(says(text="I would change the file."))


async def test_text_alone_is_the_summary_after_two_nudges_when_something_was_changed():
    result, model, _, _ = await run(says(call("write", path="a", content="1")), says(text="All fixed."))
    assert (result.summary, result.calls) == ("All fixed.", 4)
    assert "called no tool" in model.prompts[-1][-1].content


async def test_a_call_printed_as_text_is_named_and_never_taken_for_a_summary():
    printed = says(text='<tool_call>{"name": "write", "arguments": {"path": "a"}}</tool_call>')
    with pytest.raises(NothingDone) as stopped:
        await run(says(call("write", path="a", content="1")), printed)
    assert "tool call as text" in stopped.value.model.prompts[-1][-1].content


async def test_a_reply_cut_at_its_limit_is_named():
    _, model, _, _ = await run(says(text="Let me think about", finish="length"), says(call("done", summary="ok")))
    assert "cut off at its limit" in model.prompts[-1][-1].content


@pytest.mark.parametrize(
    ("limits", "reason", "advice"),
    [
        (Limits(max_calls=2), CallLimit, "2 model calls were used of 2; raise policy.max_model_calls"),
        (Limits(max_tokens=100, spent=Usage(input_tokens=80)), TokenLimit, "110 tokens of 100; raise policy.max_tokens"),
        (Limits(ceiling_usd=0.02), MoneyLimit, r"\$0.02 of \$0.02; raise policy.ceiling_usd"),
    ],
)
async def test_each_limit_says_what_was_used_and_how_to_raise_it(limits, reason, advice):
    replies = [says(call("write", path="a", content=str(n))) for n in range(9)]
    with pytest.raises(reason, match=advice):
        await run(*replies, limits=limits)


async def test_time_used_by_earlier_tries_counts():
    transcript = MemoryTranscript()
    transcript.record.seconds_used = 700.0
    with pytest.raises(TimeLimit, match="600 seconds"):
        await run(says(call("done", summary="ok")), transcript=transcript)


async def test_a_long_result_is_cut_with_a_note_how_to_read_on():
    files = Files()
    files.files["a"] = "x" * 20_000
    _, model, _, _ = await run(says(call("read", path="a")), says(call("done", summary="ok")), files=files)
    assert last_output(model).endswith("[12,000 of 20,000 characters are left out here; to see the rest, read from a later start]")


async def test_old_outputs_are_left_out_when_the_prompt_nears_the_context_and_may_be_asked_for_again():
    files = Files()
    files.files |= {f"f{n}": str(n) * 6000 for n in range(8)}
    replies = [says(call("read", path=f"f{n}")) for n in range(8)]
    again = says(call("read", path="f0"))
    limits = Limits(context_tokens=10_000, max_output_tokens=1000)
    _, model, _, _ = await run(*replies, again, says(call("done", summary="ok")), files=files, limits=limits)
    masked = [m.content for m in model.prompts[-1] if m.content.startswith("[output of read(path='f0') left out")]
    assert len(masked) == 1
    assert last_output(model) == "0" * 6000
    assert all(sum(len(m.content) for m in prompt) < 30_000 for prompt in model.prompts)


async def test_calls_without_an_id_or_with_the_same_one_get_their_own():
    twin = ToolCall(id="same", name="write", arguments=json.dumps({"path": "a", "content": "1"}))
    other = twin.model_copy(update={"arguments": json.dumps({"path": "b", "content": "1"})})
    _, model, _, _ = await run(says(twin, other), says(call("done", summary="ok")))
    asked = [c.id for m in model.prompts[-1] for c in m.tool_calls]
    answered = [m.tool_call_id for m in model.prompts[-1] if m.role == "tool"]
    assert asked == answered == ["same", "call_1_2"]


def test_plain_prose_about_a_tool_is_no_printed_call():
    reply = says(text="I used read to look at it.")
    assert "called no tool" in NativeCalls().nudge(reply, Files().tools())
