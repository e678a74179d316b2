"""The parts of stored answers, the prompts made of them, and the live chunks."""

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.agent import MemoryTranscript, Record, ToolResult
from libs.agent.conversation import estimate_tokens
from libs.contracts.conversation import StoredMessage
from libs.contracts.inference import ChatMessage, TextDelta
from libs.contracts.turn import PendingCall, TurnAnswered
from libs.uimessages import Live, ShownTranscript, chat_messages, fitted, in_order, message_parts, within
from tests.unit.assistant.chat_world import says, user


def record(*entries):
    found = Record()
    for entry in entries:
        found.add(entry)
    return found


def assistant(ident, *parts, **fields):
    return StoredMessage(id=ident, role="assistant", parts=parts, **fields)


def answered(call_id, **fields):
    return TurnAnswered(turn_id="t", step="turn", of=1, call_id=call_id, by="local", **fields)


def test_an_answer_holds_its_steps_texts_reasoning_and_calls():
    made = record(
        says("Let me look.", ("ls", '{"path": "."}'), reasoning="hm"),
        ToolResult(call_id="p-1.1", tool="ls", text="a.py"),
        says("One file."),
    )
    assert message_parts(made, "p", {}) == [
        {"type": "step-start"},
        {"type": "reasoning", "text": "hm", "state": "done"},
        {"type": "text", "text": "Let me look.", "state": "done"},
        {"type": "tool-ls", "toolCallId": "p-1.1", "state": "output-available", "input": {"path": "."}, "output": "a.py"},
        {"type": "step-start"},
        {"type": "text", "text": "One file.", "state": "done"},
    ]


def test_waiting_denied_failed_and_client_calls_have_the_states_of_the_sdk():
    made = record(
        says("", ("pay", "{}"), ("pay", "{}"), ("locate", "{}"), ("ls", "not json")),
        ToolResult(call_id="p-1.2", tool="pay", text="no", ok=False),
        ToolResult(call_id="p-1.3", tool="locate", text='{"lat": 1}'),
        ToolResult(call_id="p-1.4", tool="ls", text="malformed", ok=False),
    )
    answers = {"p-1.2": answered("p-1.2", approved=False), "p-1.3": answered("p-1.3", output='{"lat": 1}')}
    pending = (PendingCall(call_id="p-1.1", tool="pay", arguments="{}", waits_for="approval"),)
    waits, denied, client, failed = message_parts(made, "p", answers, pending)[1:]
    assert (waits["state"], waits["approval"]) == ("approval-requested", {"id": "p-1.1"})
    assert (denied["state"], denied["approval"]) == ("output-denied", {"id": "p-1.2", "approved": False})
    assert (client["state"], client["output"]) == ("output-available", {"lat": 1})
    assert (failed["state"], failed["errorText"], failed["input"]) == ("output-error", "malformed", {"raw": "not json"})


def test_half_a_character_in_a_call_is_kept_as_it_was_written():
    made = record(says("", ("ls", '{"path": "\\ud83d"}'), ("locate", "{}")), ToolResult(call_id="p-1.2", tool="locate", text='"\\ud83d"'))
    first, second = message_parts(made, "p", {"p-1.2": answered("p-1.2", output="x")})[1:]
    assert first["input"] == {"raw": '{"path": "\\ud83d"}'}
    assert second["output"] == '"\\ud83d"'


def test_stored_messages_become_a_prompt_in_which_every_call_has_a_result():
    parts = message_parts(
        record(says("Looking.", ("ls", "{}"), ("pay", "{}")), ToolResult(call_id="p-1.1", tool="ls", text="a.py"), says("Done.")), "p", {}
    )
    prompt = chat_messages((user("你好"), assistant("a1", *parts), user("And?", "m2")))
    assert [m.role for m in prompt] == ["user", "assistant", "tool", "tool", "assistant", "user"]
    assert [c.id for c in prompt[1].tool_calls] == ["call_1", "call_2"]
    assert [(m.tool_call_id, m.content) for m in prompt[2:4]] == [
        ("call_1", "a.py"),
        ("call_2", "[no result: the call was never answered]"),
    ]


def test_unknown_and_odd_parts_do_no_harm():
    odd = (
        {"type": "data-x", "data": 1},
        {},
        {"type": 7},
        {"type": "tool-"},
        {"type": "tool-a", "input": [1]},
        {"type": "file", "filename": "a.png"},
    )
    prompt = chat_messages((StoredMessage(id="u", role="user", parts=odd), assistant("a", *odd)))
    assert prompt[0].content == "[attached file a.png]"
    assert prompt[1].tool_calls[0].arguments == "{}"


