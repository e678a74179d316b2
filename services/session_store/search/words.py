"""How text becomes words, for the index and for the query alike. Pure.

A run of CJK characters becomes its overlapping pairs and its last character: a word of two characters is one index entry, a longer one
is a phrase. Other words lose case, width and accents and are stemmed (Snowball English). Order is kept, so phrases are found.
"""

import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import snowballstemmer  # type: ignore[import-untyped]  # it ships no types

from services.session_store.conversations.content import CJK
from services.session_store.errors import QueryError

INDEXED_CHARS = 64_000
INDEXED_WORDS = 16_000
_LONGEST = 64
_MOST_CLAUSES = 64
_COMMON = frozenset(
    """
    a about am an and are as at be but by can did do doe for from had has have he her his how i if in is it me my not of on or our she so
    that the their them there they this to us was we were what when where which who whi will with would you your
    """.split()  # noqa: SIM905 - as a list it takes eighty lines
)
"""English words that say nothing about what is meant, as they are indexed."""
_WORD = re.compile(rf"(?P<cjk>[{CJK}]+)|[^\W_{CJK}]+")
_CLAUSE = re.compile(r'"(?P<phrase>[^"]*)"|(?P<word>[^\s"]+)')


class Word(NamedTuple):
    """One index entry and the characters of the text that it stands for."""

    word: str
    start: int
    end: int


@dataclass(frozen=True)
class Clause:
    """Words that must follow each other; with `prefix` the last one only begins like that."""

    words: tuple[str, ...]
    prefix: bool = False


def cut(text: str) -> Iterator[Word]:
    """The words of a text in order."""
    for found in _WORD.finditer(text):
        if found["cjk"] is None:
            yield Word(_fold(found[0]), found.start(), found.end())
            continue
        last = found.end() - 1
        for at in range(found.start(), last):
            yield Word(text[at : at + 2], at, at + 2)
        yield Word(text[last], last, last + 1)


def indexed(text: str) -> str:
    """What the index holds of a text, separated by spaces: of its first 64,000 characters at most 16,000 words."""
    words: list[str] = []
    for word in cut(unicodedata.normalize("NFC", text[:INDEXED_CHARS])):
        words.append(word.word)
        if len(words) == INDEXED_WORDS:
            break
    return " ".join(words)


def parse(query: str) -> tuple[Clause, ...]:
    """The clauses of a query: words, "quoted phrases" and beginnings*; at most 64.

    Raises:
        QueryError: there is no word in it.
    """
    clauses: list[Clause] = []
    for found in _CLAUSE.finditer(unicodedata.normalize("NFC", query)):
        if found["phrase"] is not None:
            clauses.extend(_phrase(found["phrase"], star=False))
            continue
        words = list(_WORD.finditer(found["word"]))
        for word in words:
            clauses.extend(_phrase(word[0], star=word is words[-1] and found["word"].endswith("*")))
    unique = tuple(dict.fromkeys(clauses))[:_MOST_CLAUSES]
    if not unique:
        raise QueryError("there is no word in the query: write at least one letter, digit or character")
    return unique


def loosened(clauses: Sequence[Clause]) -> tuple[Clause, ...]:
    """For a search by any of the words: each on its own, pairs of CJK characters too, the commonest English ones left out."""
    single = (Clause((w,), prefix=c.prefix and w is c.words[-1]) for c in clauses for w in c.words if w not in _COMMON)
    return tuple(dict.fromkeys(single))[:_MOST_CLAUSES]


def _phrase(text: str, *, star: bool) -> Iterator[Clause]:
    words = list(cut(text))
    if not words:
        return
    last = words[-1]
    if last.end - last.start == 1 and re.fullmatch(f"[{CJK}]", last.word):
        # In the text the run may go on behind the last character, which makes a pair of it.
        alone = len(words) == 1 or words[-2].end != last.end
        yield Clause(tuple(w.word for w in (words if alone else words[:-1])), prefix=alone)
    elif star:
        yield Clause((*(w.word for w in words[:-1]), _plain(text[last.start : last.end])), prefix=True)
    else:
        yield Clause(tuple(w.word for w in words))


def _plain(word: str) -> str:
    word = word.lower() if word.isascii() else _without_marks(word)
    return word[:_LONGEST]


@lru_cache(maxsize=65_536)
def _fold(word: str) -> str:
    plain = _plain(word)
    return str(snowballstemmer.stemmer("english").stemWord(plain)) if plain.isascii() and plain.isalpha() and len(plain) < 32 else plain


def _without_marks(word: str) -> str:
    apart = unicodedata.normalize("NFKD", word.casefold())
    bare = "".join(c for c in apart if unicodedata.combining(c) == 0)
    return "".join(c for c in unicodedata.normalize("NFC", bare) if c.isalnum()) or "\ufffd"
