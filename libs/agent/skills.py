"""Skills: folders with a `SKILL.md` (front matter `name` and `description`, then Markdown). Only name and description are in a prompt.

Invariant: what a repository brings is data of somebody else, and never takes the place of a skill that is trusted.
"""

import logging
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from libs.agent.untrusted import wrap

log = logging.getLogger(__name__)
REPOSITORY_FOLDERS = (".agent-coder/skills", ".claude/skills", ".agents/skills")
FILE = "SKILL.md"
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,63}")
_FRONT = re.compile(r"\A\ufeff?---[ \t]*\r?\n(.*?)\r?\n---[ \t]*(?:\r?\n|\Z)", re.DOTALL)
_FIELD = re.compile(r"^([A-Za-z_-]+):[ \t]*(.*?)[ \t]*$")
_MOST = 50
_BODY_CHARACTERS = 30_000


@dataclass(frozen=True)
class Skill:
    """A skill. `trusted` is False for one that a repository brings: its text is data of somebody else."""

    name: str
    description: str
    body: str
    trusted: bool = True


def parse(text: str, trusted: bool = True) -> Skill | None:
    """A skill from the text of its file; None when the front matter has no usable name or description."""
    front = _FRONT.match(text)
    if front is None:
        return None
    fields = _fields(front[1])
    name, description = fields.get("name", ""), " ".join(fields.get("description", "").split())
    if not _NAME.fullmatch(name) or not description:
        return None
    return Skill(name, description[:1024], text[front.end() :].strip()[:_BODY_CHARACTERS], trusted)


def _fields(front: str) -> dict[str, str]:
    """The plain `key: value` lines; folded and literal values (`>`, `|`) and indented lines go on."""
    found: dict[str, str] = {}
    last = ""
    for line in front.splitlines():
        if line[:1] in (" ", "\t"):
            if last:
                found[last] = f"{found[last]} {line.strip()}".strip()
        elif match := _FIELD.match(line):
            last, value = match[1].lower(), match[2]
            quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "\"'"
            found[last] = "" if value in (">", "|", ">-", "|-") else value[1:-1] if quoted else value
    return found


def in_folder(folder: Path) -> list[Skill]:
    """The skills of a folder; a file that cannot be used is left out with a log line."""
    found = []
    for path in sorted(folder.glob(f"*/{FILE}"))[:_MOST]:
        try:
            skill = parse(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            log.warning("the skill %s cannot be read: %s", path, error)
            continue
        if skill is None:
            log.warning("the skill %s needs a name (a-z, 0-9, -) and a description in its front matter", path)
        else:
            found.append(skill)
    return found


def merged(*sources: Iterable[Skill]) -> dict[str, Skill]:
    """By name; a later source wins, but what a repository brings never takes the place of a trusted skill."""
    found: dict[str, Skill] = {}
    for source in sources:
        for skill in source:
            if skill.trusted or skill.name not in found:
                found[skill.name] = skill
    return found


def listing(skills: Mapping[str, Skill]) -> str:
    """Names and descriptions for a prompt; empty without skills."""
    if not skills:
        return ""
    own = [f"- {s.name}: {s.description}" for s in skills.values() if s.trusted]
    foreign = "\n".join(f"- {s.name}: {s.description}" for s in skills.values() if not s.trusted)
    lines = ["Skills (call load_skill with a name to read one before you use it):", *own]
    return "\n".join(lines) + (f"\n{wrap(foreign, 'skills of the repository')}" if foreign else "")


def text_of(skill: Skill) -> str:
    """What load_skill gives."""
    return skill.body if skill.trusted else wrap(skill.body, f"skill {skill.name} of the repository")
