"""Where lines stand in a file: exact, then forgiving about blanks, then the one similar place.

The work is bounded: exact and blank-tolerant search are linear, the fuzzy pass scores at most 96 windows of limited size.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import gcd

from rapidfuzz import fuzz, process, utils

from libs.edits.text_file import aligned

FUZZY_THRESHOLD = 0.9
FUZZY_LEAD = 0.05
_NEAR_ENOUGH_TO_SHOW = 0.4
_FUZZY_LIMIT_CHARACTERS = 20_000
_LINE_LIMIT_CHARACTERS = 2_000
_WINDOW_LIMIT = 96
_COMMON_LINE = 50
_EXCERPT_LINES = 12
_EXCERPT_COLUMNS = 200

LineKey = Callable[[str], str]


def _same(line: str) -> str:
    return line


def _single_spaced(line: str) -> str:
    return " ".join(line.split())


# From strict to lenient; the first level that finds anything decides.
EXACT: LineKey = _same
BLANK_TOLERANT: tuple[LineKey, ...] = (str.rstrip, str.strip, _single_spaced)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A window of the file and how similar it is to the wanted lines, from 0 to 1."""

    start: int
    score: float


def find_lines(lines: Sequence[str], wanted: Sequence[str], key: LineKey) -> list[int]:
    """Every index where `wanted` stands in `lines` under `key`, overlapping ones too (Knuth–Morris–Pratt, linear)."""
    pattern = [key(line) for line in wanted]
    if not pattern or (key is not EXACT and not any(pattern)):
        return []
    fallback = _fallbacks(pattern)
    found: list[int] = []
    matched = 0
    for index, line in enumerate(lines):
        value = key(line)
        while matched and (matched == len(pattern) or value != pattern[matched]):
            matched = fallback[matched - 1]
        if value == pattern[matched]:
            matched += 1
        if matched == len(pattern):
            found.append(index - matched + 1)
    return found


def _fallbacks(pattern: Sequence[str]) -> list[int]:
    fallback = [0] * len(pattern)
    length = 0
    for index in range(1, len(pattern)):
        while length and pattern[index] != pattern[length]:
            length = fallback[length - 1]
        if pattern[index] == pattern[length]:
            length += 1
        fallback[index] = length
    return fallback


def without_overlaps(starts: Sequence[int], length: int) -> list[int]:
    kept: list[int] = []
    for start in starts:
        if not kept or start >= kept[-1] + length:
            kept.append(start)
    return kept


def similar_windows(lines: Sequence[str], wanted: Sequence[str]) -> list[Candidate]:
    """The windows of `len(wanted)` lines most similar to `wanted`, best first; indentation does not count."""
    size = len(wanted)
    target = "\n".join(line.strip() for line in wanted)
    if not target.strip() or len(target) > _FUZZY_LIMIT_CHARACTERS or size > len(lines):
        return []
    scored: list[Candidate] = []
    for start in _likely_starts(lines, wanted):
        window = "\n".join(line.strip()[:_LINE_LIMIT_CHARACTERS] for line in lines[start : start + size])
        score = fuzz.ratio(target, window[: 2 * _FUZZY_LIMIT_CHARACTERS]) / 100
        if score >= _NEAR_ENOUGH_TO_SHOW:
            scored.append(Candidate(start, score))
    return sorted(scored, key=lambda candidate: (-candidate.score, candidate.start))


def _likely_starts(lines: Sequence[str], wanted: Sequence[str]) -> list[int]:
    """Window starts voted for by equal lines that are rare in the file, and by the lines most like the longest wanted ones."""
    stripped = [line.strip()[:_LINE_LIMIT_CHARACTERS] for line in lines]
    places: dict[str, list[int]] = defaultdict(list)
    for index, line in enumerate(stripped):
        if line:
            places[line].append(index)
    votes: Counter[int] = Counter()
    for offset, line in enumerate(wanted):
        found = places.get(line.strip(), [])
        if len(found) <= _COMMON_LINE:
            votes.update(index - offset for index in found)
    longest = sorted(range(len(wanted)), key=lambda offset: -len(wanted[offset].strip()))[:3]
    for offset in longest:
        for _, _, index in process.extract(
            wanted[offset].strip(), stripped, scorer=fuzz.ratio, limit=_WINDOW_LIMIT // 3, score_cutoff=100 * _NEAR_ENOUGH_TO_SHOW
        ):
            votes[index - offset] += 1
    last = len(lines) - len(wanted)
    return [start for start, _ in votes.most_common() if 0 <= start <= last][:_WINDOW_LIMIT]


def unique_similar(candidates: Sequence[Candidate]) -> int | None:
    """The start of the best candidate when it is good enough and clearly ahead of the next one."""
    if not candidates or candidates[0].score < FUZZY_THRESHOLD:
        return None
    if len(candidates) > 1 and candidates[0].score - candidates[1].score < FUZZY_LEAD:
        return None
    return candidates[0].start


