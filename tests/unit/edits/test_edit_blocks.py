"""Search/replace blocks and whole files in a model's answer."""

import codecs

import pytest

from libs.edits.applier import (
    EditError,
    EditFailed,
    FileChange,
    NotText,
    UnsafePath,
    apply_search_replace,
    apply_whole_files,
    parse_search_replace,
    parse_whole_files,
)

BLOCK = "<<<<<<< SEARCH\na\n=======\nb\n>>>>>>> REPLACE\n"


@pytest.mark.parametrize(
    "text",
    [
        "src/f.py\n" + BLOCK,
        "Some words.\n\n`src/f.py`\n" + BLOCK,
        "**src/f.py**\n```python\n" + BLOCK + "```\n",
        "```python\nsrc/f.py\n" + BLOCK + "```",
        "File: src/f.py:\n\n" + BLOCK,
        "### src/f.py\n" + BLOCK,
        BLOCK.replace("SEARCH", "SEARCH src/f.py"),
        ("src/f.py\n" + BLOCK).replace("\n", "\r\n"),
    ],
)
def test_finds_the_block_and_its_path(text: str) -> None:
    assert parse_search_replace(text) == [("src/f.py", "a\n", "b\n")]


def test_later_blocks_go_on_in_the_same_file_and_parts_may_be_empty() -> None:
    empty = "<<<<<<< SEARCH\n=======\n>>>>>>> REPLACE\n"
    assert parse_search_replace("f\n" + BLOCK + "\n" + BLOCK + "g\n" + empty) == [("f", "a\n", "b\n"), ("f", "a\n", "b\n"), ("g", "", "")]


def test_markers_of_another_length_are_content() -> None:
    text = "f.rst\n<<<<<<<<< SEARCH\nTitle\n=======\n=========\nNew\n=======\n>>>>>>>>> REPLACE\n"
    assert parse_search_replace(text) == [("f.rst", "Title\n=======\n", "New\n=======\n")]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("nothing", "No search/replace block"),
        (BLOCK, "names no file"),
        ("f\n<<<<<<< SEARCH\na\n=======\nb\n", "cut off"),
        ("f\n<<<<<<< SEARCH\na\n" + BLOCK, "cut off"),
        ("f\n<<<<<<< SEARCH\na\n>>>>>>> REPLACE\n", "0 divider lines"),
        ("f\n<<<<<<< SEARCH\na\n=======\nb\n=======\nc\n>>>>>>> REPLACE\n", "2 divider lines"),
    ],
)
def test_malformed_blocks_are_refused(text: str, words: str) -> None:
    with pytest.raises(EditFailed) as caught:
        parse_search_replace(text)
    assert words in str(caught.value)


def test_blocks_apply_in_turn_and_create_files() -> None:
    files = {"f": b"x a\r\na\r\n"}
    text = "f\n" + BLOCK + "f\n" + BLOCK.replace("\na\n", "\nb\n").replace("\nb\n>", "\nc\n>") + "n.py\n" + BLOCK.replace("\na\n", "\n")
    assert apply_search_replace(text, files.get) == [FileChange(path="f", content=b"x a\r\nc\r\n"), FileChange(path="n.py", content=b"b\n")]


@pytest.mark.parametrize(
    ("path", "data", "kind", "words"),
    [
        ("f", b"zzz\n", EditFailed, "f: The text to replace is not in the file"),
        ("f", b"a\na\n", EditFailed, "2 times, at lines 1, 2"),
        ("q", b"a\n", EditFailed, "q: There is no such file"),
        ("f", b"a\n\0", NotText, "f: "),
        ("../f", b"a\n", UnsafePath, ".."),
    ],
)
def test_blocks_that_do_not_fit_are_refused(path: str, data: bytes, kind: type[EditError], words: str) -> None:
    with pytest.raises(kind) as caught:
        apply_search_replace("ok\n" + BLOCK + path + "\n" + BLOCK, {"ok": b"a\n", "f": data}.get)
    assert words in str(caught.value)


def test_an_empty_search_does_not_overwrite_a_file() -> None:
    with pytest.raises(EditFailed, match="exists"):
        apply_search_replace("f\n" + BLOCK.replace("\na\n", "\n"), {"f": b"a\n"}.get)


WHOLE = {
    "plain": ('<file path="f">\na\nb\n</file>', [("f", "a\nb\n")]),
    "prose and two files": ("Hi\n<file path=\"f\">\na\n</file>\nand\n<file path='g h'>\n</file>\nbye", [("f", "a\n"), ("g h", "")]),
    "closing tag in a line": ('<file path="f">\nx = "</file>" + y\n</file>\n', [("f", 'x = "</file>" + y\n')]),
    "closing tag line in the content": ('<file path="f">\n<file>\n</file>\nrest\n</file>\n', [("f", "<file>\n</file>\nrest\n")]),
    "opening tag in the content": ('<file path="f">\n<file path="x">\n</file>\n', [("f", '<file path="x">\n')]),
    "fence": ('<file path="f.py">\n```python\na\n```\n</file>', [("f.py", "a\n")]),
    "fence around all": ('```\n<file path="f.py">\na\n</file>\n```', [("f.py", "a\n")]),
    "Markdown's own fence": ('<file path="f.md">\n```sh\nmake\n```\n</file>', [("f.md", "```sh\nmake\n```\n")]),
    "one line": ('<file path="f">abc</file>', [("f", "abc")]),
    "closed at the end of a line": ('<file path="f">\na\nb</file>\n', [("f", "a\nb\n")]),
    "leading blank line": ('<file path="f">\n\na\n</file>', [("f", "\na\n")]),
    "CRLF": ('<file path="f">\r\na\r\n</file>\r\n', [("f", "a\n")]),
}


@pytest.mark.parametrize(("text", "wanted"), WHOLE.values(), ids=WHOLE.keys())
def test_finds_whole_files(text: str, wanted: list[tuple[str, str]]) -> None:
    assert parse_whole_files(text) == wanted


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("none", "No file was found"),
        ('<file path="f">\na\n', "f: the file is cut off"),
        ('<file path="f">\na\n</file>\n<file path="g">\nb', "g: the file is cut off"),
    ],
)
def test_cut_off_files_are_refused(text: str, words: str) -> None:
    with pytest.raises(EditFailed) as caught:
        parse_whole_files(text)
    assert words in str(caught.value)


def test_whole_files_keep_endings_and_bom_and_spare_binary() -> None:
    files = {"f": codecs.BOM_UTF8 + b"a\r\nb\r\n", "bin": b"\0"}
    text = '<file path="f">\na\nc\n</file>\n<file path="n">\nx\n</file>'
    assert [(change.path, change.content) for change in apply_whole_files(text, files.get)] == [
        ("f", codecs.BOM_UTF8 + b"a\r\nc\r\n"),
        ("n", b"x\n"),
    ]
    with pytest.raises(NotText, match="bin: "):
        apply_whole_files('<file path="bin">\na\n</file>', files.get)
    with pytest.raises(EditFailed, match="as it was"):
        apply_whole_files('<file path="f">\na\nb\n</file>', files.get)
