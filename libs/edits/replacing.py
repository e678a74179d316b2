"""Replace a piece of text in a file, or its whole text, keeping all that the model does not see.

No match, or more than one: EditFailed with the lines that come near; the caller's bytes are never touched.
"""

import re
from collections.abc import Sequence

from libs.edits.errors import EditFailed
from libs.edits.matching import (
    BLANK_TOLERANT,
    EXACT,
    LineKey,
    find_lines,
    fitted,
    line_numbers,
    nearest_text,
    similar_windows,
    unique_similar,
    without_overlaps,
)
from libs.edits.text_file import LineEdit, TextFile, decode, split_text

# How `read` numbers lines, and the common variants that models write from memory.
_NUMBERED = re.compile(r"^\s*(\d+)(?:\t|→|\s?\|\s?|: )")


def replace(data: bytes, old: str, new: str, replace_all: bool = False) -> bytes:
    """Replace the one occurrence of `old` by `new`, or all of them; the new bytes of the file.

    Tried in this order: exact text, whole lines with other blanks or indentation, whole lines after stripping line numbers,
    the one similar place. Raises EditFailed or NotText.
    """
    file = decode(data)
    old, new = _checked(file.normalise(old), file.normalise(new))
    text = file.text
    count = text.count(old)
    if count == 1 or (count and replace_all):
        return _replace_exact(file, text, old, new).encode()
    if count:
        raise EditFailed(_several([text.count("\n", 0, start) for start in _occurrences(text, old)]))
    return _replace_lines(file, old, new, replace_all, levels=BLANK_TOLERANT).encode()


def replace_block(data: bytes, old: str, new: str) -> bytes:
    """Like `replace` for a search/replace block: `old` stands for whole lines, never for the end of a longer line."""
    file = decode(data)
    old, new = _checked(file.normalise(old), file.normalise(new))
    return _replace_lines(file, old, new, replace_all=False, levels=(EXACT, *BLANK_TOLERANT)).encode()


def rewrite(data: bytes | None, content: str) -> bytes:
    """The whole file replaced by `content`; an existing file keeps its encoding, BOM and line endings. Raises NotText."""
    file = decode(data or b"")
    lines, ended = split_text(file.normalise(content) if data else content)
    if not data:
        return TextFile(lines, ("\n",) * len(lines), "utf-8", b"").edited((), ended).encode()
    return file.edited([LineEdit(0, len(file.lines), lines)], ended).encode()


def _checked(old: str, new: str) -> tuple[str, str]:
    if not old:
        raise EditFailed("The text to replace is empty. Give the exact lines to replace, or write the whole file.")
    if old == new:
        raise EditFailed("The new text equals the old text, so there is nothing to change. Give the changed text as the new one.")
    return old, new


def _several(lines: Sequence[int]) -> str:
    return (
        f"The text occurs {len(lines)} times, at lines {line_numbers(lines)}. "
        "Add the lines around it until it is unique, or ask for all of them to be replaced."
    )


def _occurrences(text: str, old: str) -> list[int]:
    return [match.start() for match in re.finditer(re.escape(old), text)]


def _replace_exact(file: TextFile, text: str, old: str, new: str) -> TextFile:
    """Replace every occurrence. Occurrences that share a line become one edit of that line."""
    spans: list[tuple[int, int]] = []
    for start in _occurrences(text, old):
        if spans and start + len(old) < spans[-1][1]:
            continue
        line_start = text.rfind("\n", 0, start) + 1
        newline = text.find("\n", start + len(old))
        line_end = len(text) if newline < 0 else newline + 1
        if spans and line_start < spans[-1][1]:
            spans[-1] = (spans[-1][0], max(line_end, spans[-1][1]))
        else:
            spans.append((line_start, line_end))
    edits = []
    line, position = 0, 0
    for start, end in spans:
        line += text.count("\n", position, start)
        size = len(split_text(text[start:end])[0])
        edits.append(LineEdit(line, line + size, split_text(text[start:end].replace(old, new))[0]))
        line, position = line + text.count("\n", start, end), end
    return file.edited(edits, final_newline=split_text(text.replace(old, new))[1])


def _replace_lines(file: TextFile, old: str, new: str, replace_all: bool, levels: Sequence[LineKey]) -> TextFile:
    wanted, new_lines = _as_lines(old, new)
    starts = _find(file, wanted, levels)
    if not starts and (bare := _without_numbers(wanted, new_lines)):
        starts = _find(file, bare[0], (EXACT, *BLANK_TOLERANT))
        wanted, new_lines = bare if starts else (wanted, new_lines)
    starts = without_overlaps(starts, len(wanted))
    if len(starts) > 1 and not replace_all:
        raise EditFailed(_several(starts))
    if not starts:
        candidates = similar_windows(file.lines, wanted)
        best = unique_similar(candidates)
        if best is None:
            raise EditFailed("The text to replace is not in the file. " + nearest_text(file.lines, wanted, candidates))
        starts = [best]
    size = len(wanted)
    return file.edited([LineEdit(at, at + size, fitted(wanted, new_lines, file.lines[at : at + size])) for at in starts])


def _find(file: TextFile, wanted: Sequence[str], levels: Sequence[LineKey]) -> list[int]:
    for key in levels:
        if starts := find_lines(file.lines, wanted, key):
            return starts
    return []


def _as_lines(old: str, new: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Both as whole lines; an `old` without its last newline leaves an empty line when `new` is empty."""
    wanted = split_text(old)[0]
    if old.endswith("\n"):
        return wanted, split_text(new)[0]
    return wanted, tuple(new.split("\n"))


def _without_numbers(wanted: Sequence[str], new: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
    """Both texts without the line numbers of a `read` result, when every wanted line has one and they count up by one."""
    found = [_NUMBERED.match(line) for line in wanted]
    numbers = [int(match[1]) for match in found if match]
    if len(numbers) != len(wanted) or numbers != list(range(numbers[0], numbers[0] + len(numbers))):
        return None
    bare = tuple(line[match.end() :] for line, match in zip(wanted, found, strict=True) if match)
    if all(_NUMBERED.match(line) for line in new):
        new = [_NUMBERED.sub("", line) for line in new]
    return bare, tuple(new)