def _indentation(line: str) -> str:
    return line[: len(line) - len(line.lstrip(" \t"))]


class Reindenter:
    """Moves lines written against `wanted` to the indentation that the file has in `actual`; both have the same length."""

    def __init__(self, wanted: Sequence[str], actual: Sequence[str]) -> None:
        pairs = [(_indentation(old), _indentation(new)) for old, new in zip(wanted, actual, strict=True) if old.strip() and new.strip()]
        self._known = dict(reversed(pairs))
        self._changed = any(old != new for old, new in pairs)
        self._units = self._common_units(pairs)
        self._shift = self._common_shift(pairs)

    @staticmethod
    def _common_shift(pairs: Sequence[tuple[str, str]]) -> tuple[str, str]:
        """(prefix to remove, prefix to add) that explains every pair, or two empty strings."""
        for old, new in pairs[:1]:
            added, removed = new.removesuffix(old), old.removesuffix(new)
            if new.endswith(old) and all(other == added + base for base, other in pairs):
                return "", added
            if old.endswith(new) and all(base == removed + other for base, other in pairs):
                return removed, ""
        return "", ""

    @staticmethod
    def _common_units(pairs: Sequence[tuple[str, str]]) -> tuple[str, str]:
        """One step of indentation there and here, as four blanks and a tab; empty strings when no line shows it."""
        indented = [(old, new) for old, new in pairs if old and new]
        if not indented:
            return "", ""
        old, new = min(indented, key=lambda pair: len(pair[0]))
        steps = gcd(len(old), len(new))
        return old[: len(old) // steps], new[: len(new) // steps]

    def __call__(self, line: str) -> str:
        indentation = _indentation(line)
        if not self._changed or not line.strip():
            return line
        return self._moved(indentation) + line[len(indentation) :]

    def _moved(self, indentation: str) -> str:
        removed, added = self._shift
        if removed or added:
            return added + indentation.removeprefix(removed)
        if indentation in self._known:
            return self._known[indentation]
        base = max((old for old in self._known if indentation.startswith(old)), key=len, default=None)
        start = "" if base is None else self._known[base]
        rest = indentation[len(base or "") :]
        unit, own_unit = self._units
        if unit:
            rest = rest.replace(unit, own_unit)
        return start + rest


def fitted(wanted: Sequence[str], new: Sequence[str], actual: Sequence[str]) -> tuple[str, ...]:
    """`new`, written against `wanted`, for the file's `actual` lines: what the edit leaves alone stays as the file has it."""
    move = Reindenter(wanted, actual)
    fit = [move(line) for line in new]
    for old_index, new_index in aligned(wanted, new):
        if wanted[old_index] == new[new_index]:
            fit[new_index] = actual[old_index]
    return tuple(fit)


def excerpt(lines: Sequence[str], start: int, size: int) -> str:
    """Lines of the file with their numbers from 1, cut to a readable size."""
    shown = [
        f"{start + offset + 1:6d}\t{line[:_EXCERPT_COLUMNS]}"
        for offset, line in enumerate(lines[start : start + min(size, _EXCERPT_LINES)])
    ]
    if size > _EXCERPT_LINES:
        shown.append(f"   ...\t(to line {min(start + size, len(lines))})")
    return "\n".join(shown)


def line_numbers(starts: Sequence[int]) -> str:
    shown = ", ".join(str(start + 1) for start in starts[:20])
    return shown + (f" and {len(starts) - 20} more" if len(starts) > 20 else "")


def nearest_text(lines: Sequence[str], wanted: Sequence[str], candidates: Sequence[Candidate]) -> str:
    """For an error: the places of the file that look most like `wanted`."""
    if candidates:
        shown = without_crowd(candidates, len(wanted))
        return "The nearest lines are:\n" + "\n".join(
            f"({candidate.score:.0%} alike)\n{excerpt(lines, candidate.start, len(wanted))}" for candidate in shown
        )
    longest = max(wanted, key=lambda line: len(line.strip()), default="").strip()[:_LINE_LIMIT_CHARACTERS]
    near = process.extract(
        longest,
        [line[:_LINE_LIMIT_CHARACTERS] for line in lines],
        scorer=fuzz.partial_ratio if len(lines) <= 20_000 else fuzz.ratio,
        processor=utils.default_process,
        limit=3,
        score_cutoff=60,
    )
    if not near:
        return f"Nothing in the file ({len(lines)} lines) looks like it."
    return "The nearest lines are:\n" + "\n".join(excerpt(lines, index, 1) for _, _, index in sorted(near, key=lambda item: item[2]))


def without_crowd(candidates: Sequence[Candidate], size: int) -> list[Candidate]:
    """At most three candidates that do not overlap a better one."""
    kept: list[Candidate] = []
    for candidate in candidates:
        if all(abs(candidate.start - other.start) >= size for other in kept):
            kept.append(candidate)
    return kept[:3]
