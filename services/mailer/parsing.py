"""One raw message (RFC 5322, RFC 2045) cut to what is used. The work is bounded whatever the bytes are: sizes, depth and parts are counted
while the structure is read, and headers are read only where they are asked for.
"""

import binascii
import mimetypes
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from email.header import decode_header
from email.message import Message
from email.parser import BytesHeaderParser
from email.policy import compat32

from services.mailer.charsets import decode

MAX_HEAD_BYTES, MAX_PART_HEAD_BYTES, MAX_HEADERS, MAX_DEPTH, MAX_PARTS = 256 * 1024, 64 * 1024, 500, 20, 200
MAX_TEXT_BYTES, MAX_HEADER_CHARACTERS, MAX_PARAMETERS = 1024 * 1024, 8_000, 100
_STRUCTURE = ("Content-Type", "Content-Disposition", "Content-Transfer-Encoding")
_ONCE = ("From", "Message-ID", "Subject", "Date", *_STRUCTURE)
_BLANK_LINE = re.compile(rb"(?:\A|\r?\n)\r?\n")
_ADDRESS = r"[^\s@<>\",;:()\[\]\\]{1,64}@[^\s@<>\",;:()\[\]\\]{1,255}"
_ONE_ADDRESS = re.compile(rf'\s*(?:(?:"(?:[^"\\]|\\.)*"|[^<>@",;()\\]){{0,500}}<\s*({_ADDRESS})\s*>|({_ADDRESS}))\s*(?:\([^()]*\)\s*)?')
_MESSAGE_ID = re.compile(r"<[^<>\s]{1,990}>")
_UNSAFE = re.compile(r"[\x00-\x1f\x7f\u200b-\u200f\u202a-\u202e\u2066-\u2069\ufeff]+")


class Unreadable(Exception):
    """A message that is not read; the text says why."""


@dataclass(frozen=True)
class File:
    """A part that is no text of the message: its name as the sender wrote it, cleaned, its media type and bytes."""

    name: str
    media_type: str
    content: bytes


@dataclass(frozen=True)
class Mail:
    """What was read. `plain` and `html` are the text parts of each kind, decoded; `files` the others."""

    head: Message
    plain: str = ""
    html: str = ""
    files: tuple[File, ...] = ()
    types: frozenset[str] = field(default_factory=frozenset)

    def all(self, name: str) -> list[str]:
        """The values of a header as they stand, unfolded, each cut at 8,000 characters."""
        return [_unfold(str(value)) for value in self.head.get_all(name, [])[:50]]

    def first(self, name: str) -> str:
        """The first value of a header as it stands; empty when there is none."""
        return next(iter(self.all(name)), "")

    def words(self, name: str) -> str:
        """A header for people: encoded words read (RFC 2047), control characters out."""
        return clean(read_words(self.first(name)))

    @property
    def sender(self) -> str | None:
        """The one address of From, in small letters; None when there is none, more than one, or it can be read in two ways."""
        fields = self.all("From")
        found = _ONE_ADDRESS.fullmatch(fields[0]) if len(fields) == 1 else None
        return (found[1] or found[2]).lower() if found else None

    @property
    def message_id(self) -> str | None:
        """The Message-ID with its brackets; None when there is none, or more than one."""
        found = [m for value in self.all("Message-ID") for m in _MESSAGE_ID.findall(value)]
        return found[0] if len(found) == 1 else None

    @property
    def twice(self) -> str | None:
        """A header that decides something and stands there again (RFC 5322, 3.6): a signature covers only one of them."""
        return next((name for name in _ONCE if len(self.head.get_all(name, [])) > 1), None)

    @property
    def references(self) -> tuple[str, ...]:
        """The message ids of References and In-Reply-To, oldest first, the last fifty."""
        found = [m for name in ("References", "In-Reply-To") for value in self.all(name) for m in _MESSAGE_ID.findall(value)]
        return tuple(dict.fromkeys(found))[-50:]


def parse(raw: bytes) -> Mail:
    """Read a message.

    Raises:
        Unreadable: it is larger, deeper or has more parts than is read, or is written in UTF-7.
    """
    end = _BLANK_LINE.search(raw, 0, MAX_HEAD_BYTES + 4)
    if end is None and len(raw) > MAX_HEAD_BYTES:
        raise Unreadable(f"the headers are larger than {MAX_HEAD_BYTES // 1024} KB")
    head = _head(raw[: end.start() if end else len(raw)], b"message")
    plain: list[str] = []
    html: list[str] = []
    files: list[File] = []
    types = {head.get_content_type()}
    room = {"plain": MAX_TEXT_BYTES, "html": MAX_TEXT_BYTES}
    for part, body in _leaves(head, raw[end.end() :] if end else b"", 0, [MAX_PARTS]):
        kind = part.get_content_type()
        types.add(kind)
        name = file_name(part)
        if kind in ("text/plain", "text/html") and not name and part.get_content_disposition() != "attachment":
            text = _text(part, body[: 2 * MAX_TEXT_BYTES], room, kind.removeprefix("text/"))
            (plain if kind == "text/plain" else html).append(text)
        else:
            files.append(File(name or _made_up(kind, len(files) + 1), kind, _content(part, body)))
    return Mail(head, "\n".join(plain), "\n".join(html), tuple(files), frozenset(types))


