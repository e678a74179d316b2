"""Unified diffs as git, diff and models write them, applied whole or not at all."""

import codecs
import difflib
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.edits.applier import EditError, EditFailed, NotText, UnsafePath, apply_patch

BOM = codecs.BOM_UTF8
NUMBERS = "".join(f"line {number}\n" for number in range(1, 31)).encode()


def applied(diff: str, files: Mapping[str, bytes]) -> dict[str, bytes | None]:
    """The tree after the diff, as whoever writes the changes would leave it."""
    tree: dict[str, bytes | None] = dict(files)
    changes = apply_patch(diff, files.get)
    for change in changes:
        for gone in (change.renamed_from, change.path):
            if gone:
                tree.pop(gone, None)
    tree.update({change.path: change.content for change in changes if change.content is not None})
    return tree


HEAD = "--- a/f\n+++ b/f\n"
ONE_FILE = {
    "exact": (b"a\nb\nc\n", HEAD + "@@ -1,3 +1,3 @@\n a\n-b\n+x\n c\n", b"a\nx\nc\n"),
    "no prefixes": (b"a\nb\n", "--- f\n+++ f\n@@ -1,2 +1,2 @@\n a\n-b\n+x\n", b"a\nx\n"),
    "timestamps": (b"a\n", "--- f\t2024-01-02 03:04:05.0 +0100\n+++ f 2024-01-02 03:04:05\n@@ -1 +1 @@\n-a\n+b\n", b"b\n"),
    "the old name is a backup": (b"a\n", "--- f.orig\n+++ f\n@@ -1 +1 @@\n-a\n+b\n", b"b\n"),
    "only the new name": (b"a\n", "+++ b/f\n@@ -1 +1 @@\n-a\n+b\n", b"b\n"),
    "git header only": (b"a\n", "diff --git a/f b/f\n@@ -1 +1 @@\n-a\n+b\n", b"b\n"),
    "mnemonic prefixes": (b"a\n", "--- i/f\n+++ w/f\n@@ -1 +1 @@\n-a\n+b\n", b"b\n"),
    "wrong line number": (NUMBERS, HEAD + "@@ -3,2 +3,2 @@\n line 20\n-line 21\n+x\n", NUMBERS.replace(b"line 21\n", b"x\n")),
    "line number beyond the end": (b"a\nb\n", HEAD + "@@ -900,2 +900,2 @@\n a\n-b\n+x\n", b"a\nx\n"),
    "counts too low": (b"a\nb\nc\n", HEAD + "@@ -1,1 +1,1 @@\n a\n-b\n+x\n c\n", b"a\nx\nc\n"),
    "counts too high": (b"a\nb\nc\n", HEAD + "@@ -1,9 +1,9 @@\n a\n-b\n+x\n c\n", b"a\nx\nc\n"),
    "bare hunk header": (b"a\nb\nc\n", HEAD + "@@\n a\n-b\n+x\n c\n", b"a\nx\nc\n"),
    "dotted hunk header": (b"a\nb\nc\n", HEAD + "@@ ... @@\n-b\n+x\n", b"a\nx\nc\n"),
    "hunk header names a function": (
        b"def f():\n    x\ndef g():\n    x\n",
        HEAD + "@@ def g():\n-    x\n+    y\n",
        b"def f():\n    x\ndef g():\n    y\n",
    ),
    "no hunk header": (b"a\nb\nc\n", HEAD + " a\n-b\n+x\n c\n", b"a\nx\nc\n"),
    "nearest of several": (b"k\nv\n" * 9, HEAD + "@@ -10,2 +10,2 @@\n k\n-v\n+x\n", b"k\nv\n" * 4 + b"k\nx\n" + b"k\nv\n" * 4),
    "several hunks, all shifted": (
        NUMBERS,
        HEAD + "@@ -5,2 +5,3 @@\n line 2\n+x\n line 3\n@@ -23,2 +24,1 @@\n line 20\n-line 21\n",
        NUMBERS.replace(b"line 3\n", b"x\nline 3\n").replace(b"line 21\n", b""),
    ),
    "hunks out of order": (b"a\nb\nc\nd\n", HEAD + "@@\n-d\n+D\n@@\n-a\n+A\n", b"A\nb\nc\nD\n"),
    "blank context without its space": (b"a\n\nb\nc\n", HEAD + "@@ -1,4 +1,4 @@\n a\n\n-b\n+x\n c\n", b"a\n\nx\nc\n"),
    "context without its space": (b"a\nb\nc\n", HEAD + "@@\na\n-b\n+x\nc\n", b"a\nx\nc\n"),
    "fence": (b"a\n", "Here it is:\n\n```diff\n" + HEAD + "@@ -1,7 +1,7 @@\n-a\n+b\n```\nThat fixes it.\n", b"b\n"),
    "prose behind": (b"a\nb\n", HEAD + "@@ -1,5 +1,5 @@\n-a\n+x\n b\n\nThat fixes it.\n", b"x\nb\n"),
    "mail signature": (b"a\n", "Subject: x\n---\n f | 2 +-\n\n" + HEAD + "@@ -1 +1 @@\n-a\n+b\n-- \n2.39.5\n", b"b\n"),
    "removed line that looks like a header": (b"-- x\nb\n", HEAD + "@@ -1,2 +1,2 @@\n--- x\n+++ y\n b\n", b"++ y\nb\n"),
    "CRLF file": (b"a\r\nb\r\n", HEAD + "@@ -1,2 +1,3 @@\n a\n-b\n+x\n+y\n", b"a\r\nx\r\ny\r\n"),
    "CRLF diff on an LF file": (b"a\nb\n", (HEAD + "@@ -1,2 +1,2 @@\n a\n-b\n+x\n").replace("\n", "\r\n"), b"a\nx\n"),
    "CRLF only in the lines": (b"a\r\nb\r\n", HEAD + "@@ -1,2 +1,2 @@\n a\r\n-b\r\n+x\r\n", b"a\r\nx\r\n"),
    "mixed endings stay": (b"a\r\nb\nc\r\n", HEAD + "@@ -1,3 +1,4 @@\n a\n b\n+x\n c\n", b"a\r\nb\nx\nc\r\n"),
    "BOM": (BOM + b"a\nb\n", HEAD + "@@ -1,2 +1,2 @@\n-\ufeffa\n+\ufeffx\n b\n", BOM + b"x\nb\n"),
    "blanks differ": (
        b"if a:\n\tb\n\tc\n",
        HEAD + "@@ -1,3 +1,4 @@\n if a:\n     b\n-    c\n+    d\n+        e\n",
        b"if a:\n\tb\n\td\n\t\te\n",
    ),
    "similar context": (
        b"def compute_total(values):\n    return sum(values)\n",
        HEAD + "@@ -1,2 +1,2 @@\n def compute_totals(values):\n-    return sum(values)\n+    return 0\n",
        b"def compute_total(values):\n    return 0\n",
    ),
    "final newline added": (b"a", HEAD + "@@ -1 +1 @@\n-a\n\\ No newline at end of file\n+a\n", b"a\n"),
    "final newline removed": (b"a\n", HEAD + "@@ -1 +1 @@\n-a\n+a\n\\ No newline at end of file\n", b"a"),
    "final newline stays away": (b"a\nb", HEAD + "@@ -1,2 +1,2 @@\n-a\n+x\n b\n\\ No newline at end of file\n", b"x\nb"),
    "final newline not mentioned": (b"a\nb", HEAD + "@@ -2 +2,2 @@\n b\n+c\n", b"a\nb\nc"),
    "insertion without context": (b"a\nb\n", HEAD + "@@ -1,0 +2 @@\n+x\n", b"a\nx\nb\n"),
    "emptied": (b"a\n", HEAD + "@@ -1 +0,0 @@\n-a\n", b""),
}


