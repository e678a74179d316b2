"""Identity, topics and fusion of memories."""

from datetime import UTC, datetime

from libs.contracts.memory import MemoryItem
from services.session_store.memory.recall import fuse, item_id, names, topic_key, wrapped


def test_the_id_is_the_content_s_address() -> None:
    assert item_id(("t", "u", "p"), "fact", "A  topic", "x") == item_id(("t", "u", "p"), "fact", "a-TOPIC", "x")
    others = {item_id(("t", "u", "p"), kind, topic, text) for kind in ("fact", "task") for topic in (None, "a") for text in ("x", "y")}
    assert len(others) == 8
    assert item_id(("t", "u", ""), "fact", None, "x") != item_id(("t", "", "u"), "fact", None, "x")


def test_a_topic_has_one_key_however_it_is_written() -> None:
    assert topic_key("Favourite-Colour!") == topic_key("  favourite   colour") == "favourite colour"
    assert topic_key("喜欢的 语言") == "喜欢的 语言"
    assert topic_key("--") is None
    assert topic_key(None) is None


def test_a_query_names_a_topic_by_whole_words_or_inside_chinese() -> None:
    assert names("What is my favourite colour?", "favourite colour")
    assert not names("colourful", "colour")
    assert names("我喜欢的语言是什么", "语言")


def test_a_topic_weighs_twice_and_the_newer_wins_among_equals() -> None:
    newest = {1: 10, 2: 20, 3: 30, 4: 40}
    assert fuse([1], [2, 3], newest) == [1, 2, 3]
    assert fuse([], [2, 1], newest) == [2, 1]
    assert fuse([1, 3], [3, 1], newest)[0] == 1
    assert fuse([1], [9], newest) == [1]


def test_the_text_for_a_prompt_is_bounded() -> None:
    item = MemoryItem(id="1", content="long " * 700, created_at=datetime(2026, 1, 2, tzinfo=UTC))
    assert wrapped([item] * 5).count("(fact, 2026-01-02)") == 1
    assert len(wrapped([item] * 5)) < 4_500
