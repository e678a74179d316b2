"""What is too large, broken or hostile gets a clear answer, and the conversation stays usable, on both databases."""

from typing import Any

import pytest
from pydantic import ValidationError

from libs.bus import Refusal
from libs.contracts.conversation import AppendMessages, ReadHistory, ReadTree, SearchMessages, StoredMessage
from services.session_store.__main__ import Opened
from tests.integration.session_store.store_questions import append, ask, said


def with_parts(message_id: str, *parts: dict[str, Any], **fields: Any) -> StoredMessage:
    return StoredMessage(id=message_id, role="assistant", parts=parts, **fields)


async def still_usable(opened: Opened) -> None:
    await append(opened, "s", said("afterwards", "still here"))
    history = await ask(opened, ReadHistory(session_id="s"))
    assert history.messages[-1].id == "afterwards"


async def test_a_message_of_five_megabytes_is_refused(opened: Opened) -> None:
    with pytest.raises(Refusal, match="at most 2000000") as no:
        await append(opened, "s", said("huge", "x" * 5_000_000))
    assert no.value.code == "too_large"
    await still_usable(opened)


async def test_an_oversized_tool_output_is_cut_with_a_note(opened: Opened) -> None:
    big = {"type": "tool-run", "toolCallId": "c1", "state": "output-available", "input": {"a": 1}, "output": {"stdout": "线" * 1_500_000}}
    small = {"type": "tool-run", "toolCallId": "c2", "state": "output-available", "input": {}, "output": "short"}
    done = await append(opened, "s", with_parts("m", {"type": "text", "text": "kept"}, big, small))
    kept = done.messages[0].parts
    assert kept[0]["text"] == "kept"
    assert kept[1]["output"].startswith('{"stdout": "线线')
    assert "run the tool again" in kept[1]["output"]
    assert len(kept[1]["output"]) < 3_000
    assert kept[2] == small
    again = await append(opened, "s", with_parts("m", {"type": "text", "text": "kept"}, big, small))
    assert again.messages == done.messages
    await still_usable(opened)


async def test_ten_thousand_parts_are_stored_and_more_refused(opened: Opened) -> None:
    parts = tuple({"type": "text", "text": str(n)} for n in range(10_000))
    assert len((await append(opened, "s", with_parts("m", *parts))).messages[0].parts) == 10_000
    with pytest.raises(ValidationError, match="at most 10000"):
        with_parts("n", *parts, {"type": "text", "text": "x"})
    await still_usable(opened)


async def test_unknown_parts_are_kept_as_they_are(opened: Opened) -> None:
    odd = ({"type": "data-weather", "data": {"t": [1, None, 2.5]}}, {"type": "from-the-future", "x": {}}, {"no": "type"}, {"type": 7})
    done = await append(opened, "s", with_parts("m", *odd))
    assert done.messages[0].parts == odd
    await still_usable(opened)


async def test_control_characters_and_lone_surrogates_are_cleaned(opened: Opened) -> None:
    text = "a\x00b\x1b[31mc\td\r\n\ud83d.e\udc00 😀"
    done = await append(
        opened, "s", with_parts("m", {"type": "text", "text": text, "k\x00": ["\ud800"]}, metadata={"x": "\x07", "n": float("nan")})
    )
    assert done.messages[0].parts == ({"type": "text", "text": "ab[31mc\td\r\n\ufffd.e\ufffd 😀", "k": ["\ufffd"]},)
    assert done.messages[0].metadata == {"x": "", "n": None}
    again = await append(
        opened, "s", with_parts("m", {"type": "text", "text": text, "k\x00": ["\ud800"]}, metadata={"x": "\x07", "n": float("nan")})
    )
    assert again.messages == done.messages
    await still_usable(opened)


@pytest.mark.parametrize("bad", ["", "a b", "a\x00", "\ud800", "x" * 129, "a\nb"])
def test_an_id_that_no_url_carries_is_refused(bad: str) -> None:
    with pytest.raises(ValidationError):
        said(bad)


async def test_deep_nesting_is_refused(opened: Opened) -> None:
    deep: Any = "x"
    for _ in range(400):
        deep = [deep]
    with pytest.raises(Refusal, match="nested") as no:
        await append(opened, "s", with_parts("m", {"type": "data-x", "data": deep}))
    assert no.value.code == "too_large"
    await still_usable(opened)


async def test_the_same_id_twice_in_one_list_with_other_content_is_a_conflict(opened: Opened) -> None:
    with pytest.raises(Refusal) as no:
        await append(opened, "s", said("m", "one"), said("m", "two"))
    assert no.value.code == "conflict"
    assert (await append(opened, "s", said("m", "one"), said("m", "one"))).leaf_id == "m"
    with pytest.raises(Refusal, match="another parent"):
        await append(opened, "s", said("n"), said("m", "one", parent_id="n"))
    await still_usable(opened)


async def test_a_message_is_never_its_own_ancestor(opened: Opened) -> None:
    with pytest.raises(Refusal) as no:
        await append(opened, "s", said("m", parent_id="m"))
    assert no.value.code == "bad_parent"
    with pytest.raises(Refusal) as no:
        await append(opened, "s", said("a", parent_id="b"), said("b", parent_id="a"))
    assert no.value.code == "bad_parent"
    await still_usable(opened)


async def test_a_history_over_six_megabytes_is_read_in_pages(opened: Opened) -> None:
    for n in range(8):
        await append(opened, "s", said(f"m{n}", "x" * 1_500_000))
    seen: list[str] = []
    before: str | None = None
    while True:
        page = await ask(opened, ReadHistory(session_id="s", before_id=before))
        seen[:0] = [m.id for m in page.messages]
        if not page.more:
            break
        before = page.messages[0].id
    assert seen == [f"m{n}" for n in range(8)]


async def test_ten_thousand_messages_are_one_conversation(opened: Opened) -> None:
    for start in range(0, 10_000, 100):
        messages = tuple(said(f"m{n}", f"text {n} 消息") for n in range(start, start + 100))
        await ask(opened, AppendMessages(session_id="s", messages=messages))
    history = await ask(opened, ReadHistory(session_id="s"))
    assert [m.id for m in history.messages] == [f"m{n}" for n in range(10_000)]
    await append(opened, "s", said("aside", parent_id="m4999"))
    history = await ask(opened, ReadHistory(session_id="s"))
    assert len(history.messages) == 5_001
    assert (await ask(opened, ReadTree(session_id="s"))).truncated
    assert [h.message_id for h in (await ask(opened, SearchMessages(query='"text 77"'))).hits] == ["m77"]
    await still_usable(opened)