@pytest.mark.parametrize(("before", "diff", "after"), ONE_FILE.values(), ids=ONE_FILE.keys())
def test_changes_one_file(before: bytes, diff: str, after: bytes) -> None:
    assert applied(diff, {"f": before}) == {"f": after}


GIT = "diff --git a/{0} b/{1}\n"
MOVE = "similarity index 90%\nrename from {0}\nrename to {1}\n"
TREES = {
    "new file": ({}, "--- /dev/null\n+++ b/d/n\n@@ -0,0 +1,2 @@\n+a\n+b\n", {"d/n": b"a\nb\n"}),
    "new file with a wrong count": ({}, "--- /dev/null\n+++ b/n\n@@ -0,0 +1,9 @@\n+a\n+\n+b\n", {"n": b"a\n\nb\n"}),
    "new file without a final newline": ({}, "--- /dev/null\n+++ b/n\n@@ -0,0 +1 @@\n+a\n\\ No newline at end of file\n", {"n": b"a"}),
    "new CRLF file": ({}, "--- /dev/null\n+++ b/n\n@@ -0,0 +1,2 @@\n+a\r\n+b\r\n", {"n": b"a\r\nb\r\n"}),
    "new file told by its hunk": ({}, "--- a/n\n+++ b/n\n@@ -0,0 +1 @@\n+a\n", {"n": b"a\n"}),
    "new empty file": ({}, GIT.format("n", "n") + "new file mode 100644\nindex 0000000..e69de29\n", {"n": b""}),
    "new name with spaces": ({}, GIT.format("a b", "a b") + "new file mode 100644\n", {"a b": b""}),
    "deletion": ({"f": b"a\n", "g": b"x"}, "--- a/f\n+++ /dev/null\n@@ -1 +0,0 @@\n-a\n", {"g": b"x"}),
    "deletion of binary": ({"f": b"\0"}, GIT.format("f", "f") + "deleted file mode 100644\nBinary files a/f and /dev/null differ\n", {}),
    "pure rename": ({"f": b"\0\r\n"}, GIT.format("f", "d/g") + "similarity index 100%\nrename from f\nrename to d/g\n", {"d/g": b"\0\r\n"}),
    "rename with an edit": (
        {"f": b"a\r\nb\r\n"},
        GIT.format("f", "g") + MOVE.format("f", "g") + "--- a/f\n+++ b/g\n@@ -1,2 +1,2 @@\n a\n-b\n+c\n",
        {"g": b"a\r\nc\r\n"},
    ),
    "rename told by two names": ({"f": b"a\n"}, "--- a/f\n+++ b/g\n@@ -1 +1 @@\n-a\n+b\n", {"g": b"b\n"}),
    "rename, then an edit of the new name": (
        {"f": b"a\n"},
        GIT.format("f", "g") + MOVE.format("f", "g") + "--- a/g\n+++ b/g\n--- a/g\n+++ b/g\n@@ -1 +1 @@\n-a\n+b\n",
        {"g": b"b\n"},
    ),
    "swapped names": (
        {"f": b"1", "g": b"2"},
        GIT.format("f", "g") + MOVE.format("f", "g") + GIT.format("g", "f") + MOVE.format("g", "f"),
        {"f": b"2", "g": b"1"},
    ),
    "copy": ({"f": b"a\n"}, GIT.format("f", "g") + "similarity index 100%\ncopy from f\ncopy to g\n", {"f": b"a\n", "g": b"a\n"}),
    "octal names": (
        {"nämé ☃.py": b"a\n"},
        'diff --git "a/n\\303\\244m\\303\\251 \\342\\230\\203.py" "b/n\\303\\244m\\303\\251 \\342\\230\\203.py"\n'
        '--- "a/n\\303\\244m\\303\\251 \\342\\230\\203.py"\n+++ "b/n\\303\\244m\\303\\251 \\342\\230\\203.py"\n@@ -1 +1 @@\n-a\n+b\n',
        {"nämé ☃.py": b"b\n"},
    ),
    "renamed octal name": (
        {"f": b"a"},
        'diff --git a/f "b/\\344\\270\\255"\n' + MOVE.format("f", '"\\344\\270\\255"'),
        {"中": b"a"},
    ),
    "several files": (
        {"f": b"a\n", "g": b"b\n"},
        "--- a/f\n+++ b/f\n@@ -1 +1 @@\n-a\n+x\n--- a/g\n+++ b/g\n@@ -1,4 +1,4 @@\n-b\n+y\n",
        {"f": b"x\n", "g": b"y\n"},
    ),
    "one file in two parts": (
        {"f": b"a\nb\n"},
        "--- a/f\n+++ b/f\n@@ -1 +1 @@\n-a\n+x\n--- a/f\n+++ b/f\n@@ -1,2 +1,2 @@\n x\n-b\n+y\n",
        {"f": b"x\ny\n"},
    ),
    "real folder called a": ({"a/f": b"1\n"}, "--- a/f\n+++ a/f\n@@ -1 +1 @@\n-1\n+2\n", {"a/f": b"2\n"}),
    "no prefixes in a folder called a": (
        {"a/b": b"1\n", "b": b"1\n"},
        "diff --git a/b a/b\ndeleted file mode 100644\n--- a/b\n+++ /dev/null\n@@ -1 +0,0 @@\n-1\n",
        {"b": b"1\n"},
    ),
    "prefix on both sides the same": ({"f": b"1\n"}, "--- a/f\n+++ a/f\n@@ -1 +1 @@\n-1\n+2\n", {"f": b"2\n"}),
}


