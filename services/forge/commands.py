"""What a comment asks the bot to do. Pure.

A command counts only in the writer's own words: not in a quotation, a code block, or a hidden comment.
"""

import re
from dataclasses import dataclass
from typing import Literal, get_args

Name = Literal["solve", "retry", "cancel", "approve", "deny"]
_COMMAND = re.compile(rf"[ ]{{0,3}}/({'|'.join(get_args(Name))})(?![A-Za-z0-9_/.-])[ \t]*", re.IGNORECASE)
_FENCE = re.compile(r"[ ]{0,3}(`{3,}|~{3,})")
_CODE = re.compile(r"`[^`\n]*`")
_HIDDEN = re.compile(r"<!--.*?(?:-->|\Z)", re.DOTALL)


@dataclass(frozen=True)
class Command:
    """`words` is the rest of the comment, which may be empty."""

    name: Name
    words: str


def command_in(comment: str, slug: str) -> Command | None:
    """The first command of a comment, or `solve` when it mentions `@slug`; None when it asks for nothing."""
    mention = _mention(slug)
    lines = _HIDDEN.sub("", comment).splitlines()
    own = list(_own_lines(lines))
    for index in own:
        line = lines[index]
        called = mention.match(line.lstrip())
        found = _COMMAND.match(line.lstrip()[called.end() :].lstrip() if called else line)
        if found:
            rest = (line.lstrip()[called.end() :].lstrip() if called else line)[found.end() :]
            return Command(_name(found[1]), "\n".join([*lines[:index], rest, *lines[index + 1 :]]).strip())
    if any(mention.search(_CODE.sub("", lines[index])) for index in own):
        return Command("solve", mention.sub("", "\n".join(lines)).strip())
    return None


def _name(text: str) -> Name:
    return next(name for name in get_args(Name) if name == text.lower())


def _mention(slug: str) -> re.Pattern[str]:
    """`@slug` as GitHub links it: logins are ASCII, so that a word in Chinese may stand right beside it."""
    return re.compile(rf"(?<![A-Za-z0-9_@/.`-])@{re.escape(slug)}(?:\[bot\])?(?![A-Za-z0-9_/-])[,:，：]?", re.IGNORECASE)


def _own_lines(lines: list[str]) -> list[int]:
    """The places of the lines outside of fenced code (CommonMark 0.31, section 4.5) and quotations."""
    found: list[int] = []
    fence = ""
    for index, line in enumerate(lines):
        opening = _FENCE.match(line)
        if fence:
            if opening and opening[1].startswith(fence) and not line[opening.end() :].strip():
                fence = ""
        elif opening:
            fence = opening[1]
        elif not line.lstrip().startswith(">"):
            found.append(index)
    return found
