"""Conversations over a real broker: what the gateway and the assistant see."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from libs.bus import Refusal, Service
from libs.contracts.conversation import AppendMessages, CreateSession, PlanCompaction, ReadHistory, ReadSession, SearchMessages
from libs.contracts.memory import Recall, Remember
from libs.testkit.broker import broker
from services.session_store.__main__ import ANSWERS, build
from tests.integration.session_store.store_questions import said


@asynccontextmanager
async def asker(home: Path, name: str = "gateway") -> AsyncIterator[Service]:
    async with broker(home) as (_, settings), build().running(settings), Service(name).running(settings) as service:
        yield service


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, empty_database: str) -> Path:
    monkeypatch.setenv("AGENT_CODER_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("AGENT_CODER_DATABASE_URL", empty_database)
    return tmp_path / "home"


async def test_a_conversation_and_a_memory_go_over_the_bus(home: Path) -> None:
    async with asker(home) as gateway:
        ask = gateway.bus.ask
        assert (await ask(CreateSession(session_id="s", name="会话"))).name == "会话"
        await asyncio.gather(*(ask(AppendMessages(session_id="s", messages=(said(f"m{n}", f"登录 {n}"),))) for n in range(20)))
        history = await ask(ReadHistory(session_id="s"))
        assert sorted(m.id for m in history.messages) == sorted(f"m{n}" for n in range(20))
        assert history.messages[5].parts[0]["text"].startswith("登录")
        assert len((await ask(SearchMessages(query="登录"))).hits) == 20
        await ask(Remember(content="likes tea", topic="tea"))
        assert "likes tea" in (await ask(Recall(query="tea?"))).text
        with pytest.raises(Refusal) as no:
            await ask(ReadSession(session_id="s", user="stranger"))
        assert no.value.code == "not_found"


async def test_a_large_message_is_refused_and_a_long_history_is_carried(home: Path) -> None:
    async with asker(home, "assistant") as assistant:
        ask = assistant.bus.ask
        with pytest.raises(Refusal) as no:
            await ask(AppendMessages(session_id="s", messages=(said("m", "x" * 5_000_000),)))
        assert no.value.code == "too_large"
        for n in range(5):
            await ask(AppendMessages(session_id="s", messages=(said(f"m{n}", "登" * 600_000),)))
        page = await ask(ReadHistory(session_id="s"))
        assert ([m.id for m in page.messages], page.more) == (["m2", "m3", "m4"], True)
        plan = await ask(PlanCompaction(session_id="s", protect_head=1, tail_tokens=0, min_tail_messages=1))
        assert (plan.needed, [m.id for m in plan.messages]) == (True, ["m1"])


async def test_what_was_appended_is_there_after_a_restart(home: Path) -> None:
    async with asker(home) as gateway:
        await gateway.bus.ask(AppendMessages(session_id="s", messages=(said("a"),)))
    async with asker(home) as gateway:
        await gateway.bus.ask(AppendMessages(session_id="s", messages=(said("a"), said("b"))))
        assert [m.id for m in (await gateway.bus.ask(ReadHistory(session_id="s"))).messages] == ["a", "b"]


def test_every_question_to_the_session_store_is_answered() -> None:
    from libs.contracts.registry import QUESTIONS

    assert {q for q in QUESTIONS if q.subject.startswith("q.session_store.")} == set(ANSWERS)
