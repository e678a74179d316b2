"""Decoding and encoding of files: the bytes come back, and an edit touches only the lines it changes."""

import codecs

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.edits.errors import EditFailed, NotText
from libs.edits.text_file import SNIFF_BYTES, LineEdit, decode, is_text


@pytest.mark.parametrize(
    ("data", "encoding", "text"),
    [
        (b"", "utf-8", ""),
        (b"a\r\nb", "utf-8", "a\nb"),
        (b"a\rb\r", "utf-8", "a\nb\n"),
        (b"a\rb\n", "utf-8", "a\rb\n"),
        ("名称 ☃\n".encode(), "utf-8", "名称 ☃\n"),
        (codecs.BOM_UTF8 + b"x\n", "utf-8", "x\n"),
        (codecs.BOM_UTF16_LE + "é\r\n".encode("utf-16-le"), "utf-16-le", "é\n"),
        (codecs.BOM_UTF16_BE + "中\n".encode("utf-16-be"), "utf-16-be", "中\n"),
        (codecs.BOM_UTF32_LE + "中\n".encode("utf-32-le"), "utf-32-le", "中\n"),
        ("café naïve\n".encode("cp1252"), "cp1252", "café naïve\n"),
        (b"caf\xe9 \x81\n", "latin-1", "café \x81\n"),
        ("# 计算两个数的和，返回结果。\n".encode("gbk"), "gb18030", "# 计算两个数的和，返回结果。\n"),
    ],
)
def test_decodes_and_gives_the_bytes_back(data: bytes, encoding: str, text: str) -> None:
    file = decode(data)
    assert (file.encoding, file.text) == (encoding, text)
    assert file.encode() == data


@pytest.mark.parametrize(
    "data",
    [b"a\0b", b"\x89PNG\r\n\x1a\n\x00", b"\xff\xfe\x00", b"\x80\x01\x02", codecs.BOM_UTF8 + b"\xff", codecs.BOM_UTF16_LE + b"a\0\0\0"],
)
def test_binary_is_refused_with_what_to_do(data: bytes) -> None:
    with pytest.raises(NotText, match="command"):
        decode(data)


def test_a_character_cut_by_the_sniff_is_text() -> None:
    for size in range(SNIFF_BYTES - 4, SNIFF_BYTES + 1):
        data = b"a" * size + "☃𝄞中".encode() * 100
        assert is_text(data)
        assert is_text(data[:SNIFF_BYTES])
    assert is_text(codecs.BOM_UTF16_LE + ("x" * SNIFF_BYTES).encode("utf-16-le"))
    assert is_text(b"")
    assert not is_text(b"abc\0")
    assert not is_text(b"\xff\xd8\xff\xe0\x10JFIF")


@given(
    st.binary(max_size=200) | st.text(max_size=80).map(str.encode) | st.text(max_size=40).map(lambda text: text.encode("utf-16", "replace"))
)
def test_any_text_round_trips(data: bytes) -> None:
    try:
        file = decode(data)
    except NotText:
        return
    assert file.encode() == data
    assert file.edited([]).encode() == data


@given(st.text(alphabet="ab\n\r中é", max_size=60))
def test_any_utf8_text_round_trips_and_is_sniffed_as_text(text: str) -> None:
    assert decode(text.encode()).encode() == text.encode()
    assert is_text(text.encode())


def test_untouched_lines_keep_mixed_endings_and_new_ones_take_their_neighbours() -> None:
    file = decode(b"a\r\nb\nc\r\nd")
    assert file.edited([LineEdit(2, 2, ("x", "y"))]).encode() == b"a\r\nb\nx\ny\nc\r\nd"
    assert file.edited([LineEdit(0, 2, ("a", "n", "b"))]).encode() == b"a\r\nn\r\nb\nc\r\nd"
    assert file.edited([LineEdit(4, 4, ("e",))]).encode() == b"a\r\nb\nc\r\nd\r\ne"


def test_the_final_newline_is_kept_or_set() -> None:
    file = decode(b"a\nb")
    assert file.edited([LineEdit(2, 2, ("c",))]).encode() == b"a\nb\nc"
    assert file.edited([LineEdit(1, 2, ("c",))], final_newline=True).encode() == b"a\nc\n"
    assert decode(b"a\n").edited([], final_newline=False).encode() == b"a"


def test_a_character_outside_of_the_encoding_fails_with_the_reason() -> None:
    file = decode("café\n".encode("cp1252"))
    with pytest.raises(EditFailed, match="cp1252"):
        file.edited([LineEdit(1, 1, ("☃",))]).encode()
    with pytest.raises(EditFailed, match="utf-8"):
        decode(b"a\n").edited([LineEdit(0, 1, ("\ud83d",))]).encode()
