"""Nobody sees anybody else's rows, whatever is asked, on both databases."""

import ast
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from libs.bus import Refusal
from libs.contracts import conversation as c
from libs.contracts import memory as m
from services.session_store.__main__ import ANSWERS, Opened
from services.session_store.tables import OWNED
from tests.integration.session_store.store_questions import append, ask, said

SERVICE = Path(__file__).resolve().parents[3] / "services" / "session_store"
STRANGERS = ({"user": "stranger"}, {"tenant": "elsewhere"}, {"tenant": "elsewhere", "user": "stranger"})
NAMED: tuple[c.OwnedCall, ...] = (
    c.ReadSession(session_id="s"),
    c.UpdateSession(session_id="s", name="mine"),
    c.UpdateSession(session_id="s", leaf_id="a"),
    c.DeleteSession(session_id="s"),
    c.DeleteSession(session_id="s", messages_only=True),
    c.ForkSession(session_id="s", at_message_id="a", new_session_id="stolen"),
    c.ReadHistory(session_id="s"),
    c.ReadHistory(session_id="s", leaf_id="b", compacted=True),
    c.ReadBranches(session_id="s"),
    c.ReadBranches(session_id="s", message_id="a"),
    c.ReadTree(session_id="s"),
    c.PlanCompaction(session_id="s"),
    c.StoreCompaction(session_id="s", from_id="a", to_id="b", summary="x"),
    c.SearchMessages(query="secret", session_id="s"),
    c.ReadContexts(session_id="s"),
    c.SetContext(session_id="s", label="notes", content="x"),
    c.SearchContext(session_id="s", label="notes", query="secret"),
    c.LoadContext(session_id="s", label="notes", key="k"),
)
EMPTY: tuple[c.OwnedCall, ...] = (
    c.ListSessions(),
    c.SearchMessages(query="secret"),
    m.Recall(query="secret"),
    m.ListMemory(superseded=True),
)
MAKING = (c.CreateSession, c.AppendMessages, m.Remember, m.MarkIngested)


@pytest.fixture
async def owned(opened: Opened) -> Opened:
    await append(opened, "s", said("a", "a secret"), said("b", "more secret"))
    notes = c.ContextBlock(label="notes", kind="searchable")
    await ask(opened, c.ReadContexts(session_id="s", define=(notes,)))
    await ask(opened, c.SetContext(session_id="s", label="notes", key="k", content="a secret"))
    await ask(opened, c.StoreCompaction(session_id="s", from_id="a", to_id="b", summary="a secret"))
    await ask(opened, m.Remember(content="a secret", topic="secret"))
    await ask(opened, m.MarkIngested(digests=("d",)))
    return opened


async def rows(opened: Opened) -> dict[str, list[Any]]:
    async with opened.database.reading() as connection:
        return {t.name: list(await connection.execute(text(f"SELECT * FROM {t.name} ORDER BY 1, 2, 3, 4"))) for t in OWNED}


def test_every_question_is_asked_here() -> None:
    asked = {type(q) for q in (*NAMED, *EMPTY)} | {*MAKING, m.Forget}
    assert {q for q in ANSWERS if issubclass(q, c.OwnedCall)} == asked


async def test_a_stranger_finds_nothing_and_changes_nothing(owned: Opened) -> None:
    before = await rows(owned)
    assert all(before.values())
    forget = m.Forget(id=(await ask(owned, m.ListMemory())).items[0].id)
    for stranger in STRANGERS:
        for question in (*NAMED, forget):
            with pytest.raises(Refusal) as no:
                await ask(owned, question.model_copy(update=stranger))
            assert no.value.code == "not_found", question
            assert "secret" not in str(no.value)
        for question in EMPTY:
            answer = await ask(owned, question.model_copy(update=stranger))
            assert "secret" not in answer.model_dump_json()
    assert await rows(owned) == before


async def test_a_stranger_may_use_the_same_names(owned: Opened) -> None:
    before = await rows(owned)
    for stranger in STRANGERS:
        await append(owned, "s", said("a", "their own"), **stranger)
        history = await ask(owned, c.ReadHistory(session_id="s").model_copy(update=stranger))
        assert [x.parts[0]["text"] for x in history.messages] == ["their own"]
        await ask(owned, m.Remember(content="other", topic="secret").model_copy(update=stranger))
        assert (await ask(owned, m.MarkIngested(digests=("d",)).model_copy(update=stranger))).fresh == ("d",)
        await ask(owned, c.DeleteSession(session_id="s").model_copy(update=stranger))
    after = await rows(owned)
    mine = {name: [r for r in found if (r.tenant, r.owner) == ("local", "local")] for name, found in after.items()}
    assert mine == before


async def test_every_row_names_its_owner(owned: Opened) -> None:
    for name, found in (await rows(owned)).items():
        assert {(r.tenant, r.owner) for r in found} == {("local", "local")}, name


def test_queries_are_begun_in_one_place() -> None:
    """A query that is not begun by `Owner` could forget whose rows it reads."""
    allowed = {"owned.py", "store.py", "database.py", "migrations.py"}
    for file in SERVICE.rglob("*.py"):
        names = {
            alias.name
            for node in ast.walk(ast.parse(file.read_text()))
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("sqlalchemy")
            for alias in node.names
        }
        if file.name not in allowed:
            assert not names & {"select", "insert", "update", "delete"}, file
        if file.name not in allowed and file.parent.name != "search":
            assert "text" not in names, file