def test_the_text_of_an_unloaded_skill_is_out_of_later_prompts():
    load = {"type": "tool-load_skill", "input": {"name": "x"}, "state": "output-available", "output": "BODY"}
    unload = {"type": "tool-unload_skill", "input": {"name": "x"}, "state": "output-available", "output": "ok"}
    assert any("BODY" in m.content for m in chat_messages((assistant("a", load),)))
    assert not any("BODY" in m.content for m in chat_messages((assistant("a", load), assistant("b", unload))))
    assert any("BODY" in m.content for m in chat_messages((assistant("a", unload), assistant("b", load))))


def test_an_answer_stands_behind_the_message_that_it_answers():
    path = (
        user("1"),
        user("2", "m2"),
        user("3", "m3"),
        assistant("a1", metadata={"answers": "m1"}),
        assistant("a2", metadata={"answers": "m2"}),
    )
    assert [m.id for m in in_order(path, "m2", "a2")] == ["m1", "a1", "m2"]
    assert [m.id for m in in_order(path, "m3", "a3")] == ["m1", "a1", "m2", "a2", "m3"]


def test_a_continued_answer_is_the_end_of_its_own_prompt():
    path = (user("1"), assistant("a1", metadata={"answers": "m1"}))
    assert [m.id for m in in_order(path, "a1", "a2")] == ["m1", "a1"]


def test_a_large_answer_loses_the_ends_of_its_oldest_outputs():
    parts = [{"type": "tool-ls", "toolCallId": str(n), "state": "output-available", "input": {}, "output": "雪" * 8000} for n in range(100)]
    kept, left_out = fitted(parts)
    assert left_out == 0
    assert len(json.dumps(kept, ensure_ascii=False).encode()) <= 700_000
    assert "left out" in kept[0]["output"]
    assert kept[-1] == parts[-1]


def test_an_answer_over_what_can_be_stored_loses_the_end_of_its_longest_texts_and_says_how_much():
    texts = ["short", "雪" * 900_000, "\x07" * 400_000]
    parts = [{"type": "text", "text": text, "state": "done"} for text in texts]
    kept, left_out = fitted(parts)
    assert len(json.dumps(kept, ensure_ascii=False).encode()) <= 1_900_000
    assert kept[0] == parts[0]
    assert kept[1]["text"].startswith("雪" * 1000)
    assert "characters are left out here" in kept[1]["text"]
    assert left_out == sum(map(len, texts)) - sum(len(part["text"].split("\n[")[0]) for part in kept)


def sized(messages):
    return sum(estimate_tokens(m.content) for m in messages)


def test_a_conversation_that_fits_is_left_as_it_is():
    prompt = [ChatMessage(role="user", content="你好"), ChatMessage(role="assistant", content="Hi")]
    assert within(prompt, 1000) == prompt


def test_the_oldest_messages_go_when_a_conversation_no_longer_fits_and_summaries_stay():
    summary = ChatMessage(role="system", content="In short.")
    pairs = [ChatMessage(role=role, content=f"{n} " + "x" * 300) for n in range(50) for role in ("user", "assistant")]
    kept = within([summary, *pairs, ChatMessage(role="user", content="Now?")], 1500)
    assert sized(kept) <= 1600
    assert kept[0].content == "[86 earlier messages are left out: they no longer fit]"
    assert kept[1] == summary
    assert kept[2].role == "user"
    assert kept[-1].content == "Now?"


def test_a_message_of_five_megabytes_keeps_its_beginning_and_its_end():
    huge = ChatMessage(role="user", content="BEGIN" + "雪" * 1_700_000 + "END")
    for prompt in ([huge], [huge, ChatMessage(role="assistant", content="Too long."), ChatMessage(role="user", content="And now?")]):
        kept = within(prompt, 10_000)
        assert sized(kept) <= 10_000
        assert kept[0].content.startswith("BEGIN")
        assert kept[0].content.endswith("END")
        assert kept[-1].content.endswith(prompt[-1].content[-3:])


@given(st.lists(st.tuples(st.sampled_from(["user", "assistant", "tool"]), st.integers(0, 2000)), min_size=1, max_size=30))
def test_a_cut_conversation_never_begins_with_the_result_of_a_call_that_is_gone(drawn):
    prompt, asked = [], False
    for wanted, size in [("user", 5), *drawn, ("user", 5)]:
        role = wanted if wanted != "tool" or asked else "assistant"
        asked = role == "assistant" or (role == "tool" and asked)
        prompt.append(ChatMessage(role=role, content="x" * size))
    kept = [m for m in within(prompt, 1000) if "are left out: they" not in m.content]
    assert kept[0].role == "user"
    assert kept[-1] == prompt[-1]


class Watcher:
    def __init__(self):
        self.frames = []

    async def send(self, payload):
        self.frames.append(json.loads(payload))

    def chunks(self, kind=None):
        return [chunk for f in self.frames for chunk in f["chunks"] if kind in (None, chunk["type"])]

    def text(self, ident="text-1"):
        return "".join(c["delta"] for c in self.chunks("text-delta") if c["id"] == ident)


