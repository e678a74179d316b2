"""Ids from outside become one valid subject token, and subjects are matched as the server does."""

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from libs.bus.subjects import matches, token

VALID = re.compile(r"[A-Za-z0-9_~-]{1,64}")
anything = st.text(st.characters(), max_size=300)
tokens = st.lists(st.sampled_from(["a", "b", "run", "r-1"]), min_size=1, max_size=5)


@given(anything)
@example("")
@example("修复")
@example("a.b")
@example("*")
@example(">")
@example("\ud800")
@example("a\x00b")
@example("x" * 65)
def test_any_text_becomes_one_valid_token_and_always_the_same(text):
    assert VALID.fullmatch(token(text))
    assert token(text) == token(text)


@given(anything, anything)
@example("a.b", "a-b")
@example("a.b", "a/b")
@example("修复", "改进")
@example("", "e3b0c44298fc1c14")
@example("修复", token("修复"))
@example("a b", token("a b"))
def test_different_texts_become_different_tokens(one, other):
    assert (token(one) == token(other)) == (one == other)


@pytest.mark.parametrize("text", ["run-1042", "a_b", "A", "0" * 64])
def test_a_safe_text_stays_as_it_is(text):
    assert token(text) == text


def test_a_readable_stem_is_kept():
    assert token("octo/cat #42").startswith("octo-cat-42~")


@pytest.mark.parametrize(
    ("pattern", "subject", "expected"),
    [
        ("run.r1.opened", "run.r1.opened", True),
        ("run.*.opened", "run.r1.opened", True),
        ("run.*.opened", "run.r1.closed", False),
        ("run.*", "run.r1.opened", False),
        ("run.*.opened", "run.opened", False),
        ("run.>", "run.r1", True),
        ("run.>", "run.r1.opened.x", True),
        ("run.>", "run", False),
        ("run.*.>", "run.r1", False),
        ("run.*.>", "run.r1.opened", True),
        (">", "anything", True),
        ("*", "anything", True),
        ("*", "two.parts", False),
        ("ru.>", "run.r1", False),
    ],
)
def test_patterns_match_whole_tokens(pattern, subject, expected):
    assert matches(pattern, subject) is expected


@given(tokens, st.data())
def test_a_pattern_made_from_a_subject_matches_it(parts, data):
    starred = [data.draw(st.sampled_from([p, "*"])) for p in parts]
    cut = data.draw(st.integers(1, len(parts)))
    assert matches(".".join(starred), ".".join(parts))
    assert matches(".".join([*starred[: cut - 1], ">"]), ".".join(parts))
