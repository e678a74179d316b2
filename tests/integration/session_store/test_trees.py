"""Message trees on both databases."""

import asyncio
from typing import Any

import pytest

from libs.bus import Refusal
from libs.contracts.conversation import (
    CreateSession,
    DeleteSession,
    ForkSession,
    History,
    ListSessions,
    ReadBranches,
    ReadHistory,
    ReadSession,
    ReadTree,
    SearchMessages,
    UpdateSession,
)
from libs.contracts.envelope import Usage
from services.session_store.__main__ import Opened
from tests.integration.session_store.store_questions import append, ask, said


async def path(opened: Opened, session_id: str = "s", **fields: Any) -> list[str]:
    history: History = await ask(opened, ReadHistory(session_id=session_id, **fields))
    return [m.id for m in history.messages]


async def test_messages_follow_the_active_leaf(opened: Opened) -> None:
    await append(opened, "s", said("a"), said("b", role="assistant"))
    done = await append(opened, "s", said("c", "后来"))
    assert (done.leaf_id, done.messages[0].parent_id) == ("c", "b")
    history = await ask(opened, ReadHistory(session_id="s"))
    assert [(m.id, m.parent_id) for m in history.messages] == [("a", None), ("b", "a"), ("c", "b")]
    assert history.messages[2].parts == ({"type": "text", "text": "后来"},)
    assert history.tokens == done.context_tokens == sum(m.tokens for m in history.messages)
    assert not history.more


async def test_a_message_that_comes_twice_is_stored_once(opened: Opened) -> None:
    first = await append(opened, "s", said("a"), said("b"), usage=Usage(input_tokens=5, calls=1))
    again = await append(opened, "s", said("a"), said("b"), usage=Usage(input_tokens=5, calls=1))
    assert again == first
    session = await ask(opened, ReadSession(session_id="s"))
    assert (session.messages, session.usage.input_tokens) == (2, 5)


async def test_a_list_that_was_stored_in_part_goes_on_behind_that_part(opened: Opened) -> None:
    await append(opened, "s", said("a"))
    await append(opened, "s", said("a"), said("b"))
    assert await path(opened) == ["a", "b"]


async def test_an_id_with_other_content_is_a_conflict_unless_it_replaces(opened: Opened) -> None:
    await append(opened, "s", said("a", "one"), said("b"))
    with pytest.raises(Refusal) as no:
        await append(opened, "s", said("a", "two"))
    assert no.value.code == "conflict"
    done = await append(opened, "s", said("a", "two words and more"), replace=True)
    assert done.leaf_id == "b"
    history = await ask(opened, ReadHistory(session_id="s"))
    assert history.messages[0].parts[0]["text"] == "two words and more"
    assert history.tokens == sum(m.tokens for m in history.messages)
    found = await ask(opened, SearchMessages(query="one"))
    assert not found.hits
    assert len((await ask(opened, SearchMessages(query="words"))).hits) == 1
    with pytest.raises(Refusal, match="role"):
        await append(opened, "s", said("a", "three", role="assistant"), replace=True)


async def test_the_sums_of_every_message_below_a_replaced_one_are_right(opened: Opened) -> None:
    await append(opened, "s", said("a"), said("b"), said("c"))
    await append(opened, "s", said("x", parent_id="a"), said("y"))
    await append(opened, "s", said("b", "much longer " * 50), replace=True)
    for leaf in ("c", "y"):
        history = await ask(opened, ReadHistory(session_id="s", leaf_id=leaf))
        assert history.tokens == sum(m.tokens for m in history.messages)
    await append(opened, "s", said("a", "much longer " * 50), replace=True)
    for leaf in ("c", "y"):
        history = await ask(opened, ReadHistory(session_id="s", leaf_id=leaf))
        assert history.tokens == sum(m.tokens for m in history.messages)


async def test_two_appends_to_one_parent_at_once_are_two_branches(opened: Opened) -> None:
    await append(opened, "s", said("root"))
    await asyncio.gather(*(append(opened, "s", said(f"m{n}", parent_id="root")) for n in range(8)))
    branches = await ask(opened, ReadBranches(session_id="s", message_id="root"))
    assert sorted(m.id for m in branches.children) == [f"m{n}" for n in range(8)]
    assert [m.id for m in branches.children] == list(branches.leaves)
    for n in range(8):
        assert await path(opened, leaf_id=f"m{n}") == ["root", f"m{n}"]


async def test_appends_without_a_parent_at_once_make_one_line(opened: Opened) -> None:
    await asyncio.gather(*(append(opened, "s", said(f"m{n}")) for n in range(10)))
    assert sorted(await path(opened)) == sorted(f"m{n}" for n in range(10))


