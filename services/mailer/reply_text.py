"""The new words of a reply: what its writer typed, without quotes and signature. Answers between quoted lines are kept, in order."""

import re

from services.mailer import quotes

MAX_LINES, MAX_CHARACTERS = 20_000, 1_000_000
_SPACES = re.compile(r"[\xa0\u2000-\u200a\u202f]")
_NOTHING = re.compile(r"[\u200b-\u200f\u202a-\u202e\u2066-\u2069\ufeff\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_FIELDS_WITHIN, _CONTEXT_LINES = 8, 10


def new_words(text: str) -> str:
    """The writer's own text of a plain-text mail; empty when there are only quotes.

    Quoted lines that stand between two pieces of own text are kept when they are few: they are what the next piece answers.
    """
    return _joined(_own(_lines(text)))


def _lines(text: str) -> list[str]:
    plain = _NOTHING.sub("", text[:MAX_CHARACTERS].replace("\r\n", "\n").replace("\r", "\n"))
    return [_SPACES.sub(" ", line).rstrip() for line in plain.split("\n")[:MAX_LINES]]


def _joined(lines: list[str]) -> str:
    text = re.sub(r"\n{4,}", "\n\n\n", "\n".join(lines).strip("\n"))
    before, blank, last = text.rpartition("\n\n")
    return (before if blank and quotes.DASHED_NAME.match(last) else text).rstrip()


def _own(lines: list[str]) -> list[str]:
    own: list[str] = []
    quoted: list[str] = []  # since the last own words
    at, signed = 0, False
    while at < len(lines) and not _is_divider(lines, at):
        line = lines[at]
        end = _attribution_end(lines, at)
        if end and not _quote_follows(lines, end):
            break
        if end:
            signed = False
        elif line.lstrip().startswith(">"):
            quoted.append(line)
            signed = False  # below what is quoted, words count again
        elif _signs(lines, at):
            signed = True
        elif line and not signed:
            own.extend(_context(own, quoted))
            own.append(line)
            quoted = []
        elif (own and own[-1] != "") or not signed:
            (quoted if quoted else own).append("")
        at = end or at + 1
    return own


def _context(own: list[str], quoted: list[str]) -> list[str]:
    """The quoted lines before an answer in the middle of a mail."""
    said = [line for line in quoted if line.strip("> ")]
    if not said or not any(own):
        return [""] if quoted and any(own) else []
    return ["", *said, ""] if len(said) <= _CONTEXT_LINES else [""]


def _quote_follows(lines: list[str], at: int) -> bool:
    """Whether the next words are marked as quoted, or there are none."""
    following = next((line for line in lines[at:] if line.strip()), ">")
    return following.lstrip().startswith(">")


def _is_divider(lines: list[str], at: int) -> bool:
    """Whether everything from here on is an older mail that is not marked by `>`."""
    line = lines[at]
    if not line or line.lstrip().startswith(">"):
        return False
    return bool(quotes.DIVIDER.match(line)) or _fields(lines, at + 1 if quotes.RULE.match(line) else at)


def _fields(lines: list[str], at: int) -> bool:
    """Whether a block of header fields begins here: From with an address, or with two fields below it."""
    block = [line for line in lines[at : at + 2 * _FIELDS_WITHIN] if line.strip()][:_FIELDS_WITHIN]
    if not block or not quotes.HEADER_FROM.match(block[0]):
        return False
    others = sum(1 for line in block[1:] if quotes.HEADER_OTHER.match(line))
    return others >= (1 if "@" in block[0] else 2)


def _ends_in_list(lines: list[str], at: int) -> bool:
    """Whether this rule is the foot that a mailing list adds: few lines follow, a link among them."""
    rest = [line for line in lines[at + 1 : at + 40] if line.strip()]
    return len(lines) - at <= 40 and len(rest) <= 6 and any("://" in line for line in rest)


def _attribution_end(lines: list[str], at: int) -> int:
    """The line after "On … wrote:" that begins here and takes up to four lines; 0 when there is none, or one begins further down."""
    for end in range(at + 1, min(at + 5, len(lines) + 1)):
        part = lines[end - 1].strip()
        if not part or part.startswith(">"):
            return 0
        if part[-1] in quotes.LAST_LETTERS and _introduces(lines[at:end]):
            return 0 if any(_introduces(lines[later:end]) for later in range(at + 1, end)) else end
    return 0


def _introduces(lines: list[str]) -> bool:
    joined = " ".join(line.strip() for line in lines)
    return len(joined) <= 600 and bool(quotes.ATTRIBUTION.match(joined))


def _signs(lines: list[str], at: int) -> bool:
    return bool(quotes.SIGNATURE.match(lines[at])) or (bool(quotes.MAILING_LIST.match(lines[at])) and _ends_in_list(lines, at))