@pytest.mark.parametrize(("before", "diff", "after"), TREES.values(), ids=TREES.keys())
def test_changes_a_tree(before: dict[str, bytes], diff: str, after: dict[str, bytes]) -> None:
    assert applied(diff, before) == after


def test_a_pure_rename_names_its_source_and_mode_bits_are_told() -> None:
    files = {"f": b"a\n", "s.sh": b"x\n"}
    diff = GIT.format("f", "g") + MOVE.format("f", "g") + GIT.format("s.sh", "s.sh") + "old mode 100644\nnew mode 100755\n"
    moved, marked = apply_patch(diff, files.get)
    assert (moved.path, moved.renamed_from, moved.content, moved.mode) == ("g", "f", b"a\n", None)
    assert (marked.path, marked.renamed_from, marked.content, marked.mode) == ("s.sh", None, b"x\n", 0o755)


@pytest.mark.parametrize(
    ("diff", "words"),
    [
        ("", "No file header"),
        ("I cannot do that.", "No file header"),
        ("*** Begin Patch\n*** Update File: f\n", "Begin Patch form"),
        ("@@ -1 +1 @@\n-a\n+b\n", "before any file name"),
        (HEAD, "no changed lines"),
        (HEAD + "@@ -1 +1 @@\n a\n-nowhere at all\n+b\n", "hunk 1 of 1 does not fit"),
        (HEAD + "@@\n-same\n+b\n", "at lines 3, 4"),
        (HEAD + "@@\n+b\n", "no line number"),
        (HEAD + "@@ -1 +1 @@\n-a\n+x\n@@ -2 +2 @@\n-wrong one\n+y\n", "hunk 2 of 2"),
        (HEAD + "@@ -1 +1 @@\n-a\n+a\n", "as it is"),
        ("--- a/f\n+++ b/f\n@@ -1 +1 @@\n-a\n+x\n--- a/g\n+++ b/g\n@@ -1 +1 @@\n-a\n+x\n", "g: There is no such file"),
        ("--- /dev/null\n+++ b/f\n@@ -0,0 +1 @@\n+x\n", "it exists"),
        ("--- a/f\n+++ /dev/null\n@@ -1 +0,0 @@\n-a\n", "not all of it"),
        ("--- a/q\n+++ /dev/null\n", "no such file"),
        (GIT.format("f", "f") + "index 1..2 100644\nGIT binary patch\nliteral 3\nabc\n", "binary patch"),
        ("Binary files a/f and b/f differ\n", "binary patch"),
        (GIT.format("l", "l") + "new file mode 120000\n--- /dev/null\n+++ b/l\n@@ -0,0 +1 @@\n+/etc\n", "symbolic link"),
        (GIT.format("f", "bin") + MOVE.format("f", "bin"), "it exists"),
        (GIT.format("q", "r") + MOVE.format("q", "r"), "takes this file from q"),
        ("diff --cc f\n--- a/f\n+++ b/f\n@@@ -1,1 -1,1 +1,1 @@@\n--a\n++b\n", "combined"),
        ('--- "a/\\377"\n+++ "b/\\377"\n@@ -1 +1 @@\n-a\n+b\n', "not UTF-8"),
    ],
)
def test_failures_say_what_is_wrong(diff: str, words: str) -> None:
    with pytest.raises(EditFailed) as caught:
        apply_patch(diff, {"f": b"a\nb\nsame\nsame\n", "bin": b"\0"}.get)
    assert words in str(caught.value)


