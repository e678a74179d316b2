"""A letter as text and as HTML. Everything that is said is escaped, nothing is loaded from elsewhere, links are http(s) only."""

import html
import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from libs.contracts.text import clean_text

WIDTH = 78
_LINK = re.compile(r"https?://[^\s<>\"']+")
_FONT = "font-family:-apple-system,'Segoe UI','Noto Sans','PingFang SC','Microsoft YaHei',sans-serif;font-size:15px;line-height:1.5"
_BUTTON = "display:inline-block;padding:8px 18px;margin-right:12px;border-radius:6px;text-decoration:none;color:#fff"


@dataclass(frozen=True)
class Para:
    """A paragraph."""

    text: str


@dataclass(frozen=True)
class Quote:
    """Words of others, or output, as they are."""

    text: str


@dataclass(frozen=True)
class Fact:
    """A name and what it is, in one line; what is an http(s) address becomes a link."""

    name: str
    value: str


@dataclass(frozen=True)
class Button:
    """A link that acts. `tone` is `yes` or `no`."""

    label: str
    url: str
    tone: str = "yes"


Block = Para | Quote | Fact | Button


@dataclass(frozen=True)
class Letter:
    """What a mail says. `headline` and `subject` are one line each."""

    subject: str
    headline: str
    blocks: Sequence[Block]
    footer: Sequence[str] = ()


def one_line(text: str, limit: int) -> str:
    """Text in one line, control characters gone, cut with an ellipsis."""
    flat = " ".join(clean_text(text).split())
    return flat if len(flat) <= limit else f"{flat[: limit - 1]}…"


def cut(text: str, limit: int) -> str:
    """Text of at most `limit` characters, control characters gone."""
    clean = clean_text(text.replace("\r\n", "\n")).strip()
    return clean if len(clean) <= limit else f"{clean[: limit - 1]}…"


def as_text(letter: Letter) -> str:
    """The plain text of a letter."""
    parts = [_fill(letter.headline), *(_block_text(block) for block in letter.blocks)]
    footer = "\n".join(_fill(line) for line in letter.footer)
    return "\n\n".join([*parts, f"-- \n{footer}"] if footer else parts) + "\n"


def as_html(letter: Letter) -> str:
    """The HTML of a letter."""
    body = "\n".join(_block_html(block) for block in letter.blocks)
    footer = "<br>\n".join(_linked(line) for line in letter.footer)
    return (
        f'<!DOCTYPE html>\n<html><head><meta charset="utf-8"><title>{html.escape(letter.subject)}</title></head>\n<body style="{_FONT}">\n'
        f'<h2 style="font-size:18px">{html.escape(letter.headline)}</h2>\n{body}\n'
        f'<p style="color:#666;font-size:13px;border-top:1px solid #ddd;padding-top:8px">{footer}</p>\n</body></html>\n'
    )


def _block_text(block: Block) -> str:
    match block:
        case Para(text):
            return "\n".join(_fill(line) for line in text.split("\n"))
        case Quote(text):
            return "\n".join(f"| {line}" for line in text.split("\n"))
        case Fact(name, value):
            return f"{name}: {value}"
        case Button(label, url):
            return f"{label}:\n  {url}"


def _block_html(block: Block) -> str:
    match block:
        case Para(text):
            return f"<p>{_linked(text)}</p>"
        case Quote(text):
            style = "white-space:pre-wrap;border-left:3px solid #ccc;margin:0;padding:4px 12px;color:#333;font-family:inherit"
            return f'<pre style="{style}">{html.escape(text)}</pre>'
        case Fact(name, value):
            return f"<p><b>{html.escape(name)}:</b> {_linked(value)}</p>"
        case Button(label, url, tone):
            colour = "#1a7f37" if tone == "yes" else "#b42318"
            return f'<p><a href="{html.escape(url)}" style="{_BUTTON};background:{colour}">{html.escape(label)}</a></p>'


def _linked(text: str) -> str:
    """Escaped text whose http(s) addresses are links and whose line ends stay."""
    out, last = [], 0
    for found in _LINK.finditer(text):
        url = html.escape(found[0])
        out += [html.escape(text[last : found.start()]), f'<a href="{url}">{url}</a>']
        last = found.end()
    return "".join([*out, html.escape(text[last:])]).replace("\n", "<br>\n")


def _fill(line: str) -> str:
    """A line in lines of at most WIDTH; an indented one is a command, which a break would cut in two."""
    return line if line.startswith("  ") else textwrap.fill(line, WIDTH, break_long_words=False, break_on_hyphens=False)
