"""The loop's promise: whatever prefix of the record a crash leaves, the resumed loop ends as the uninterrupted one."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libs.agent import Interjection, Limits, MemoryTranscript, Started, ToolResult, run_loop
from libs.agent.limits import CallLimit
from libs.agent.loop import UNKNOWN
from libs.contracts.inference import Completion
from tests.unit.agent.scripted import START, Crash, Files, ScriptedModel, call, no_more, says

STORY = (
    says(call("read", path="a"), call("write", path="b", content="1")),
    says(text="thinking aloud"),
    says(call("read", path="missing"), call("read")),
    says(call("write", path="a", content="2"), call("send", command="mail"), call("write", path="c", content="3")),
    says(call("read", path="a"), call("read", path="a"), call("read", path="a")),
    says(call("done", summary="first")),
    says(call("write", path="d", content="4"), call("done", summary="second")),
)


class Dying(MemoryTranscript):
    """Dies before or after it has kept its `at`-th entry."""

    def __init__(self, entries, at, after):
        super().__init__("run-1-7", entries)
        self.left, self.after = at, after

    def _add(self, entry):
        self.left -= 1
        if self.left == 0 and not self.after:
            raise Crash
        super()._add(entry)
        if self.left == 0:
            raise Crash


def tasks():
    given_out = iter(["second task"])

    async def next_task(summary):
        return next(given_out, None)

    return next_task


def files():
    made = Files()
    made.files["a"] = "text"
    return made


async def whole():
    model, world, transcript = ScriptedModel(STORY), files(), MemoryTranscript("run-1-7")
    await run_loop(model, world.tools(), transcript, Limits(), START, tasks())
    return model, world, transcript


def shape(entries):
    return [e.model_copy(update={"seconds": 0.0}) if isinstance(e, ToolResult) else e for e in entries]


def without_starts(entries):
    return [e for e in shape(entries) if not isinstance(e, Started)]


async def test_every_prefix_of_the_record_leads_to_the_same_end():
    model, world, transcript = await whole()
    for length in range(len(transcript.entries) + 1):
        prefix = tuple(transcript.entries[:length])
        unfinished_send = bool(prefix) and isinstance(prefix[-1], Started) and prefix[-1].tool == "send"
        again, resumed, resumed_world = ScriptedModel(STORY), MemoryTranscript("run-1-7", prefix), files()
        again.paid = dict(list(model.paid.items())[: sum(isinstance(e, Completion) for e in prefix)])
        resumed_world.files |= world.files if length else {}
        before = len(again.paid)
        await run_loop(again, resumed_world.tools(), resumed, Limits(), START, tasks())
        assert [e for e in resumed.entries if isinstance(e, Completion)] == list(STORY)
        assert len(again.asked) == len(STORY) - before
        if unfinished_send:
            assert resumed_world.sent == []
            assert resumed.record.results["run-1-7-4.2"].text == UNKNOWN
        elif not resumed_world.sent:
            assert "run-1-7-4.2" in {e.call_id for e in prefix if isinstance(e, ToolResult)}


@settings(max_examples=150, deadline=None)
@given(crashes=st.lists(st.tuples(st.integers(1, 12), st.booleans()), max_size=8))
async def test_any_series_of_crashes_pays_no_call_twice_and_repeats_no_effect(crashes):
    _, world, transcript = await whole()
    model, resumed_world, entries = ScriptedModel(STORY), files(), ()
    for at, after in [*crashes, (10_000, True)]:
        dying = Dying(entries, at, after)
        try:
            await run_loop(model, resumed_world.tools(), dying, Limits(), START, tasks())
        except Crash:
            entries = tuple(dying.entries)
            continue
        entries = tuple(dying.entries)
        break
    assert list(model.paid.values()) == list(STORY)
    assert resumed_world.sent == ["mail"] or UNKNOWN in {e.text for e in entries if isinstance(e, ToolResult)}
    assert len(resumed_world.sent) <= 1
    assert resumed_world.files == world.files
    if not any(isinstance(e, ToolResult) and e.text == UNKNOWN for e in entries):
        assert without_starts(entries) == without_starts(transcript.entries)
    assert shape(entries).count(Started(call_id="run-1-7-4.2", tool="send")) == 1


async def test_a_resumed_loop_shows_the_model_the_same_prompt():
    model, world, transcript = await whole()
    limits = Limits(context_tokens=9000, max_output_tokens=1000)
    for length in range(1, len(transcript.entries)):
        again, resumed_world = ScriptedModel(STORY), files()
        resumed_world.files |= world.files
        again.paid = dict(list(model.paid.items())[: sum(isinstance(e, Completion) for e in transcript.entries[:length])])
        resumed = MemoryTranscript("run-1-7", tuple(transcript.entries[:length]))
        if isinstance(transcript.entries[length - 1], Started) and transcript.entries[length - 1].tool == "send":
            continue
        await run_loop(again, resumed_world.tools(), resumed, limits, START, tasks())
        tail = model.prompts[len(model.prompts) - len(again.prompts) :]
        assert [[m.role for m in prompt] for prompt in again.prompts] == [[m.role for m in prompt] for prompt in tail]


async def test_an_interjection_stands_where_it_was_recorded():
    entries = (says(call("write", path="a", content="1")), Interjection(text="the workspace was lost"))
    model = ScriptedModel([entries[0], says(call("done", summary="ok"))])
    model.paid["run-1-7-1"] = entries[0]
    transcript = MemoryTranscript("run-1-7", entries)
    await run_loop(model, Files().tools(), transcript, Limits(), START, no_more)
    assert [m.role for m in model.prompts[0]][-2:] == ["tool", "user"]
    assert model.prompts[0][-1].content == "the workspace was lost"


async def test_a_person_who_lets_a_stopped_loop_go_on_gives_it_a_fresh_allowance():
    replies = [says(call("write", path="a", content=str(n))) for n in range(3)]
    model, transcript = ScriptedModel([*replies, says(call("done", summary="ok"))]), MemoryTranscript("run-1-7")
    with pytest.raises(CallLimit):
        await run_loop(model, Files().tools(), transcript, Limits(max_calls=3), START, no_more)
    entries = (*transcript.entries, Interjection(text="go on", fresh_allowance=True))
    resumed = MemoryTranscript("run-1-7", entries)
    result = await run_loop(model, Files().tools(), resumed, Limits(max_calls=3), START, no_more)
    assert (result.calls, result.summary, len(model.asked)) == (4, "ok", 4)


async def test_a_loop_stopped_for_malformed_calls_can_go_on():
    model, transcript = ScriptedModel([says(call("read"))] * 3), MemoryTranscript("run-1-7")
    with pytest.raises(Exception, match="3 malformed"):
        await run_loop(model, Files().tools(), transcript, Limits(), START, no_more)
    model.replies.append(says(call("done", summary="ok")))
    resumed = MemoryTranscript("run-1-7", (*transcript.entries, Interjection(text="go on", fresh_allowance=True)))
    assert (await run_loop(model, Files().tools(), resumed, Limits(), START, no_more)).summary == "ok"