def test_binary_and_unsafe_paths_are_refused() -> None:
    hunk = "@@ -1 +1 @@\n-a\n+b\n"
    with pytest.raises(NotText, match="bin: "):
        apply_patch("--- a/bin\n+++ b/bin\n" + hunk, {"bin": b"a\n\0"}.get)
    for path in ("../f", ".git/config", "x/../../f"):
        with pytest.raises(UnsafePath):
            apply_patch(f"--- a/{path}\n+++ b/{path}\n" + hunk, {}.get)
    with pytest.raises(UnsafePath):
        apply_patch("--- /dev/null\n+++ /etc/passwd\n@@ -0,0 +1 @@\n+b\n", {}.get)


def _diff(before: str, after: str, context: int) -> str:
    """`difflib`'s diff with git's word for a line that has no newline."""
    raw = difflib.unified_diff(_lines(before), _lines(after), "a/f", "b/f", n=context)
    return "".join(line if line.endswith("\n") else line + "\n\\ No newline at end of file\n" for line in raw)


def _lines(text: str) -> list[str]:
    return [line for line in text.replace("\n", "\n\0").split("\0") if line]


TEXTS = st.text(alphabet="ab+- @\\\n", max_size=60)


@given(TEXTS, TEXTS, st.integers(0, 4))
def test_an_exact_diff_gives_the_target(before: str, after: str, context: int) -> None:
    if before != after:
        assert applied(_diff(before, after, context), {"f": before.encode()}) == {"f": after.encode()}