def _head(block: bytes, what: bytes) -> Message:
    if block.count(b"\n") > 10 * MAX_HEADERS:
        raise Unreadable("there are too many header lines")
    message = BytesHeaderParser(policy=compat32).parsebytes(block + b"\r\n\r\n")
    if len(message.keys()) > MAX_HEADERS:
        raise Unreadable(f"a {what.decode()} has more than {MAX_HEADERS} headers")
    for value in (str(value) for name in _STRUCTURE for value in message.get_all(name, [])):
        if len(value) > MAX_HEADER_CHARACTERS or value.count(";") > MAX_PARAMETERS:  # the email package reads them in quadratic time
            raise Unreadable("a header that tells the structure is too long, or has too many parameters")
    return message


def _leaves(part: Message, body: bytes, depth: int, left: list[int]) -> Iterator[tuple[Message, bytes]]:
    """The parts that hold no others, in order. `left` is how many parts may still be met."""
    boundary = _parameter(part, "boundary")
    if part.get_content_maintype() != "multipart" or not boundary:
        yield part, body
        return
    if depth >= MAX_DEPTH:
        raise Unreadable(f"parts are nested deeper than {MAX_DEPTH}")
    found = False
    for piece in _pieces(body, boundary.encode("utf-8", "surrogateescape"), left):
        found = True
        end = _BLANK_LINE.search(piece, 0, MAX_PART_HEAD_BYTES + 4)
        if end is None and len(piece) > MAX_PART_HEAD_BYTES:
            raise Unreadable(f"the headers of a part are larger than {MAX_PART_HEAD_BYTES // 1024} KB")
        inner = _head(piece[: end.start()] if end else b"", b"part")
        yield from _leaves(inner, piece[end.end() :] if end else piece, depth + 1, left)
    if not found and body.strip():
        yield _head(b"Content-Type: text/plain", b"part"), body  # its delimiter is nowhere: what is there is shown


def _pieces(body: bytes, boundary: bytes, left: list[int]) -> Iterator[bytes]:
    """What stands between the delimiter lines (RFC 2046, 5.1.1); a missing last one ends with the body."""
    delimiter = re.compile(rb"(?:\A|\r?\n)--" + re.escape(boundary) + rb"(--)?[ \t]*(?=\r?\n|\Z)")
    start: int | None = None
    for found in delimiter.finditer(body):
        if start is not None:
            yield body[start : found.start()]
        if found[1]:
            return
        left[0] -= 1
        if left[0] < 0:
            raise Unreadable(f"there are more than {MAX_PARTS} parts")
        start = found.end() + (2 if body.startswith(b"\r\n", found.end()) else 1)
    if start is not None:
        yield body[start:]


def _parameter(part: Message, name: str) -> str:
    try:
        value = part.get_param(name, "")
    except (ValueError, IndexError, LookupError):  # broken RFC 2231 continuations
        return ""
    if isinstance(value, tuple):
        return decode(value[2].encode("utf-8", "surrogateescape"), value[0] or "")
    return str(value)[:1000].rstrip()


def _content(part: Message, body: bytes) -> bytes:
    """The bytes of a part without its transfer encoding; what is broken is read as far as it can be."""
    part.set_payload(body.decode("ascii", "surrogateescape"))
    try:
        content = part.get_payload(decode=True)
    except (ValueError, LookupError, binascii.Error):
        return body
    return content if isinstance(content, bytes) else body


def _text(part: Message, body: bytes, room: dict[str, int], kind: str) -> str:
    content = _content(part, body)[: room[kind]]
    room[kind] -= len(content)
    charset = _parameter(part, "charset")
    if charset.lower().replace("_", "-") in ("utf-7", "utf7", "unicode-1-1-utf-7"):
        raise Unreadable("text in UTF-7 is not read, because it hides what it says; send UTF-8")
    return decode(content, charset)


def file_name(part: Message) -> str:
    """The name of a part, from Content-Disposition or Content-Type (RFC 2231, or RFC 2047 as many write it), its last component only."""
    name = ""
    for header, key in (("content-disposition", "filename"), ("content-type", "name")):
        try:
            value = part.get_param(key, "", header)
        except (ValueError, IndexError, LookupError):
            continue
        if isinstance(value, tuple):
            name = decode(value[2].encode("latin-1", "replace"), value[0] or "")
        else:
            name = read_words(_unfold(str(value)))
        if name:
            break
    return clean(re.split(r"[/\\]", name)[-1]).strip(". ")[-200:]


def _made_up(kind: str, number: int) -> str:
    return f"part-{number}{mimetypes.guess_extension(kind) or '.bin'}"


def read_words(text: str) -> str:
    """A header value with its encoded words read (RFC 2047); one that is broken is left as it stands."""
    try:
        pieces = decode_header(text[:MAX_HEADER_CHARACTERS])
    except (ValueError, binascii.Error, LookupError):
        return text[:MAX_HEADER_CHARACTERS]
    return "".join(decode(p, charset or "") if isinstance(p, bytes) else p for p, charset in pieces)


def clean(text: str) -> str:
    """One line that can be shown: no control, no direction and no zero-width characters, no halves of characters."""
    whole = text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    return _UNSAFE.sub(" ", whole).strip()


def _unfold(value: str) -> str:
    return re.sub(r"\r?\n(?=[ \t])|\r|\n", "", value[: 2 * MAX_HEADER_CHARACTERS]).strip()[:MAX_HEADER_CHARACTERS]
