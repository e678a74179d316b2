"""Puts the hunks of one file in place: the stated line, the nearest exact place, other blanks, the one similar place."""

from collections.abc import Sequence

from libs.edits.errors import EditFailed
from libs.edits.matching import (
    BLANK_TOLERANT,
    EXACT,
    Reindenter,
    find_lines,
    line_numbers,
    nearest_text,
    similar_windows,
    unique_similar,
)
from libs.edits.text_file import LineEdit, TextFile, decode
from libs.edits.unified_diff import Hunk


def apply_hunks(data: bytes, hunks: Sequence[Hunk]) -> bytes:
    """All hunks or none. Raises EditFailed with the number of the hunk that does not fit, or NotText."""
    file = decode(data)
    placed: list[tuple[int, int]] = []
    edits: list[LineEdit] = []
    drift = 0
    final_newline: bool | None = None
    for number, hunk in enumerate(hunks, start=1):
        wanted = tuple(_own(file, line) for line in hunk.old)
        try:
            start = _place(file, hunk, wanted, drift, placed)
        except EditFailed as error:
            raise EditFailed(f"hunk {number} of {len(hunks)} does not fit. {error}") from None
        if hunk.old_start is not None and wanted:
            drift = start - (hunk.old_start - 1)
        placed.append((start, start + len(wanted)))
        edits += _edits(file, hunk, wanted, start)
        if hunk.final_newline is not None and start + len(wanted) == len(file.lines):
            final_newline = hunk.final_newline
    return file.edited(edits, final_newline).encode()


def _own(file: TextFile, line: str) -> str:
    """A line of the diff as the file's lines are: git prints the CR of a CRLF. A new file has no endings yet and takes the diff's."""
    return file.normalise(line).removesuffix("\r") if file.lines else line


def _place(file: TextFile, hunk: Hunk, wanted: Sequence[str], drift: int, placed: Sequence[tuple[int, int]]) -> int:
    if not wanted:
        return _place_insertion(file, hunk, drift)
    for key in (EXACT, *BLANK_TOLERANT):
        found = [start for start in find_lines(file.lines, wanted, key) if _is_free(start, start + len(wanted), placed)]
        if hunk.old_open:
            found = [start for start in found if start + len(wanted) == len(file.lines)] or found
        if found:
            return _choose(file, hunk, found, drift)
    candidates = similar_windows(file.lines, wanted)
    best = unique_similar([item for item in candidates if _is_free(item.start, item.start + len(wanted), placed)])
    if best is None:
        raise EditFailed("Its unchanged and removed lines are not in the file. " + nearest_text(file.lines, wanted, candidates))
    return best


def _choose(file: TextFile, hunk: Hunk, found: Sequence[int], drift: int) -> int:
    if len(found) == 1:
        return found[0]
    if hunk.old_start is not None:
        expected = hunk.old_start - 1 + drift
        return min(found, key=lambda start: (abs(start - expected), start))
    if hunk.anchor:
        anchors = [index for index, line in enumerate(file.lines) if hunk.anchor in line]
        behind = [start for start in found if len(anchors) == 1 and start + len(hunk.old) > anchors[0]]
        if behind:
            return behind[0]
    raise EditFailed(f"Its lines occur {len(found)} times, at lines {line_numbers(found)}. Add more unchanged lines around the change.")


def _place_insertion(file: TextFile, hunk: Hunk, drift: int) -> int:
    """A hunk of new lines only stands behind the stated line; git writes it so with no context (`-U0`)."""
    if not file.lines:
        return 0
    if hunk.old_start is None:
        raise EditFailed("It has only new lines and no line number. Add the unchanged lines around the change.")
    return max(0, min(hunk.old_start + drift, len(file.lines)))


def _is_free(start: int, end: int, placed: Sequence[tuple[int, int]]) -> bool:
    return all(end <= other_start or start >= other_end for other_start, other_end in placed)


def _edits(file: TextFile, hunk: Hunk, wanted: Sequence[str], start: int) -> list[LineEdit]:
    """One edit for each run of changed lines, so that the lines between keep their bytes."""
    new_lines = tuple(_own(file, text) for tag, text in hunk.lines if tag == "+")
    actual = file.lines[start : start + len(wanted)]
    new_lines = tuple(map(Reindenter(wanted, actual), new_lines))
    edits: list[LineEdit] = []
    added: list[str] = []
    begin = position = start
    used = 0
    for tag, _ in (*hunk.lines, (" ", "")):
        if tag == "+":
            added.append(new_lines[used])
            used += 1
        elif tag == "-":
            position += 1
        else:
            if added or position > begin:
                edits.append(LineEdit(begin, position, tuple(added)))
                added = []
            position += 1
            begin = position
    return edits
