"""What a statement of its own may do, and what needs a transaction."""

import asyncio

import pytest
from sqlalchemy import text

from libs.contracts.conversation import AppendMessages, ReadHistory, ReadSession, SearchMessages, UpdateSession
from services.session_store.__main__ import Opened
from services.session_store.conversations.append import Append, ready
from services.session_store.conversations.at_once import AppendAtOnce, NotAtOnceError, append_at_once
from services.session_store.conversations.sessions import made
from services.session_store.conversations.work import Work
from services.session_store.owned import Owner
from tests.integration.session_store.store_questions import append, ask, said

LOCAL = Owner("local", "local")


def question(*messages: str) -> AppendMessages:
    return AppendMessages(session_id="s", messages=tuple(said(m, f"text of {m}") for m in messages))


async def path(opened: Opened) -> list[str]:
    return [m.id for m in (await ask(opened, ReadHistory(session_id="s"))).messages]


async def broken_off(opened: Opened, asked: AppendMessages) -> None:
    async with opened.database.writing() as connection:
        work = Work(connection, LOCAL)
        session = await made(work, "s", agent="assistant", name="")
        await Append(work, session, asked).run(await ready(asked.messages))
        raise ZeroDivisionError


@pytest.mark.parametrize("messages", [("b",), ("b", "c")])
async def test_an_append_that_breaks_off_leaves_nothing(opened: Opened, messages: tuple[str, ...]) -> None:
    await append(opened, "s", said("a"))
    before = await ask(opened, ReadSession(session_id="s"))
    with pytest.raises(ZeroDivisionError):
        await broken_off(opened, question(*messages))
    assert await ask(opened, ReadSession(session_id="s")) == before
    assert await path(opened) == ["a"]
    assert not (await ask(opened, SearchMessages(query="text"))).hits


async def test_a_path_keeps_every_character(opened: Opened) -> None:
    texts = ['back\\slash \\x2c "quoted"', "登录错误，修复", "a,b", "🙂\t\n", ""]
    await append(opened, "s", *(said(f"m{n}", t) for n, t in enumerate(texts)))
    history = await ask(opened, ReadHistory(session_id="s"))
    assert [m.parts[0]["text"] for m in history.messages] == texts


async def test_one_message_is_appended_with_one_statement(on_postgresql: Opened) -> None:
    batch = await ready(question("b").messages)
    assert await append_at_once(on_postgresql.database, question("b"), batch) is None, "the session is not there yet"
    await append(on_postgresql, "s", said("a"))
    appended = await append_at_once(on_postgresql.database, question("b"), batch)
    assert appended is not None
    assert (appended.leaf_id, appended.messages[0].parent_id) == ("b", "a")
    assert await append_at_once(on_postgresql.database, question("b"), batch) == appended, "twice is once"
    assert await path(on_postgresql) == ["a", "b"]
    assert (await ask(on_postgresql, ReadSession(session_id="s"))).messages == 2
    assert [h.message_id for h in (await ask(on_postgresql, SearchMessages(query="text", session_id="s"))).hits] == ["b"]


async def test_an_answer_is_put_on_the_branch_of_its_question_with_one_statement(on_postgresql: Opened) -> None:
    await append(on_postgresql, "s", said("a"), said("b"))
    await append(on_postgresql, "s", said("x", parent_id="a"))
    for number, (on, parent) in enumerate((("x", "x"), ("a", "answer-0"), ("b", "b"))):
        asked = question(f"answer-{number}").model_copy(update={"on_branch_of": on})
        appended = await append_at_once(on_postgresql.database, asked, await ready(asked.messages))
        assert appended is not None
        assert (appended.leaf_id, appended.messages[0].parent_id) == (f"answer-{number}", parent)
        assert await append_at_once(on_postgresql.database, asked, await ready(asked.messages)) == appended, "twice is once"


async def test_a_message_without_words_is_not_indexed(on_postgresql: Opened) -> None:
    await append(on_postgresql, "s", said("a"))
    await append(on_postgresql, "s", said("b", "…"))
    async with on_postgresql.database.reading() as connection:
        assert (await connection.execute(text("SELECT count(*) FROM message_search"))).scalar_one() == 1
    assert await path(on_postgresql) == ["a", "b"]


async def test_a_statement_that_was_overtaken_changes_nothing(on_postgresql: Opened) -> None:
    await append(on_postgresql, "s", said("a"))
    for change in (question("b"), UpdateSession(session_id="s", name="renamed")):
        async with on_postgresql.database.reading() as connection:
            work = Work(connection, LOCAL)
            late = AppendAtOnce(work, await work.session("s"), question("late"))
            await ask(on_postgresql, change)
            with pytest.raises(NotAtOnceError):
                await late.run(await ready(question("late").messages))
    assert await path(on_postgresql) == ["a", "b"]


async def test_a_connection_that_the_server_closed_is_not_used_again(on_postgresql: Opened) -> None:
    await append(on_postgresql, "s", said("a"))
    closed = asyncio.Event()
    async with on_postgresql.database.reading() as first, on_postgresql.database.reading() as second:
        driver = (await first.get_raw_connection()).driver_connection
        assert driver is not None
        driver.add_termination_listener(lambda _: closed.set())
        await second.execute(text("SELECT pg_terminate_backend(:process)"), {"process": driver.get_server_pid()})
        await asyncio.wait_for(closed.wait(), 20)
    for _ in range(3):
        assert await path(on_postgresql) == ["a"]
