"""Paths that a model may name."""

import pytest

from libs.edits.applier import UnsafePath, check_path


@pytest.mark.parametrize(
    ("path", "normal"),
    [
        ("a.py", "a.py"),
        ("./src//x/./a.py", "src/x/a.py"),
        ("nämé ☃.py", "nämé ☃.py"),
        ("src/中文.py", "src/中文.py"),
        (".gitignore", ".gitignore"),
        (".github/workflows/x.yml", ".github/workflows/x.yml"),
        ("a..b/c", "a..b/c"),
        ("dir/", "dir"),
        ("n" * 255, "n" * 255),
    ],
)
def test_safe_paths_are_normalised(path: str, normal: str) -> None:
    assert check_path(path) == normal


@pytest.mark.parametrize(
    "path",
    [
        "",
        ".",
        "./",
        "/",
        "/etc/passwd",
        "..",
        "a/../b",
        "../x",
        "a\0b",
        ".git",
        ".git/config",
        "sub/.GIT/hooks/x",
        ".git./x",
        ".git /x",
        "git~1/x",
        ".g\u200cit/config",
        ".git::$INDEX_ALLOCATION/x",
        "n" * 256,
        "中" * 86,
        "/".join(["abcdefg"] * 513),
        "bad\udcff",
    ],
)
def test_unsafe_paths_are_refused(path: str) -> None:
    with pytest.raises(UnsafePath):
        check_path(path)
