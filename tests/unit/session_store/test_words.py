"""How text becomes words, and how what was found is ranked and shown."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.session_store.errors import QueryError
from services.session_store.search import postgresql, sqlite
from services.session_store.search.ranking import marked, rank
from services.session_store.search.words import INDEXED_WORDS, Clause, cut, indexed, loosened, parse

TEXTS = st.text(alphabet=st.one_of(st.sampled_from("登录错误修复 aé1_'\":*&|<>()\\.\x00"), st.characters()), max_size=60)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("修复登录", "修复 复登 登录 录"),
        ("登", "登"),
        ("Deploying the Servers", "deploy the server"),
        ("fix登录bug", "fix 登录 录 bug"),
        ("caf\u00e9 cafe\u0301 ＣＡＦＥ", "cafe cafe cafe"),
        ("read_file.py x-1", "read file py x 1"),
        ("Straße ΣΊΣΥΦΟΣ", "strass σισυφοσ"),
        ("😀 — …", ""),
    ],
)
def test_text_is_cut_into_words(text: str, words: str) -> None:
    assert indexed(text) == words


def test_a_text_has_a_bounded_number_of_words() -> None:
    assert len(indexed("字" * 100_000).split()) == INDEXED_WORDS


@pytest.mark.parametrize(
    ("query", "clauses"),
    [
        ("登录", [Clause(("登录",))]),
        ("登", [Clause(("登",), prefix=True)]),
        ("登录错误", [Clause(("登录", "录错", "错误"))]),
        ('"error 登录"', [Clause(("error", "登录"))]),
        ("deploy* servers", [Clause(("deploy",), prefix=True), Clause(("server",))]),
        ("a a a", [Clause(("a",))]),
        ("x-1", [Clause(("x",)), Clause(("1",))]),
    ],
)
def test_a_query_becomes_clauses(query: str, clauses: list[Clause]) -> None:
    assert list(parse(query)) == clauses


def test_any_word_will_do_but_the_commonest() -> None:
    assert loosened(parse("where is the 登录错误 server")) == tuple(Clause((w,)) for w in ("登录", "录错", "错误", "server"))


@given(TEXTS, st.integers(0, 50), st.integers(1, 12))
def test_whatever_is_written_is_found_by_any_part_of_a_cjk_run_in_it(text: str, start: int, length: int) -> None:
    run = "".join(c for c in text if "\u4e00" <= c <= "\u9fff")
    part = run[start : start + length]
    if part:
        assert rank([(1, indexed(f"{text} {run}"))], parse(part))[0][1] > 0


@given(TEXTS)
def test_queries_hold_nothing_but_words(text: str) -> None:
    try:
        clauses = parse(text)
    except QueryError:
        return
    for clause in clauses:
        for word in clause.words:
            assert not set(word) & set(" '\"\\:*&|!<>()^\0")
    for made in (sqlite._match(clauses, ["u1"], False), postgresql._query(clauses, ["u1"], True)):
        assert "\\" not in made
        assert "\0" not in made


@given(TEXTS)
def test_words_know_their_characters(text: str) -> None:
    for word in cut(text):
        assert 0 <= word.start < word.end <= len(text)


@given(TEXTS)
def test_an_excerpt_is_short_and_marks_in_pairs(text: str) -> None:
    try:
        clauses = parse(text)
    except QueryError:
        return
    shown = marked(text * 30, clauses)
    assert len(shown.replace("\u2068", "").replace("\u2069", "")) <= 260
    assert shown.count("\u2068") == shown.count("\u2069")


def test_a_rarer_word_weighs_more() -> None:
    found = [(1, "common"), (2, "common rare"), (3, "common common common common"), (4, "common"), (5, "common")]
    assert rank(found, parse("common rare"))[0][0] == 2


def test_a_single_character_marks_itself_only() -> None:
    assert marked("修复登录错误", parse("登")) == "修复\u2068登\u2069录错误"