UNIQUE = st.lists(st.integers(0, 40), unique=True, max_size=30)


@given(UNIQUE, UNIQUE, st.integers(1, 3), st.integers(-50, 50), st.booleans())
def test_a_diff_with_shifted_line_numbers_gives_the_target(
    before: list[int], after: list[int], context: int, shift: int, crlf: bool
) -> None:
    old, new = ("".join(f"value {number:03d} " + "x" * number + "\n" for number in numbers) for numbers in (before, after))
    if old == new or not old or not new:
        return
    lines = []
    for line in _diff(old, new, context).splitlines():
        start, comma, rest = line.removeprefix("@@ -").partition(",")
        lines.append(f"@@ -{max(0, int(start) + shift)}{comma}{rest}" if line.startswith("@@ -") and comma and start.isdigit() else line)
    ending = "\r\n" if crlf else "\n"
    tree = applied("\n".join(lines) + "\n", {"f": old.replace("\n", ending).encode()})
    assert tree == {"f": new.replace("\n", ending).encode()}


@given(st.text(alphabet="ab+-@ /\n\\`", max_size=120), st.binary(max_size=30))
def test_only_typed_errors_leave_apply_patch(noise: str, data: bytes) -> None:
    files = {"f": data}
    try:
        apply_patch(HEAD + "@@ -1 +1 @@\n" + noise, files.get)
    except EditError:
        assert files == {"f": data}
