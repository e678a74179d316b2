"""A text file as lines plus everything the model does not see: encoding, BOM, each line's own ending.

Invariant: `decode(data).encode() == data`, and after an edit every untouched line has its bytes unchanged.
"""

import codecs
import difflib
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from libs.edits.errors import EditFailed, NotText

SNIFF_BYTES = 8192

# UTF-32 before UTF-16: its little-endian mark begins with UTF-16's.
_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
# Control bytes that no legacy text holds: without UTF-8's structure they are the only sign of binary data.
_BINARY_BYTES = re.compile(rb"[\x00-\x07\x0e-\x19\x1c-\x1f\x7f]")
_CHINESE_PAIRS = re.compile(rb"(?:[\x00-\x7f]|[\xa1-\xf7][\xa1-\xfe])*")
_COMMON_CHINESE = re.compile(rb"[\xa1-\xa3\xb0-\xd7][\xa1-\xfe]")
_COMMON_CHINESE_SHARE = 0.9
_ALIGN_LIMIT = 1_000_000


@dataclass(frozen=True, slots=True)
class LineEdit:
    """Replace the lines `start` to `end` (from 0, `end` excluded) by `lines`."""

    start: int
    end: int
    lines: tuple[str, ...]


@dataclass(frozen=True)
class TextFile:
    """`endings[i]` ends `lines[i]`; only the last one may be empty, which means no final newline."""

    lines: tuple[str, ...]
    endings: tuple[str, ...]
    encoding: str
    bom: bytes

    @property
    def text(self) -> str:
        """What the model reads: LF at the end of each line, no BOM."""
        return "\n".join(self.lines) + ("\n" if self.final_newline and self.lines else "")

    @property
    def final_newline(self) -> bool:
        return not self.endings or self.endings[-1] != ""

    @cached_property
    def dominant_ending(self) -> str:
        counted = Counter(ending for ending in self.endings if ending)
        return counted.most_common(1)[0][0] if counted else "\n"

    def normalise(self, text: str) -> str:
        """A model's text in the form of `text`: no BOM of its own, LF for CRLF, and for a lone CR only where CR ends this file's lines."""
        text = text.replace("\r\n", "\n")
        if self.bom:
            text = text.removeprefix("\ufeff")
        return text.replace("\r", "\n") if self.dominant_ending == "\r" else text

    def encode(self) -> bytes:
        """The bytes of the file. Raises EditFailed where a new character does not exist in the file's encoding."""
        text = "".join(line + ending for line, ending in zip(self.lines, self.endings, strict=True))
        try:
            return self.bom + text.encode(self.encoding)
        except UnicodeEncodeError as error:
            bad = error.object[error.start]
            raise EditFailed(
                f"The file is {self.encoding}, which has no {bad!r}. Use other characters, or convert the file first."
            ) from None

    def edited(self, edits: Sequence[LineEdit], final_newline: bool | None = None) -> "TextFile":
        """Apply edits that do not overlap, in file order. `final_newline=None` keeps what the file has."""
        lines: list[str] = []
        endings: list[str] = []
        position = 0
        uniform = len(set(self.endings) - {""}) <= 1
        for edit in sorted(edits, key=lambda edit: (edit.start, edit.end)):
            lines += self.lines[position : edit.start]
            endings += self.endings[position : edit.start]
            lines += edit.lines
            endings += [""] * len(edit.lines) if uniform else self._kept_endings(edit)
            position = edit.end
        lines += self.lines[position:]
        endings += self.endings[position:]
        return self._finished(lines, endings, self.final_newline if final_newline is None else final_newline)

    def _kept_endings(self, edit: LineEdit) -> list[str]:
        """For each new line the ending of the old line it stands for, or an empty string."""
        endings = [""] * len(edit.lines)
        for old, new in aligned(self.lines[edit.start : edit.end], edit.lines):
            endings[new] = self.endings[edit.start + old]
        return endings

    def _finished(self, lines: list[str], endings: list[str], final_newline: bool) -> "TextFile":
        if self.bom and lines:
            lines[0] = lines[0].lstrip("\ufeff")
        if lines and lines[-1] == "" and not final_newline:
            del lines[-1], endings[-1]
            final_newline = True
        neighbour = next((ending for ending in endings if ending), self.dominant_ending)
        for index, ending in enumerate(endings):
            neighbour = endings[index] = ending or neighbour
        if endings and not final_newline:
            endings[-1] = ""
        return replace(self, lines=tuple(lines), endings=tuple(endings))


