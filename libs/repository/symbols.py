"""Names that a source file defines at its top level, and how close a text is to them. Cheap patterns, no parser.

Invariant: a pattern stays within one line, so that no file takes more than linear time.
"""

import re
from pathlib import PurePosixPath

from libs.repository.languages import language_of

_JAVASCRIPT = re.compile(
    r"^(?:export[ \t]+)?(?:default[ \t]+)?(?:(?:async[ \t]+)?function\*?[ \t]+(\w+)|(?:abstract[ \t]+)?class[ \t]+(\w+)"
    r"|(?:const|let|var)[ \t]+(\w+)[ \t]*="
    r"|(?:interface|type|enum)[ \t]+(\w+))|^(?:module\.)?exports\.(\w+)[ \t]*=",
    re.MULTILINE,
)
_JAVA = re.compile(
    r"^[ \t]{0,4}(?:(?:public|protected|private|static|final|abstract|sealed)[ \t]+)*(?:class|interface|enum|record)[ \t]+(\w+)",
    re.MULTILINE,
)
_PATTERNS = {
    "Python": re.compile(r"^(?:async[ \t]+)?(?:def|class)[ \t]+(\w+)", re.MULTILINE),
    "JavaScript": _JAVASCRIPT,
    "TypeScript": _JAVASCRIPT,
    "Go": re.compile(r"^func[ \t]+(?:\([^)\n]*\)[ \t]*)?(\w+)|^type[ \t]+(\w+)", re.MULTILINE),
    "Rust": re.compile(
        r"^(?:pub(?:\([^)\n]*\))?[ \t]+)?(?:async[ \t]+|unsafe[ \t]+|const[ \t]+)*(?:fn|struct|enum|trait|mod|type)[ \t]+(\w+)",
        re.MULTILINE,
    ),
    "Java": _JAVA,
    "Kotlin": re.compile(r"^(?:\w+[ \t]+){0,8}(?:fun|class|object|interface)[ \t]+(\w+)", re.MULTILINE),
}
_WORD = re.compile(r"[^\W\d_]+|\d+")
_CAMEL = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+")
_HAN = re.compile(r"[\u3400-\u9fff\uf900-\ufaff]+")
_COMMON = frozenset(
    re.findall(
        r"\w+",
        "the and for not with that this from are was but has have when then should does can will a an is in it of on or to as be by if no "
        "so def class function return import test tests none true false null self",
    )
)


def symbols_of(path: str, text: str) -> tuple[str, ...]:
    """Return the top-level names that a source file defines, in their order, each once."""
    pattern = _PATTERNS.get(language_of(path) or "")
    if pattern is None:
        return ()
    found = (next((group for group in match.groups() if group), "") for match in pattern.finditer(text))
    return tuple(dict.fromkeys(name for name in found if name))


def words_of(text: str) -> frozenset[str]:
    """Split a text into lower-case words: identifiers by case and underscore, Chinese into pairs of characters."""
    words: set[str] = set()
    for run in _HAN.findall(text):
        words.update(run[index : index + 2] for index in range(max(len(run) - 1, 1)))
    for word in _WORD.findall(_HAN.sub(" ", text)):
        words.add(word.lower())
        words.update(part.lower() for part in _CAMEL.findall(word))
    return frozenset(word for word in words if word not in _COMMON and (len(word) > 1 or _HAN.match(word)))


def relevance(wanted: frozenset[str], path: str, text: str | None) -> float:
    """Return how much of the wanted words a file holds; its path and its definitions weigh more than its body."""
    score = 4.0 * len(wanted & words_of(path))
    stem = PurePosixPath(path).stem.lower()
    score += 4.0 if stem in wanted else 0.0
    if text:
        score += 3.0 * len(wanted & words_of(" ".join(symbols_of(path, text))))
        score += 1.0 * len(wanted & words_of(text[:200_000]))
    return score
