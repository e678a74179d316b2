"""Replacing text: exact, forgiving about blanks, the one similar place; else the file stays and the error helps."""

import codecs
import contextlib
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.edits.applier import EditError, EditFailed, NotText, replace, rewrite

BOM = codecs.BOM_UTF8

CASES = {
    "exact inside a line": (b"x = 1\ny = 2\n", "1", "3", b"x = 3\ny = 2\n"),
    "exact over lines": (b"a\nb\nc\n", "a\nb\n", "z\n", b"z\nc\n"),
    "delete lines": (b"a\nb\nc\n", "b\n", "", b"a\nc\n"),
    "join lines": (b"a\nb\n", "a\n", "x", b"xb\n"),
    "no final newline is kept": (b"a\nb", "b", "c", b"a\nc"),
    "LF search on a CRLF file": (b"a\r\nb\r\nc\r\n", "a\nb", "x\ny\nz", b"x\r\ny\r\nz\r\nc\r\n"),
    "CRLF search on an LF file": (b"a\nb\nc\n", "a\r\nb", "x\r\ny", b"x\ny\nc\n"),
    "CR file": (b"a\rb\r", "a\nb", "a\nx\nb", b"a\rx\rb\r"),
    "one BOM stays one BOM": (BOM + b"a\nb\n", "a", "c", BOM + b"c\nb\n"),
    "a BOM in the new text is not doubled": (BOM + b"a\n", "a", "\ufeffc", BOM + b"c\n"),
    "a BOM in the search text": (BOM + b"a\nb\n", "\ufeffa\nb\n", "\ufeffc\nb\n", BOM + b"c\nb\n"),
    "UTF-16": (codecs.BOM_UTF16_LE + "é=1\r\n".encode("utf-16-le"), "1", "2", codecs.BOM_UTF16_LE + "é=2\r\n".encode("utf-16-le")),
    "GBK": ("# 返回结果。\nx = 1\n".encode("gbk"), "返回结果", "返回总和", "# 返回总和。\nx = 1\n".encode("gbk")),
    "trailing blanks in the file": (b"a  \nb\nc\n", "a\nb\n", "a\nx\n", b"a  \nx\nc\n"),
    "trailing blanks in the search": (b"a\nb\n", "a  \nb ", "z", b"z\n"),
    "missing indentation": (
        b"class A:\n    def f(self):\n        return 1\n",
        "def f(self):\n    return 1",
        "def f(self):\n    if x:\n        return 2\n    return 1",
        b"class A:\n    def f(self):\n        if x:\n            return 2\n        return 1\n",
    ),
    "too much indentation": (b"if a:\n    b\n", "    if a:\n        b", "    if a:\n        c", b"if a:\n    c\n"),
    "spaces for tabs": (
        b"def f():\n\tif x:\n\t\treturn 1\n",
        "    if x:\n        return 1",
        "    if x:\n        return 2\n    else:\n        while y:\n            pass",
        b"def f():\n\tif x:\n\t\treturn 2\n\telse:\n\t\twhile y:\n\t\t\tpass\n",
    ),
    "two spaces for four": (b"a:\n    b:\n        c\n", "a:\n  b:\n    c", "a:\n  b:\n    d", b"a:\n    b:\n        d\n"),
    "inner blanks": (b"x  =  f(a,  b)\n", "x = f(a, b)", "x = 1", b"x = 1\n"),
    "line numbers of read": (b"a\nfoo\n  bar\n", "     2\tfoo\n     3\t  bar\n", "foo\n  baz\n", b"a\nfoo\n  baz\n"),
    "line numbers in both": (b"a\nfoo\n", "     2\tfoo\n", "     2\tbaz\n", b"a\nbaz\n"),
    "fuzzy": (
        b"def total(values):\n    result = sum(values)\n    return result\n\nprint(1)\n",
        "def total(value):\n    result = sum(values)\n    return result\n",
        "def total(values):\n    return sum(values)\n",
        b"def total(values):\n    return sum(values)\n\nprint(1)\n",
    ),
    "fuzzy keeps what the edit leaves alone": (
        b"# computes the total of everything here\ndef total(values):\n    return 1\n",
        "# compute the total of everything here\ndef total(values):\n    return 1\n",
        "# compute the total of everything here\ndef total(values):\n    return 2\n",
        b"# computes the total of everything here\ndef total(values):\n    return 2\n",
    ),
}


@pytest.mark.parametrize(("data", "old", "new", "wanted"), CASES.values(), ids=CASES.keys())
def test_replaces_one_place(data: bytes, old: str, new: str, wanted: bytes) -> None:
    assert replace(data, old, new) == wanted