async def live_transcript(watcher, *entries):
    live = Live(watcher.send, 7, "p")
    return live, await ShownTranscript.open(MemoryTranscript("p", entries), live, {}, "answer-t")


async def test_a_new_delivery_shows_what_is_recorded_and_goes_on():
    watcher = Watcher()
    first = says("One.", ("ls", "{}"))
    live, transcript = await live_transcript(watcher, first, ToolResult(call_id="p-1.1", tool="ls", text="a.py"))
    await transcript.record_reply(says("Two."))
    await live.finish("stop", {})
    assert [c["type"] for c in watcher.chunks()] == [
        *(
            "start",
            "start-step",
            "text-start",
            "text-delta",
            "text-end",
            "tool-input-start",
            "tool-input-available",
            "tool-output-available",
        ),
        *("finish-step", "start-step", "text-start", "text-delta", "text-end", "finish-step", "finish"),
    ]
    assert {f["token"] for f in watcher.frames} == {7}


async def test_what_is_said_at_once_is_one_message():
    watcher = Watcher()
    live, transcript = await live_transcript(watcher, says("One.", ("ls", "{}")), ToolResult(call_id="p-1.1", tool="ls", text="a.py"))
    for piece in (TextDelta(text="T", offset=0, reasoning="hm"), TextDelta(text="wo", offset=1)):
        await live.frame("p-2", piece)
    await transcript.record_reply(says("Two.", ("ls", "{}"), reasoning="hm"))
    waiting = [("p-2.1", "approval"), ("p-2.2", "client")]
    await live.pending(tuple(PendingCall(call_id=call, tool="ls", arguments="{}", waits_for=who) for call, who in waiting))
    await live.notice("Mind the gap.")
    await live.finish("stop", {})
    assert [[c["type"].removeprefix("text-") for c in f["chunks"]] for f in watcher.frames] == [
        ["start", "start-step", "start", "delta", "end", "tool-input-start", "tool-input-available", "tool-output-available"],
        ["finish-step", "start-step", "reasoning-start", "reasoning-delta", "reasoning-end", "start", "delta"],
        ["delta"],
        ["delta", "end", "tool-input-start", "tool-input-available"],
        ["tool-approval-request"],
        ["finish-step", "data-notice"],
        ["finish"],
    ]
    assert [f["n"] for f in watcher.frames] == [1, 9, 16, 17, 21, 22, 24]


async def test_a_message_stays_small_and_a_large_chunk_is_alone():
    sizes = []

    async def send(payload):
        sizes.append((len(payload), len(json.loads(payload)["chunks"])))

    calls = [("write", json.dumps({"text": "x" * size})) for size in (10, 40_000, 40_000, 100_000, 10, 20)]
    await ShownTranscript.open(MemoryTranscript("p", [says("", *calls)]), Live(send, 7, "p"), {}, "answer-t")
    assert [chunks for _, chunks in sizes] == [7, 2, 1, 4]
    assert [size > 64_100 for size, _ in sizes] == [False, False, True, False]


async def test_notes_that_are_no_calls_are_not_shown():
    watcher = Watcher()
    _, transcript = await live_transcript(watcher)
    for ident in ("p.workspace.1", "p-1.1.writes", "p.message.0"):
        await transcript.record_tool_result(ToolResult(call_id=ident, tool="x", text=""))
    assert [c["type"] for c in watcher.chunks()] == ["start"]


async def test_a_stream_that_begins_anew_with_other_words_becomes_a_new_part():
    watcher = Watcher()
    live, transcript = await live_transcript(watcher)
    await live.frame("p-1", TextDelta(text="Hello wor", offset=0))
    await live.frame("p-1", TextDelta(text="Good day", offset=0))
    await transcript.record_reply(says("Good day."))
    assert (watcher.text("text-1"), watcher.text("text-1~1")) == ("Hello wor", "Good day.")


@given(text=st.text(min_size=1, max_size=60), cuts=st.lists(st.integers(0, 60), max_size=6), again=st.integers(0, 60), lost=st.booleans())
@pytest.mark.filterwarnings("ignore")
async def test_a_streamed_text_is_shown_once_whatever_is_repeated_or_lost(text, cuts, again, lost):
    watcher = Watcher()
    live, transcript = await live_transcript(watcher)
    edges = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    pieces = [TextDelta(text=text[a:b], offset=a) for a, b in pairwise(edges)]
    for index, piece in enumerate(pieces):
        if not (lost and index == again % len(pieces)):
            await live.frame("p-1", piece)
    for piece in pieces[: again % (len(pieces) + 1)]:
        await live.frame("p-1", piece)
    await transcript.record_reply(says(text))
    assert watcher.text() == text
