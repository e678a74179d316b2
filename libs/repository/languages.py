"""Which language a path is written in, and whether it holds tests. Decided by names alone."""

import re
from collections import Counter
from collections.abc import Iterable
from pathlib import PurePosixPath

from libs.repository.project import Language

_EXTENSIONS = {
    "Python": "py pyi pyx",
    "JavaScript": "js cjs mjs jsx",
    "TypeScript": "ts tsx mts cts",
    "Go": "go",
    "Rust": "rs",
    "Java": "java",
    "Kotlin": "kt kts",
    "Scala": "scala",
    "C": "c h",
    "C++": "cc cpp cxx hpp hh",
    "C#": "cs",
    "Ruby": "rb",
    "PHP": "php",
    "Swift": "swift",
    "Shell": "sh bash",
    "HTML": "html htm vue svelte",
    "CSS": "css scss less",
    "SQL": "sql",
}
_LANGUAGE_OF = {extension: name for name, extensions in _EXTENSIONS.items() for extension in extensions.split()}
_VENDORED = frozenset({"node_modules", "vendor", "third_party", "dist", "build", "target", ".venv", "venv", ".git", "__pycache__"})
_TEST_FOLDERS = frozenset({"test", "tests", "__tests__", "spec", "specs", "testing"})
_TEST_NAME = re.compile(
    r"""^(?: test[_.-].* | tests?\.py | test.*\.py | .*[_.-](?:test|tests|spec)\.[cm]?[jt]sx? | (?:test|spec)\.[cm]?[jt]sx?
        | .*_(?:test|spec)\.(?:py|go|rs|rb|exs) | Test.*\.java | .*(?:Test|Tests|TestCase|IT)\.(?:java|kt|scala|cs) )$""",
    re.VERBOSE,
)
_HELPER_NAMES = frozenset({"__init__.py", "conftest.py"})


def language_of(path: str) -> str | None:
    """Return the language of a path, or None for data, prose and unknown kinds."""
    return _LANGUAGE_OF.get(PurePosixPath(path).suffix[1:].lower())


def is_vendored(path: str) -> bool:
    """Tell whether a path lies in a folder of other people's or generated code."""
    return not _VENDORED.isdisjoint(PurePosixPath(path).parts[:-1])


def count_languages(paths: Iterable[str]) -> tuple[Language, ...]:
    """Count the source files of each language, the most frequent first."""
    found = Counter(name for path in paths if not is_vendored(path) and (name := language_of(path)))
    return tuple(Language(name=name, files=count) for name, count in sorted(found.items(), key=lambda item: (-item[1], item[0])))


def is_test_path(path: str) -> bool:
    """Tell whether a path is a source file that holds tests, by its name or its folder."""
    pure = PurePosixPath(path)
    if language_of(path) is None or is_vendored(path) or pure.name in _HELPER_NAMES:
        return False
    if _TEST_NAME.match(pure.name):
        return True
    in_test_folder = not _TEST_FOLDERS.isdisjoint(pure.parts[:-1])
    return in_test_folder and language_of(path) not in {"Python", "Go", "HTML", "CSS", "SQL"}