ALL_CASES = {
    "exact": (b"a b a\na\n", "a", "c", b"c b c\nc\n"),
    "LF search on CRLF": (b"a\r\nb\r\na\r\nb\r\n", "a\nb\n", "x\ny\nz\n", b"x\r\ny\r\nz\r\n" * 2),
    "mixed endings": (b"a\r\nk\na\nk\r\n", "a", "x", b"x\r\nk\nx\nk\r\n"),
    "BOM": (BOM + b"a\r\na\r\n", "a", "b", BOM + b"b\r\nb\r\n"),
    "blanks": (b"if a:\n  b\nelse:\n    if a:\n      b\n", "if a:\n b", "if a:\n c", b"if a:\n  c\nelse:\n    if a:\n      c\n"),
}


@pytest.mark.parametrize(("data", "old", "new", "wanted"), ALL_CASES.values(), ids=ALL_CASES.keys())
def test_replaces_all(data: bytes, old: str, new: str, wanted: bytes) -> None:
    assert replace(data, old, new, replace_all=True) == wanted


@pytest.mark.parametrize(
    ("data", "old", "new", "words"),
    [
        (b"a\n", "", "x", "empty"),
        (b"a\n", "a", "a", "nothing to change"),
        (b"a\r\nb\r\n", "a\nb", "a\r\nb", "nothing to change"),
        (b"a\nb\na\n", "a", "x", "2 times, at lines 1, 3"),
        (b" a\nb\n  a\n", "   a", "x", "2 times, at lines 1, 3"),
        (b"alpha beta\ngamma delta\n", "gamma epsilon zeta", "x", "2\tgamma delta"),
        (b"alpha\n", "12345", "x", "Nothing in the file"),
        (b"", "a", "x", "not in the file"),
        (b"assert f(1) == 1  # one of many\nassert f(2) == 1  # one of many\n", "assert f(3) == 1  # one of many", "x", "nearest"),
    ],
)
def test_failures_say_what_is_near(data: bytes, old: str, new: str, words: str) -> None:
    with pytest.raises(EditFailed) as caught:
        replace(data, old, new)
    assert words in str(caught.value)


def test_binary_is_never_rewritten() -> None:
    with pytest.raises(NotText):
        replace(b"a\0a", "a", "b", replace_all=True)
    with pytest.raises(NotText):
        rewrite(b"\x89PNG\0", "text")


@pytest.mark.parametrize(
    ("data", "content", "wanted"),
    [
        (None, "a\nb", b"a\nb"),
        (None, "中\r\n", "中\r\n".encode()),
        (b"a\r\nb\r\n", "a\nc\nd\n", b"a\r\nc\r\nd\r\n"),
        (BOM + b"a\n", "\ufeffb\n", BOM + b"b\n"),
        (b"a\nb\n", "", b""),
        (b"a\r\nb\nc\r\n", "a\nb\nx\nc\n", b"a\r\nb\nx\nc\r\n"),
    ],
)
def test_rewrite_keeps_what_the_file_has(data: bytes | None, content: str, wanted: bytes) -> None:
    assert rewrite(data, content) == wanted


TEXT = st.text(alphabet="ab \n", max_size=40)


@given(TEXT, st.text(alphabet="ab \n", min_size=1, max_size=4), st.text(alphabet="abc \n", max_size=5))
def test_exact_replacement_equals_the_naive_one(text: str, old: str, new: str) -> None:
    if old == new or old not in text:
        return
    assert replace(text.encode(), old, new, replace_all=True) == text.replace(old, new).encode()
    if text.count(old) == 1:
        assert replace(text.encode(), old, new) == text.replace(old, new).encode()


@given(TEXT, st.text(alphabet="ab \n", min_size=1, max_size=4), st.text(alphabet="abc \n", max_size=5))
def test_crlf_replacement_equals_the_lf_one(text: str, old: str, new: str) -> None:
    if old == new or old not in text or "\n" not in text:
        return
    crlf = replace(text.replace("\n", "\r\n").encode(), old, new, replace_all=True)
    assert crlf == text.replace(old, new).replace("\n", "\r\n").encode()


@given(st.binary(max_size=60), st.text(max_size=6), st.text(max_size=6), st.booleans())
def test_only_typed_errors_leave_replace(data: bytes, old: str, new: str, everywhere: bool) -> None:
    with contextlib.suppress(EditError):
        replace(data, old, new, everywhere)


def test_a_large_file_is_searched_with_bounded_work() -> None:
    chance = random.Random(7)
    lines = ["".join(chance.choices("abcdefgh ()=", k=100)) for _ in range(20_000)]
    changed = [line[:50] + "_" + line[51:] for line in lines[9_000:9_030]]
    data = "\n".join(lines).encode()
    assert b"\nx\n" in replace(data, "\n".join(changed), "x")
    for wanted in (["x = 2"] * 300, [line[::-1] for line in changed]):
        with pytest.raises(EditFailed):
            replace(b"x = 1\n" * 20_000 + data, "\n".join(wanted), "y")