async def test_the_same_message_at_once_is_stored_once(opened: Opened) -> None:
    await asyncio.gather(*(append(opened, "s", said("a")) for _ in range(8)))
    assert (await ask(opened, ReadSession(session_id="s"))).messages == 1


@pytest.mark.parametrize("on", ["a", "b", "c"])
async def test_a_message_for_a_branch_goes_to_its_end_when_it_is_the_active_one(opened: Opened, on: str) -> None:
    await append(opened, "s", said("a"), said("b"), said("c"))
    done = await append(opened, "s", said("answer"), said("more"), on_branch_of=on)
    assert [m.parent_id for m in done.messages] == ["c", "answer"]
    assert done.leaf_id == "more"


async def test_a_message_for_a_branch_that_was_left_goes_below_its_question(opened: Opened) -> None:
    await append(opened, "s", said("a"), said("b"), said("c"))
    await append(opened, "s", said("x", parent_id="a"), said("y"))
    for on, parent in (("a", "y"), ("x", "z-a"), ("b", "b"), ("c", "c")):
        done = await append(opened, "s", said(f"z-{on}"), on_branch_of=on)
        assert (done.messages[0].parent_id, done.leaf_id) == (parent, f"z-{on}")
    assert await path(opened) == ["a", "b", "c", "z-c"]
    assert await path(opened, leaf_id="z-b") == ["a", "b", "z-b"]


async def test_a_message_for_a_branch_keeps_its_place_when_it_is_replaced(opened: Opened) -> None:
    await append(opened, "s", said("a"), said("b"))
    await append(opened, "s", said("answer", "half"), on_branch_of="a")
    await append(opened, "s", said("other", parent_id=""))
    done = await append(opened, "s", said("answer", "whole"), on_branch_of="a", replace=True)
    assert (done.messages[0].parent_id, done.leaf_id) == ("b", "other")
    assert await path(opened, leaf_id="answer") == ["a", "b", "answer"]


async def test_a_parent_that_is_named_is_followed_whatever_branch_is_meant(opened: Opened) -> None:
    await append(opened, "s", said("a"), said("b"))
    assert (await append(opened, "s", said("beside", parent_id="a"), on_branch_of="b")).messages[0].parent_id == "a"


async def test_a_message_for_a_branch_that_is_not_there_is_refused_and_nothing_is_made(opened: Opened) -> None:
    with pytest.raises(Refusal, match="there is no conversation s") as no:
        await append(opened, "s", said("answer"), on_branch_of="a")
    assert no.value.code == "not_found"
    await append(opened, "s", said("a"))
    with pytest.raises(Refusal, match="the parent gone, which is not in conversation s") as no:
        await append(opened, "s", said("answer"), on_branch_of="gone")
    assert no.value.code == "bad_parent"
    assert await path(opened) == ["a"]


async def test_a_parent_from_another_session_is_refused_and_nothing_is_stored(opened: Opened) -> None:
    await append(opened, "other", said("theirs"))
    await append(opened, "s", said("a"))
    with pytest.raises(Refusal, match="theirs") as no:
        await append(opened, "s", said("b"), said("c", parent_id="theirs"))
    assert no.value.code == "bad_parent"
    assert await path(opened) == ["a"]


async def test_an_edited_first_message_is_a_tree_beside_the_old_one(opened: Opened) -> None:
    await append(opened, "s", said("a"), said("b"))
    await append(opened, "s", said("a2", parent_id=""), said("b2"))
    assert await path(opened) == ["a2", "b2"]
    roots = await ask(opened, ReadBranches(session_id="s"))
    assert ([m.id for m in roots.children], roots.leaves) == (["a", "a2"], ("b", "b2"))


async def test_regenerating_keeps_what_was_there_and_switching_leads_back(opened: Opened) -> None:
    await append(opened, "s", said("q1"), said("r1"), said("q2"), said("r2"))
    await append(opened, "s", said("r1b", parent_id="q1"))
    assert await path(opened) == ["q1", "r1b"]
    branches = await ask(opened, ReadBranches(session_id="s", message_id="q1"))
    assert (tuple(m.id for m in branches.children), branches.leaves) == (("r1", "r1b"), ("r2", "r1b"))
    session = await ask(opened, UpdateSession(session_id="s", leaf_id="r1"))
    assert session.leaf_id == "r2"
    assert await path(opened) == ["q1", "r1", "q2", "r2"]
    await append(opened, "s", said("q3"))
    assert await path(opened) == ["q1", "r1", "q2", "r2", "q3"]
    assert await path(opened, leaf_id="q2") == ["q1", "r1", "q2"]


