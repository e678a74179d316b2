"""Compaction on both databases: a conversation of 300 messages with tool calls."""

from typing import Any

import pytest

from libs.bus import Refusal
from libs.contracts.conversation import (
    AppendMessages,
    Compacted,
    CompactionPlan,
    ForkSession,
    History,
    PlanCompaction,
    ReadHistory,
    SearchMessages,
    StoreCompaction,
    StoredMessage,
)
from services.session_store.__main__ import Opened
from services.session_store.conversations.compaction import call_ids
from tests.integration.session_store.store_questions import append, ask, said

LIMITS: dict[str, Any] = {"threshold_tokens": 5_000, "tail_tokens": 2_000, "protect_head": 4, "min_tail_messages": 6}


def conversation(count: int, output_chars: int = 400) -> list[StoredMessage]:
    """Questions, calls in messages of their own, results in messages of role `tool`, answers, in turn."""
    made: list[StoredMessage] = []
    for n in range(count):
        call = {"type": "tool-read", "toolCallId": f"call{n // 4}"}
        match n % 4:
            case 0:
                made.append(said(f"m{n}", f"question {n} " + "word " * 20))
            case 1:
                part = {**call, "state": "input-available", "input": {"path": f"file{n}"}}
                made.append(StoredMessage(id=f"m{n}", role="assistant", parts=(part,)))
            case 2:
                part = {**call, "state": "output-available", "output": f"result {n} " + "x" * output_chars}
                made.append(StoredMessage(id=f"m{n}", role="tool", parts=(part,)))
            case _:
                made.append(said(f"m{n}", f"answer {n} " + "word " * 20, role="assistant"))
    return made


async def fill(opened: Opened, messages: list[StoredMessage]) -> None:
    for start in range(0, len(messages), 100):
        await ask(opened, AppendMessages(session_id="s", messages=tuple(messages[start : start + 100])))


async def compacted(opened: Opened, session_id: str = "s", **fields: Any) -> History:
    history: History = await ask(opened, ReadHistory(session_id=session_id, compacted=True, **fields))
    return history


async def compact(opened: Opened, **limits: Any) -> tuple[CompactionPlan, Compacted | None]:
    plan: CompactionPlan = await ask(opened, PlanCompaction(session_id="s", **{**LIMITS, **limits}))
    if not plan.needed:
        return plan, None
    text = f"summary of {len(plan.messages)} after [{plan.previous_summary}]"
    store = StoreCompaction(session_id="s", from_id=str(plan.from_id), to_id=str(plan.to_id), summary=text)
    done: Compacted = await ask(opened, store)
    return plan, done


async def test_calls_and_results_stay_together_and_the_next_turn_works(opened: Opened) -> None:
    messages = conversation(300)
    await fill(opened, messages)
    _, done = await compact(opened)
    assert done is not None
    assert done.compacted
    assert done.tokens_after < done.tokens_before
    shown = await compacted(opened)
    kept = [m for m in shown.messages if not m.metadata.get("summary")]
    gone = {m.id for m in messages} - {m.id for m in kept}
    for call in range(75):
        together = {m.id for m in messages if f"call{call}" in call_ids(m)}
        assert together <= gone or not together & gone
    assert [m.id for m in shown.messages[:4]] == ["m0", "m1", "m2", "m3"]
    assert (shown.messages[4].role, shown.messages[4].parent_id) == ("system", "m3")
    assert "summary of" in shown.messages[4].parts[0]["text"]
    assert [m.id for m in kept[-6:]] == [f"m{n}" for n in range(294, 300)]
    assert shown.tokens < 5_000
    next_turn = await append(opened, "s", said("next"))
    assert next_turn.context_tokens == (await compacted(opened)).tokens


async def test_a_second_pass_over_the_same_range_does_nothing(opened: Opened) -> None:
    await fill(opened, conversation(300))
    plan, _ = await compact(opened)
    again, nothing = await compact(opened)
    assert (again.needed, nothing) == (False, None)
    store = StoreCompaction(session_id="s", from_id=str(plan.from_id), to_id=str(plan.to_id), summary="another")
    done = await ask(opened, store)
    assert not done.compacted
    assert "another" not in str(await compacted(opened))


