"""Order and excerpts of what the index found. Pure.

BM25 (Robertson and Zaragoza 2009, k1 = 1.2, b = 0.75) over the candidates; equal scores: the newer first.
"""

import math
import unicodedata
from collections.abc import Iterable, Sequence

from services.session_store.search.words import INDEXED_CHARS, Clause, Word, cut

CANDIDATES = 300
"""The newest that match are ranked. Ranking every match of a common word costs more than anybody gets from it."""
_K1, _B = 1.2, 0.75
_BEFORE, _LENGTH = 60, 200
_OPEN, _CLOSE = "\u2068", "\u2069"


def rank(found: Sequence[tuple[int, str]], clauses: Sequence[Clause]) -> list[tuple[int, float]]:
    """(number, score) of the candidates, given as (number, indexed words), best first."""
    if not found:
        return []
    wanted = [_padded(clause) for clause in clauses]
    counts = [[text.count(one) for one in wanted] for text in (f" {words} " for _, words in found)]
    lengths = [words.count(" ") + 1 for _, words in found]
    average = sum(lengths) / len(lengths)
    weights = [_weight(len(found), sum(1 for row in counts if row[i])) for i in range(len(clauses))]
    scored = []
    for (number, _), row, length in zip(found, counts, lengths, strict=True):
        norm = _K1 * (1 - _B + _B * length / average)
        scored.append((number, sum(w * n * (_K1 + 1) / (n + norm) for w, n in zip(weights, row, strict=True))))
    return sorted(scored, key=lambda item: (-item[1], -item[0]))


def _padded(clause: Clause) -> str:
    return f" {' '.join(clause.words)}" + ("" if clause.prefix else " ")


def _weight(total: int, having: int) -> float:
    return math.log(1 + (total - having + 0.5) / (having + 0.5))


def marked(text: str, clauses: Sequence[Clause]) -> str:
    """About 200 characters around the first place where a clause is found, the words between U+2068 and U+2069."""
    text = unicodedata.normalize("NFC", text[:INDEXED_CHARS]).replace(_OPEN, "").replace(_CLOSE, "")
    spans = _spans(list(cut(text)), dict.fromkeys(clauses))
    start = max(0, spans[0][0] - _BEFORE) if spans else 0
    end = min(len(text), start + _LENGTH)
    parts, at = ["…" if start else ""], start
    for first, last in spans:
        if first < at or last > end:
            continue
        parts += [text[at:first], _OPEN, text[first:last], _CLOSE]
        at = last
    parts += [text[at:end], "…" if end < len(text) else ""]
    return " ".join("".join(parts).split())


def _spans(words: list[Word], clauses: Iterable[Clause]) -> list[tuple[int, int]]:
    texts = [word.word for word in words]
    found: list[tuple[int, int]] = []
    for clause in clauses:
        *whole, last = clause.words
        for first in _firsts(texts, clause):
            end = first + len(whole)
            if end < len(texts) and texts[first:end] == whole and (texts[end].startswith(last) if clause.prefix else texts[end] == last):
                found.append((words[first].start, _end(words[end], clause)))
    return _joined(sorted(found))


def _firsts(texts: list[str], clause: Clause) -> list[int]:
    first = clause.words[0]
    if clause.prefix and len(clause.words) == 1:
        return [i for i, text in enumerate(texts) if text.startswith(first)]
    return [i for i, text in enumerate(texts) if text == first]


def _end(word: Word, clause: Clause) -> int:
    pair = clause.prefix and len(clause.words[-1]) == 1 and word.end - word.start == 2 and not word.word.isascii()
    return word.start + 1 if pair else word.end


def _joined(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    joined: list[tuple[int, int]] = []
    for start, end in spans:
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((start, end))
    return joined
