"""Full-text search on both databases: English and Chinese, ranked, with excerpts, inside its scope."""

import pytest

from libs.bus import Refusal
from libs.contracts.conversation import AppendMessages, SearchMessages
from services.session_store.__main__ import Opened
from tests.integration.session_store.store_questions import append, ask, said


async def ids(opened: Opened, query: str, **fields: object) -> list[str]:
    result = await ask(opened, SearchMessages.model_validate({"query": query, **fields}))
    return [hit.message_id for hit in result.hits]


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("登录", ["zh"]),
        ("修复登录", ["zh"]),
        ("错误", ["zh"]),
        ("误", ["zh"]),
        ("复", ["zh"]),
        ("误登", []),
        ("deploy", ["en"]),
        ("deploys", ["en"]),
        ("DEPLOYING", ["en"]),
        ("servers", ["en"]),
        ("serv*", ["en"]),
        ("serv", []),
        ('"deployed the server"', ["en"]),
        ('"the deployed server"', []),
        ("cafe", ["fr"]),
        ("ＣＡＦÉ", ["fr"]),
        ("read_file", ["tool"]),
        ("密钥", ["tool"]),
        ("こんにちは", ["ja"]),
        ("한국어", ["ko"]),
        ("nothing", []),
        ("登录 deployed", ["en", "zh"]),
    ],
)
async def test_messages_are_found_by_their_words(opened: Opened, query: str, found: list[str]) -> None:
    await append(
        opened,
        "s",
        said("zh", "请帮我修复登录错误，谢谢"),
        said("en", "Yesterday we deployed the server twice."),
        said("fr", "Un cafe\u0301 noir"),
        said("ja", "みなさん、こんにちは世界"),
        said("ko", "저는 한국어를 배웁니다"),
    )
    tool = {
        "type": "tool-read_file",
        "toolCallId": "c1",
        "state": "output-available",
        "input": {"path": "a"},
        "output": {"text": "密钥 42"},
    }
    message = said("tool", role="assistant").model_copy(update={"parts": (tool,)})
    await ask(opened, AppendMessages(session_id="s", messages=(message,)))
    assert sorted(await ids(opened, query)) == found


async def test_the_better_match_comes_first_and_among_equals_the_newer(opened: Opened) -> None:
    await append(
        opened,
        "s",
        said("passing", "the cache is one of many things that were said in this rather long message about all kinds of parts"),
        said("old", "the cache"),
        said("much", "cache the cache"),
        said("new", "the cache"),
    )
    assert await ids(opened, "cache") == ["much", "new", "old", "passing"]
    assert await ids(opened, "cache", limit=2) == ["much", "new"]


async def test_an_excerpt_marks_the_words(opened: Opened) -> None:
    await append(opened, "s", said("m", "前言" * 100 + "然后我们修复了登录错误 and deployed it"))
    result = await ask(opened, SearchMessages(query="登录 deploy"))
    assert "修复了\u2068登录\u2069错误 and \u2068deployed\u2069 it" in result.hits[0].excerpt
    assert result.hits[0].excerpt.startswith("…")
    assert len(result.hits[0].excerpt) < 230


async def test_a_search_sees_one_session_or_all_of_a_user(opened: Opened) -> None:
    await append(opened, "one", said("a", "apples"))
    await append(opened, "two", said("b", "apples"))
    await append(opened, "theirs", said("c", "apples"), user="stranger")
    await append(opened, "theirs", said("d", "apples"), tenant="elsewhere")
    assert await ids(opened, "apples") == ["b", "a"]
    assert await ids(opened, "apples", session_id="one") == ["a"]
    assert await ids(opened, "apples", user="stranger") == ["c"]
    with pytest.raises(Refusal) as no:
        await ids(opened, "apples", session_id="theirs")
    assert no.value.code == "not_found"


@pytest.mark.parametrize("query", ["!!", "\x00", "“”", '""', "*"])
async def test_a_query_without_a_word_is_refused(opened: Opened, query: str) -> None:
    with pytest.raises(Refusal) as no:
        await ids(opened, query)
    assert no.value.code == "bad_query"


@pytest.mark.parametrize("query", ["' OR 1=1 --", "NEAR(a b)", "a AND OR", "scope : u1", "x'*\":&|!<->", "(" * 50 + "a", "登'录", "\\'a"])
async def test_no_query_is_read_as_the_language_of_the_database(opened: Opened, query: str) -> None:
    await append(opened, "s", said("m", "quiet"))
    assert await ids(opened, query) == []


async def test_the_beginning_of_a_very_long_message_is_searchable(opened: Opened) -> None:
    await append(opened, "s", said("long", "needle " + "hay stack of words " * 50_000))
    assert await ids(opened, "needle") == ["long"]
