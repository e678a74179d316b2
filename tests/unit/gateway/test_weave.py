"""Whatever happens to the deliveries of a turn, a reader gets its text complete and once, as a stream that a client accepts."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from services.gateway.chat.weave import Weave, before_answers, chunks_of

Chunk = dict[str, Any]


def told(calls: list[tuple[str, int]], sizes: list[int], message_id: str = "m") -> list[Chunk]:
    """How a delivery tells a turn of these calls (text and number of tool calls), its texts cut into pieces of these sizes."""
    found: list[Chunk] = [{"type": "start", "messageId": message_id}]
    for number, (text, tools) in enumerate(calls, 1):
        found.append({"type": "start-step"})
        if text:
            name = f"text-{number}"
            found.append({"type": "text-start", "id": name})
            place, turn = 0, 0
            while place < len(text):
                size = sizes[turn % len(sizes)]
                found.append({"type": "text-delta", "id": name, "delta": text[place : place + size]})
                place, turn = place + size, turn + 1
            found.append({"type": "text-end", "id": name})
        for index in range(1, tools + 1):
            call = f"c-{number}.{index}"
            found.append({"type": "tool-input-start", "toolCallId": call, "toolName": "t"})
            found.append({"type": "tool-input-available", "toolCallId": call, "toolName": "t", "input": {"n": index}})
            found.append({"type": "tool-output-available", "toolCallId": call, "output": number})
        found.append({"type": "finish-step"})
    return [*found, {"type": "finish", "finishReason": "stop"}]


def frames(token: int, chunks: list[Chunk]) -> list[Chunk]:
    return [{"n": n, "token": token, "chunks": [chunk]} for n, chunk in enumerate(chunks, 1)]


class Client:
    """Holds a stream to the rules that AI SDK 6 enforces, and builds the message."""

    def __init__(self) -> None:
        self.open: dict[str, str] = {}
        self.texts: dict[str, str] = {}
        self.tools: dict[str, list[str]] = {}
        self.started = self.steps = self.ended = 0

    def take(self, chunks: list[Chunk]) -> None:
        for chunk in chunks:
            assert not self.ended, f"after the end came {chunk}"
            kind = chunk["type"]
            if kind == "start":
                self.started += 1
            elif kind in ("finish", "error", "abort"):
                assert not self.open
                self.ended += 1
            elif kind == "start-step":
                self.steps += 1
            elif kind in ("text-start", "reasoning-start"):
                assert chunk["id"] not in self.texts, "a part begins twice"
                self.open[chunk["id"]] = self.texts[chunk["id"]] = ""
            elif kind in ("text-delta", "reasoning-delta"):
                assert chunk["id"] in self.open, "a piece of a part that is not open"
                self.texts[chunk["id"]] += chunk["delta"]
            elif kind in ("text-end", "reasoning-end"):
                del self.open[chunk["id"]]
            elif kind.startswith("tool-"):
                stages = self.tools.setdefault(chunk["toolCallId"], [])
                assert kind not in stages, "a stage of a call comes twice"
                stages.append(kind)


CALLS = st.lists(st.tuples(st.text("ab你好", max_size=12), st.integers(0, 2)), min_size=1, max_size=4)
SIZES = st.lists(st.integers(1, 5), min_size=1, max_size=4)


@settings(deadline=None)
@given(CALLS, st.lists(st.tuples(SIZES, st.integers(0, 40)), max_size=4), SIZES, st.data())
def test_after_any_crashes_the_client_has_the_turn_once(
    calls: list[tuple[str, int]], crashed: list[tuple[list[int], int]], last: list[int], data: st.DataObject
) -> None:
    weave, client = Weave(), Client()
    deliveries = [frames(token * 10, told(calls, sizes)[:-1][:length]) for token, (sizes, length) in enumerate(crashed, 1)]
    deliveries.append(frames(1000, told(calls, last)))
    for place, delivery in enumerate(deliveries):
        for frame in delivery:
            client.take(weave.take(frame))
            if data.draw(st.booleans()):
                client.take(weave.take(frame))
            if place and deliveries[place - 1]:
                client.take(weave.take(data.draw(st.sampled_from(deliveries[place - 1]))))
    assert weave.finished
    assert (client.started, client.ended, client.steps) == (1, 1, len(calls))
    assert client.texts == {f"text-{n}": text for n, (text, _) in enumerate(calls, 1) if text}
    stages = ["tool-input-start", "tool-input-available", "tool-output-available"]
    assert client.tools == {f"c-{n}.{i}": stages for n, (_, tools) in enumerate(calls, 1) for i in range(1, tools + 1)}


@settings(deadline=None)
@given(st.text("ab", max_size=8), st.integers(0, 8), st.text("ab", min_size=1, max_size=8))
def test_a_text_that_goes_otherwise_is_told_again_as_a_whole(first: str, length: int, second: str) -> None:
    weave, client = Weave(), Client()
    begun = [{"type": "start"}, {"type": "start-step"}, {"type": "text-start", "id": "text-1"}]
    begun += [{"type": "text-delta", "id": "text-1", "delta": c} for c in first[:length]]
    for frame in [*frames(1, begun), *frames(2, told([(second, 0)], [2]))]:
        client.take(weave.take(frame))
    assert list(client.texts.values())[-1] == second
    assert len(client.texts) == (1 if second.startswith(first[:length]) else 2)


@settings(deadline=None)
@given(CALLS, SIZES, st.sets(st.integers(0, 40), max_size=8))
def test_what_was_lost_on_the_way_is_filled_in_from_the_stored_message(
    calls: list[tuple[str, int]], sizes: list[int], lost: set[int]
) -> None:
    weave, client = Weave(), Client()
    for place, frame in enumerate(frames(1, told(calls, sizes)[:-1])):
        if place not in lost:
            client.take(weave.take(frame))
    client.take(weave.settle([*chunks_of(parts_of(calls), "m"), {"type": "finish"}]))
    assert weave.finished
    assert client.started == client.ended == 1
    latest = {name.partition("~")[0]: text for name, text in client.texts.items()}
    assert latest == {f"text-{n}": text for n, (text, _) in enumerate(calls, 1) if text}
    assert len(client.tools) == sum(tools for _, tools in calls)


def parts_of(calls: list[tuple[str, int]]) -> list[Chunk]:
    parts: list[Chunk] = []
    for number, (text, tools) in enumerate(calls, 1):
        parts.append({"type": "step-start"})
        parts += [{"type": "text", "text": text, "state": "done"}] if text else []
        for index in range(1, tools + 1):
            tool = {"toolCallId": f"c-{number}.{index}", "state": "output-available", "input": {"n": index}, "output": number}
            parts.append({"type": "tool-t", **tool})
    return parts


@settings(deadline=None)
@given(CALLS, CALLS, SIZES)
def test_a_turn_that_goes_on_after_an_answer_tells_only_what_is_new(
    before: list[tuple[str, int]], after: list[tuple[str, int]], sizes: list[int]
) -> None:
    weave, client = Weave(), Client()
    weave.seed(chunks_of(parts_of(before), "m"))
    for frame in frames(7, told(before + after, sizes)):
        client.take(weave.take(frame))
    shift = len(before)
    assert client.texts == {f"text-{n + shift}": text for n, (text, _) in enumerate(after, 1) if text}
    assert client.steps == len(after)
    assert client.ended == 1


def test_an_approval_is_asked_once_and_its_result_follows() -> None:
    part = {
        "type": "tool-shell",
        "toolCallId": "c1",
        "state": "approval-responded",
        "input": {},
        "approval": {"id": "a1", "approved": True},
    }
    weave = Weave()
    weave.seed(chunks_of([{"type": "step-start"}, part], "m"))
    again: list[Chunk] = [
        {"type": "start", "messageId": "m"},
        {"type": "start-step"},
        {"type": "tool-input-available", "toolCallId": "c1", "toolName": "shell", "input": {}},
        {"type": "tool-approval-request", "approvalId": "a1", "toolCallId": "c1"},
        {"type": "tool-output-available", "toolCallId": "c1", "output": "done"},
    ]
    assert [made for frame in frames(3, again) for made in weave.take(frame)] == [again[0], again[-1]]


def test_data_with_an_id_is_passed_on_when_it_changes_and_other_data_by_its_place() -> None:
    weave = Weave()
    first = [{"type": "data-step", "id": "s", "data": 1}, {"type": "data-note", "data": "x"}, {"type": "data-note", "data": "x"}]
    second = [*first, {"type": "data-step", "id": "s", "data": 2}, {"type": "data-note", "data": "x"}]
    made = [chunk for frame in frames(1, first) for chunk in weave.take(frame)]
    assert made == [{"type": "start"}, *first]
    assert [chunk for frame in frames(2, second) for chunk in weave.take(frame)] == second[3:]


def test_what_is_no_frame_is_passed_over() -> None:
    weave = Weave()
    odd: list[Chunk] = [{}, {"n": 1}, {"n": "1", "token": 1, "chunk": {}}, {"n": 1, "token": 1, "chunk": "x"}]
    odd += [{"n": 1, "token": 1, "chunks": found} for found in ("x", [], ["x"], {"type": "start"}, None)]
    assert [made for frame in odd for made in weave.take(frame)] == []


@given(
    st.lists(st.tuples(st.integers(1, 12), st.integers(0, 5)), min_size=1, max_size=20),
    st.booleans(),
)
def test_it_does_not_matter_which_chunks_come_together_or_come_again(cuts: list[tuple[int, int]], older: bool) -> None:
    chunks = told([("Hello there", 1), ("And so on", 2)], [3])
    plain, joined, place = Weave(), Weave(), 0
    want = [made for frame in frames(1, chunks) for made in plain.take(frame)]
    found = [made for n, c in enumerate(chunks[:3], 1) for made in joined.take({"n": n, "token": 1, "chunk": c})] if older else []
    for size, again in [*cuts, (len(chunks), 0)]:
        first, place = max(0, place - again), min(len(chunks), place + size)
        found += joined.take({"n": first + 1, "token": 1, "chunks": chunks[first:place]})
    assert found == want
    assert (joined.whole, joined.finished) == (True, True)


def test_nothing_follows_an_error() -> None:
    weave = Weave()
    failed = [{"type": "start"}, {"type": "text-start", "id": "text-1"}, {"type": "error", "errorText": "no"}, {"type": "finish"}]
    made = [chunk for frame in frames(1, failed) for chunk in weave.take(frame)]
    assert [chunk["type"] for chunk in made] == ["start", "text-start", "text-end", "error"]
    assert weave.take({"n": 1, "token": 9, "chunk": {"type": "start"}}) == []


def test_a_text_that_the_provider_began_anew_is_told_once_however_often_it_is_retold() -> None:
    weave, client = Weave(), Client()
    first: list[Chunk] = [{"type": "start"}, {"type": "start-step"}]
    for name, text in (("text-1", "He"), ("text-1~1", "Good"), ("text-1~2", "Well, hello")):
        first += [{"type": "text-start", "id": name}, {"type": "text-delta", "id": name, "delta": text}, {"type": "text-end", "id": name}]
    for frame in [*frames(1, first), *frames(2, told([("Well, hello", 0)], [4])[:-1]), *frames(3, told([("Well, hello", 0)], [3]))]:
        client.take(weave.take(frame))
    assert client.texts == {"text-1": "He", "text-1~1": "Good", "text-1~2": "Well, hello"}


def test_a_stored_answer_is_cut_back_to_where_its_turn_waited() -> None:
    asked = {"type": "tool-ask", "toolCallId": "t-1.1", "input": {}}
    begun: list[dict[str, object]] = [{"type": "step-start"}, {"type": "text", "text": "Let me see."}]
    whole = [*begun, asked | {"state": "output-available", "output": 7}, {"type": "step-start"}, {"type": "text", "text": "It is 7."}]
    assert before_answers(whole, {"t-1.1"}) == [*begun, asked | {"state": "input-available"}]
    assert before_answers(whole, set()) == whole