async def test_passes_end_even_when_the_protected_messages_are_over_the_threshold(opened: Opened) -> None:
    await fill(opened, conversation(60))
    passes = 0
    while (await compact(opened, threshold_tokens=1, tail_tokens=0, max_tokens=300))[1] is not None:
        passes += 1
        assert passes < 60
    assert passes > 2
    assert len((await compacted(opened)).messages) < 14


async def test_a_later_pass_extends_the_summary(opened: Opened) -> None:
    messages = conversation(300)
    await fill(opened, messages[:200])
    first, _ = await compact(opened)
    await fill(opened, messages[200:])
    second, _ = await compact(opened)
    assert second.from_id == first.from_id
    assert second.previous_summary.startswith("summary of")
    assert second.messages[0].id not in {m.id for m in first.messages}
    shown = [m for m in (await compacted(opened)).messages if m.metadata.get("summary")]
    assert len(shown) == 1
    assert "after [summary of" in shown[0].parts[0]["text"]


async def test_the_originals_stay_readable_and_searchable(opened: Opened) -> None:
    await fill(opened, conversation(300))
    await compact(opened)
    assert len((await ask(opened, ReadHistory(session_id="s"))).messages) == 300
    assert [h.message_id for h in (await ask(opened, SearchMessages(query='"question 100"'))).hits] == ["m100"]


async def test_another_branch_is_not_summarised_with_it(opened: Opened) -> None:
    await fill(opened, conversation(300))
    await compact(opened)
    await append(opened, "s", said("aside", parent_id="m7"))
    assert [m.id for m in (await compacted(opened)).messages] == [*(f"m{n}" for n in range(8)), "aside"]
    assert (await compacted(opened, leaf_id="m299")).messages[4].metadata


async def test_old_outputs_are_shortened_before_anything_is_summarised(opened: Opened) -> None:
    await fill(opened, conversation(60, output_chars=20_000))
    plan, nothing = await compact(opened, threshold_tokens=50_000)
    assert nothing is None
    assert plan.tokens_before < 50_000
    shown = await compacted(opened)
    assert "run the tool again" in shown.messages[2].parts[0]["output"]
    assert len(shown.messages[-2].parts[0]["output"]) > 20_000
    whole = await ask(opened, ReadHistory(session_id="s"))
    assert all(len(m.parts[0]["output"]) > 20_000 for m in whole.messages if m.role == "tool")


async def test_a_fork_keeps_the_summary(opened: Opened) -> None:
    await fill(opened, conversation(300))
    await compact(opened)
    await ask(opened, ForkSession(session_id="s", at_message_id="m299", new_session_id="f"))
    original, fork = await compacted(opened), await compacted(opened, "f")
    assert fork == original
    assert (await append(opened, "f", said("x"))).context_tokens < 5_000


@pytest.mark.parametrize(("first", "last"), [("m6", "m9"), ("m4", "m5"), ("m8", "m4"), ("m4", "aside")])
async def test_a_range_that_no_summary_may_cover_is_refused(opened: Opened, first: str, last: str) -> None:
    await fill(opened, conversation(12))
    await append(opened, "s", said("aside", parent_id="m3"))
    with pytest.raises(Refusal) as no:
        await ask(opened, StoreCompaction(session_id="s", from_id=first, to_id=last, summary="no"))
    assert no.value.code == "bad_range"


async def test_a_range_that_cuts_a_summary_is_refused(opened: Opened) -> None:
    await fill(opened, conversation(24))
    await ask(opened, StoreCompaction(session_id="s", from_id="m4", to_id="m11", summary="yes"))
    with pytest.raises(Refusal, match="begin where it begins"):
        await ask(opened, StoreCompaction(session_id="s", from_id="m8", to_id="m15", summary="no"))
    shown = await compacted(opened)
    await ask(opened, StoreCompaction(session_id="s", from_id="m4", to_id="m7", summary="a shorter one, for a branch that begins there"))
    assert await compacted(opened) == shown


async def test_a_short_conversation_needs_nothing(opened: Opened) -> None:
    await append(opened, "s", said("a"))
    assert not (await ask(opened, PlanCompaction(session_id="s"))).needed
