"""Where messages go, what they hold, what a summary covers: decisions without a database."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.contracts.conversation import ContextBlock, StoredMessage
from libs.contracts.text import clean
from services.session_store.conversations import content
from services.session_store.conversations.compaction import Item, Limits, Overlay, call_ids, choose, cuts, mask_until, masked, outermost
from services.session_store.conversations.prompt import counted, render
from services.session_store.conversations.tree import Fresh, Place, place
from services.session_store.errors import MessageTooLargeError, OverLimitError

PARENTS = st.lists(st.integers(0, 100), min_size=1, max_size=40)


def grown(choices: list[int]) -> tuple[list[Fresh], dict[str, Place], dict[int, tuple[int | None, int | None]]]:
    """A tree in which message i hangs on an earlier one, or on nothing, as `choices` says."""
    fresh = [Fresh(f"m{i}", f"m{pick % (i + 1) - 1}" if pick % (i + 1) else None, i + 1, 10) for i, pick in enumerate(choices)]
    places: dict[str, Place] = {}
    lines: dict[int, tuple[int | None, int | None]] = {}
    branches = 0
    for message in fresh:
        used = {(p.branch, p.depth) for p in places.values()}
        known = {i: Place(p.branch, p.depth, p.path_tokens, p.path_bytes, (p.branch, p.depth + 1) in used) for i, p in places.items()}
        placed = place([message], known, branches)
        places.update(placed.places)
        branches = placed.branches
        lines.update({f.branch: (f.parent_branch, f.parent_depth) for f in placed.forks})
    return fresh, places, lines


@given(PARENTS)
def test_no_two_messages_share_a_place_and_paths_lead_to_the_root(choices: list[int]) -> None:
    fresh, places, lines = grown(choices)
    parents = {f.id: f.parent_id for f in fresh}
    at = {(p.branch, p.depth): i for i, p in places.items()}
    assert len(at) == len(fresh)
    for message in fresh:
        path: list[str] = []
        branch: int | None = places[message.id].branch
        upto = places[message.id].depth
        while branch is not None:
            above, depth = lines[branch]
            path[:0] = [at[branch, d] for d in range((depth or 0) + 1, upto + 1)]
            branch, upto = above, depth or 0
        wanted: list[str] = []
        node: str | None = message.id
        while node is not None:
            wanted.insert(0, node)
            node = parents[node]
        assert path == wanted
        assert places[message.id].path_tokens == sum(f.tokens for f in fresh if f.id in wanted)


@given(PARENTS)
def test_placing_at_once_is_placing_one_by_one(choices: list[int]) -> None:
    fresh, places, lines = grown(choices)
    placed = place(fresh, {}, 0)
    assert {i: (p.branch, p.depth, p.path_tokens, p.path_bytes) for i, p in placed.places.items()} == {
        i: (p.branch, p.depth, p.path_tokens, p.path_bytes) for i, p in places.items()
    }
    assert {f.branch: (f.parent_branch, f.parent_depth) for f in placed.forks} == lines


def message(number: int, calls: tuple[str, ...] = (), role: str = "assistant", size: int = 10) -> StoredMessage:
    parts: list[dict[str, Any]] = [{"type": "text", "text": "x" * size}]
    parts += [{"type": "tool-x", "toolCallId": call, "output": "y" * size} for call in calls]
    return StoredMessage.model_validate({"id": f"m{number}", "role": role, "parts": parts})


CONVERSATIONS = st.lists(
    st.tuples(st.lists(st.sampled_from("abcdefgh"), max_size=2), st.sampled_from(["user", "assistant", "tool"]), st.integers(1, 2000)),
    max_size=50,
).map(lambda rows: [message(i, tuple(calls), role, size) for i, (calls, role, size) in enumerate(rows)])
LIMITS = st.builds(Limits, st.integers(0, 6), st.integers(0, 3000), st.integers(0, 8), st.integers(1, 5000))


def as_items(messages: list[StoredMessage]) -> list[Item]:
    items: list[Item] = []
    total = 0
    for depth, m in enumerate(messages, 1):
        tokens = content.message_tokens(m.parts)
        total += tokens
        items.append(Item(m, depth, tokens, total))
    return items


@given(CONVERSATIONS)
def test_a_cut_never_parts_a_call_from_its_result(messages: list[StoredMessage]) -> None:
    for index, legal in enumerate(cuts(messages)):
        before = {i for m in messages[:index] for i in call_ids(m)}
        behind = {i for m in messages[index:] for i in call_ids(m)}
        result = index < len(messages) and messages[index].role == "tool"
        assert legal == (not before & behind and not result)


@given(CONVERSATIONS, LIMITS)
def test_a_range_keeps_head_and_tail_and_ends_at_cuts(messages: list[StoredMessage], limits: Limits) -> None:
    items = as_items(messages)
    total = items[-1].path_tokens if items else 0
    found = choose(items, None, total, len(items), limits)
    if found is None:
        return
    start, end = found
    legal = cuts(messages)
    assert legal[start]
    assert legal[end]
    assert limits.protect_head <= start < end <= max(0, len(items) - limits.min_tail_messages)
    assert all(total - (i.path_tokens - i.tokens) > limits.tail_tokens for i in items[start:end])


@given(CONVERSATIONS, LIMITS)
def test_passes_come_to_an_end(messages: list[StoredMessage], limits: Limits) -> None:
    items = as_items(messages)
    total = items[-1].path_tokens if items else 0
    previous: Overlay | None = None
    for _ in range(len(items) + 1):
        rest = items[previous.to_depth :] if previous else items
        found = choose(rest, previous, total, len(items), limits)
        if found is None:
            break
        first = previous.from_depth if previous else rest[found[0]].depth
        last = rest[found[1] - 1].depth
        assert previous is None or last > previous.to_depth
        previous = Overlay("", "", first, last, "", 1, 1)
    else:
        pytest.fail("there was always another range")


def test_the_outer_overlay_hides_the_inner_one() -> None:
    inner, outer, later = Overlay("a", "b", 4, 9, "", 1, 1), Overlay("a", "c", 4, 20, "", 1, 1), Overlay("d", "e", 30, 40, "", 1, 1)
    assert outermost([later, inner, outer]) == [outer, later]


def test_masking_is_done_on_a_copy_and_moves_in_steps() -> None:
    original = message(1, ("a",), size=5000)
    short = masked(original)
    assert original.parts[1]["output"] == "y" * 5000
    assert len(short.parts[1]["output"]) < 700
    assert short.parts[0] == original.parts[0]
    assert masked(short) is short
    assert [mask_until(n) for n in (0, 11, 12, 19, 20)] == [0, 0, 8, 8, 16]


@pytest.mark.parametrize(
    ("text", "tokens"),
    [("", 0), ("abcd", 2), ("a" * 400, 100), ("one two three four", 6), ("登录错误", 4), ("修复 bug now", 5), ("😀" * 8, 2)],
)
def test_tokens_are_estimated_from_characters_and_words(text: str, tokens: int) -> None:
    assert content.estimate(text) == tokens


def test_a_message_costs_four_tokens_more_and_a_file_a_thousand() -> None:
    assert content.message_tokens([{"type": "text", "text": "abcd"}]) == 6
    assert content.message_tokens([{"type": "file", "url": "data:…" * 10_000}]) == 1004


@given(st.recursive(st.none() | st.booleans() | st.floats() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))
def test_what_is_cleaned_is_json_that_every_reader_takes(value: Any) -> None:
    cleaned = clean(value)
    text = json.dumps(cleaned, ensure_ascii=False, allow_nan=False)
    text.encode()
    assert "\\u0000" not in text
    assert clean(cleaned) == cleaned


def test_the_longest_output_is_cut_first() -> None:
    parts = tuple({"type": "tool-x", "toolCallId": str(n), "output": "z" * n} for n in (900_000, 500_000, 800_000))
    small, body = content.bounded(StoredMessage(id="m", role="assistant", parts=parts))
    assert [len(p["output"]) > 100_000 for p in small.parts] == [False, True, True]
    assert len(body) <= content.ROW_BYTES
    with pytest.raises(MessageTooLargeError, match="m has"):
        content.bounded(StoredMessage(id="m", role="user", parts=({"type": "text", "text": "登" * 700_000},)))


def test_a_block_shows_how_full_it_is() -> None:
    block = ContextBlock(label="memory", max_tokens=1100, content="words " * 330)
    assert render([counted(block)], {}).splitlines()[0] == "══ MEMORY [45% — 495/1100 tokens] [writable]"
    with pytest.raises(OverLimitError, match="shorten it by"):
        counted(block.model_copy(update={"max_tokens": 400}))