async def test_deeply_nested_branches_have_their_own_paths(opened: Opened) -> None:
    await append(opened, "s", said("n0"))
    for n in range(1, 60):
        await append(opened, "s", said(f"dead{n}", parent_id=f"n{n - 1}"), said(f"n{n}", parent_id=f"n{n - 1}"))
    assert await path(opened) == [f"n{n}" for n in range(60)]
    assert await path(opened, leaf_id="dead30") == [*(f"n{n}" for n in range(30)), "dead30"]
    tree = await ask(opened, ReadTree(session_id="s"))
    assert (len(tree.nodes), tree.leaf_id, tree.truncated) == (119, "n59", False)


async def test_a_page_of_history_ends_before_a_message(opened: Opened) -> None:
    await append(opened, "s", *(said(f"m{n}") for n in range(10)))
    page = await ask(opened, ReadHistory(session_id="s", limit=4))
    assert ([m.id for m in page.messages], page.more) == (["m6", "m7", "m8", "m9"], True)
    page = await ask(opened, ReadHistory(session_id="s", limit=4, before_id="m6"))
    assert [m.id for m in page.messages] == ["m2", "m3", "m4", "m5"]
    page = await ask(opened, ReadHistory(session_id="s", limit=4, before_id="m2"))
    assert ([m.id for m in page.messages], page.more) == (["m0", "m1"], False)
    await append(opened, "s", said("aside", parent_id="m0"))
    with pytest.raises(Refusal, match="not on the path"):
        await ask(opened, ReadHistory(session_id="s", before_id="m3"))


async def test_a_fork_is_a_copy_that_lives_on_its_own(opened: Opened) -> None:
    await append(opened, "s", said("a", "unique words"), said("b"), said("c"))
    await append(opened, "s", said("b2", parent_id="a"), said("c2"))
    fork = await ask(opened, ForkSession(session_id="s", at_message_id="b2", new_session_id="f", name="分支"))
    assert (fork.name, fork.parent_session_id, fork.messages, fork.leaf_id) == ("分支", "s", 2, "b2")
    assert await ask(opened, ForkSession(session_id="s", at_message_id="b2", new_session_id="f")) == fork
    await append(opened, "f", said("mine"))
    assert await path(opened, "f") == ["a", "b2", "mine"]
    assert await path(opened, "s") == ["a", "b2", "c2"]
    hits = (await ask(opened, SearchMessages(query="unique words", session_id="f"))).hits
    assert [(h.session_id, h.message_id) for h in hits] == [("f", "a")]
    with pytest.raises(Refusal) as no:
        await ask(opened, ForkSession(session_id="s", at_message_id="c", new_session_id="f"))
    assert no.value.code == "conflict"


async def test_sessions_are_listed_newest_change_first_renamed_and_deleted(opened: Opened) -> None:
    for name in "abc":
        await ask(opened, CreateSession(session_id=name, name=f"session {name}"))
    await append(opened, "a", said("m"))
    await ask(opened, UpdateSession(session_id="b", name="会话"))
    first = await ask(opened, ListSessions(limit=2))
    assert [(s.session_id, s.name) for s in first.sessions] == [("b", "会话"), ("a", "session a")]
    second = await ask(opened, ListSessions(limit=2, cursor=first.next_cursor))
    assert ([s.session_id for s in second.sessions], second.next_cursor) == (["c"], None)
    await ask(opened, DeleteSession(session_id="a"))
    with pytest.raises(Refusal) as no:
        await ask(opened, ReadHistory(session_id="a"))
    assert no.value.code == "not_found"
    assert not (await ask(opened, SearchMessages(query="hello"))).hits
    with pytest.raises(Refusal) as no:
        await ask(opened, ListSessions(cursor="bm9uc2Vuc2U"))
    assert no.value.code == "bad_cursor"


async def test_an_emptied_session_begins_anew(opened: Opened) -> None:
    await append(opened, "s", said("a"), said("b"), usage=Usage(calls=1))
    await ask(opened, DeleteSession(session_id="s", messages_only=True))
    assert await path(opened) == []
    await append(opened, "s", said("a", "again"))
    assert await path(opened) == ["a"]
    assert (await ask(opened, ReadSession(session_id="s"))).usage.calls == 1


async def test_usage_and_model_are_counted_per_session(opened: Opened) -> None:
    await append(opened, "s", said("a"), usage=Usage(input_tokens=10, output_tokens=2, cost_usd=0.1, calls=1), model="m1")
    await append(opened, "s", said("b", tokens=77), usage=Usage(input_tokens=5, cached_tokens=5, cost_usd=0.2, calls=1), model="m2")
    session = await ask(opened, ReadSession(session_id="s"))
    assert session.usage == Usage(input_tokens=15, output_tokens=2, cached_tokens=5, cost_usd=0.3, calls=2)
    assert session.model == "m2"
    assert (await ask(opened, ReadHistory(session_id="s"))).messages[1].tokens == 77