def aligned(old: Sequence[str], new: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Pairs (index in old, index in new) of lines that stand for each other: equal ones, and changed ones in order."""
    if len(old) * len(new) > _ALIGN_LIMIT:
        yield from ((index, index) for index in range(min(len(old), len(new))))
        return
    for _, old_start, old_end, new_start, new_end in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        yield from zip(range(old_start, old_end), range(new_start, new_end), strict=False)


def split_text(text: str) -> tuple[tuple[str, ...], bool]:
    """Lines of LF text and whether the last one is ended. Only LF splits, not the other separators that `splitlines` knows."""
    if not text:
        return (), True
    ended = text.endswith("\n")
    return tuple(text.removesuffix("\n").split("\n")), ended


def _with_lines(text: str, encoding: str, bom: bytes) -> TextFile:
    separator = re.compile(r"\r?\n" if "\n" in text else r"\r")
    endings = separator.findall(text)
    lines = separator.split(text)
    if lines[-1] == "":
        lines.pop()
    else:
        endings.append("")
    return TextFile(tuple(lines), tuple(endings), encoding, bom)


def _looks_chinese(data: bytes) -> bool:
    if not _CHINESE_PAIRS.fullmatch(data):
        return False
    high_bytes = sum(1 for byte in data if byte >= 0x80)
    return len(_COMMON_CHINESE.findall(data)) * 2 >= high_bytes * _COMMON_CHINESE_SHARE


def _legacy_text(data: bytes) -> tuple[str, str]:
    """Text and encoding of bytes that are neither UTF-8 nor marked. A wrong guess is safe: the bytes come back."""
    if _BINARY_BYTES.search(data):
        raise NotText("it is not valid UTF-8 and holds control bytes")
    for encoding in (("gb18030",) if _looks_chinese(data) else ()) + ("cp1252", "latin-1"):
        try:
            text = data.decode(encoding)
        except UnicodeDecodeError:
            continue
        if text.encode(encoding) == data:
            return text, encoding
    raise NotText("no known encoding gives its bytes back")


def decode(data: bytes) -> TextFile:
    """Read a whole file. Raises NotText for binary data: NUL characters, a broken marked encoding, control bytes outside of UTF-8."""
    for mark, encoding in _MARKS:
        if data.startswith(mark):
            body = data[len(mark) :]
            try:
                text = body.decode(encoding)
            except UnicodeDecodeError:
                raise NotText(f"it has the mark of {encoding} but is not valid {encoding}") from None
            if "\0" in text:
                raise NotText("it holds NUL characters")
            return _with_lines(text, encoding, mark)
    if b"\0" in data:
        raise NotText("it holds NUL bytes")
    try:
        return _with_lines(data.decode("utf-8"), "utf-8", b"")
    except UnicodeDecodeError:
        return _with_lines(*_legacy_text(data), b"")


def is_text(data: bytes) -> bool:
    """Guess from the first 8 KiB; `data` may itself be the cut beginning of a file, so a character may be cut at its end."""
    head = data[:SNIFF_BYTES]
    mark, encoding = next((pair for pair in _MARKS if head.startswith(pair[0])), (b"", "utf-8"))
    try:
        return "\0" not in codecs.getincrementaldecoder(encoding)().decode(head[len(mark) :])
    except UnicodeDecodeError:
        return not mark and not _BINARY_BYTES.search(head)
