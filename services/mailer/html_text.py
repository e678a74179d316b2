"""HTML of a mail as plain text that looks like what a mail program would have sent beside it: quotes begin with `>`, so that one
reading of quotes serves both. Signatures that the mail program marked are left out, and so is what is not shown.
"""

import re
from dataclasses import dataclass, field
from html import unescape

from selectolax.lexbor import LexborHTMLParser, LexborNode

DIVIDER = "-----Original Message-----"
MAX_DEPTH, MAX_OPEN, MAX_NODES = 200, 400, 2_000_000
_HIDDEN = {"script", "style", "head", "title", "template", "noscript", "object", "svg", "math", "select", "textarea", "iframe", "-comment"}
_BLOCKS = {
    "p",
    "div",
    "tr",
    "table",
    "ul",
    "ol",
    "pre",
    "h1",
    "h2",
    "h3",
    "h4",
    "h5",
    "h6",
    "section",
    "article",
    "header",
    "footer",
    "dl",
    "dt",
}
_SIGNATURES = re.compile(r"gmail_signature|moz-signature|^Signature$|AppleMailSignature|ms-outlook-mobile-signature", re.IGNORECASE)
_FORWARDS = re.compile(r"divRplyFwdMsg|^appendonsend$|yahoo_quoted|OLK_SRC_BODY_SECTION|^zwchr$|stopSpelling", re.IGNORECASE)
_TAG = re.compile(r"<(/?)([a-zA-Z][a-zA-Z0-9]{0,20})")
_CLOSED_BY_OTHERS = {"p", "li", "td", "th", "tr", "dt", "dd", "option", "html", "body", "head", "tbody", "thead", "tfoot"}
_VOID = {"br", "hr", "img", "input", "meta", "link", "col", "area", "base", "wbr", "source", "embed"}
_FORMATTING = {"a", "b", "big", "code", "em", "font", "i", "nobr", "s", "small", "strike", "strong", "tt", "u"}
_RULE = re.compile(r"border-?top\s*:\s*solid|border:\s*none\s*;\s*border-top", re.IGNORECASE)
_HEADER_LINE = re.compile(r"\s*(From|Von|De|Da|Van|发件人|寄件者|差出人|보낸 사람|От)\s*[:：]", re.IGNORECASE)


@dataclass
class _Writer:
    lines: list[str] = field(default_factory=list)
    line: str = ""
    depth: int = 0
    pre: int = 0

    def text(self, text: str) -> None:
        if self.pre:
            first, *others = text.split("\n")
            self.line += first
            for other in others:
                self.end_line()
                self.line = other
            return
        words = re.sub(r"[ \t\r\n\f]+", " ", text)
        self.line += words.lstrip(" ") if self.line == "" or self.line.endswith(" ") else words

    def end_line(self) -> None:
        self.lines.append(("> " * self.depth + self.line.rstrip()).rstrip())
        self.line = ""

    def block(self) -> None:
        if self.line.strip():
            self.end_line()
        self.line = ""

    def paragraph(self) -> None:
        self.block()
        if self.lines and self.lines[-1].strip("> "):
            self.end_line()


def html_to_text(html: str) -> str:
    """The text of an HTML document, blocks on lines of their own, links with their address. What is nested deeper than 200 is left out."""
    if not _is_tame(html):
        return unescape(re.sub(r"<[^<>]*>", " ", html))
    writer = _Writer()
    root = LexborHTMLParser(html).body
    node, depth = root, 0
    while node is not None:
        inner = node.child if depth < MAX_DEPTH and _enter(writer, node) else None
        if inner is not None:
            node, depth = inner, depth + 1
            continue
        while node is not None:
            _leave(writer, node)
            if node.next is not None and depth > 0:
                node = node.next
                break
            node, depth = (node.parent, depth - 1) if depth > 0 else (None, 0)
    writer.block()
    return "\n".join(writer.lines).replace("\xa0", " ")


def _is_tame(html: str) -> bool:
    """Whether the tree can be built in bounded work: HTML's own rules take quadratic time for deep nesting, and copy an open `<b>`
    into each paragraph that follows (HTML Living Standard, 13.2.4.3).
    """
    opened = formatting = most_formatting = 0
    for tags, found in enumerate(_TAG.finditer(html), 1):
        tag, step = found[2].lower(), -1 if found[1] else 1
        if tag in _FORMATTING:
            formatting = max(0, formatting + step)
            most_formatting = max(most_formatting, formatting)
        if tag not in _CLOSED_BY_OTHERS and tag not in _VOID:
            opened = max(0, opened + step)
        if opened > MAX_OPEN or tags * most_formatting > MAX_NODES:
            return False
    return True


def _enter(writer: _Writer, node: LexborNode) -> bool:
    """Write how a node begins; whether what is in it is wanted."""
    tag = node.tag or ""
    if tag == "-text":
        writer.text(node.text_content or "")
        return False
    if tag in _HIDDEN or any(map(_SIGNATURES.search, _marks(node))):
        return False
    if tag == "br":
        writer.end_line()
    elif tag == "blockquote":
        writer.block()
        writer.depth += 1
    elif tag == "li":
        writer.block()
        writer.line = "- "
    elif tag in _BLOCKS or tag == "hr":
        (writer.paragraph if tag == "p" else writer.block)()
        writer.pre += tag == "pre"
    elif tag in ("td", "th") and writer.line.strip():
        writer.text(" ")
    if any(map(_FORWARDS.search, _marks(node))) or (tag == "div" and _is_forward_header(node)):
        writer.block()
        writer.lines.append(DIVIDER)
    return True


def _leave(writer: _Writer, node: LexborNode) -> None:
    tag = node.tag or ""
    if tag == "blockquote":
        writer.block()
        writer.depth = max(0, writer.depth - 1)
    elif tag == "a":
        _address(writer, node)
    elif tag in _BLOCKS or tag == "li":
        (writer.paragraph if tag in ("p", "table") else writer.block)()
        writer.pre = max(0, writer.pre - (tag == "pre"))


def _address(writer: _Writer, node: LexborNode) -> None:
    href = (node.attributes.get("href") or "").strip()[:2000]
    if href.startswith(("http://", "https://")):
        shown = (node.text(deep=True) or "").strip()
        if shown and shown.rstrip("/") not in (href.rstrip("/"), href.rstrip("/").partition("://")[2]):
            writer.text(f" ({href})")


def _marks(node: LexborNode) -> tuple[str, str]:
    return node.attributes.get("id") or "", node.attributes.get("class") or ""


def _is_forward_header(node: LexborNode) -> bool:
    """Outlook's box above what is quoted: a line on top, then From, Sent, To."""
    style = node.attributes.get("style") or ""
    return bool(_RULE.search(style)) and bool(_HEADER_LINE.match((node.text(deep=True) or "")[:200]))
