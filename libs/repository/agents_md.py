"""Commands that AGENTS.md names. Prose is never taken for a command.

Taken are: fenced code blocks under a heading about set-up or tests, and lines such as "- Test: `make check`".
"""

import re
from dataclasses import dataclass

AGENTS_PATHS = ("AGENTS.md", "agents.md", "AGENT.md")

_SETUP_WORDS = r"set[ -]?up|install(?:ation|ing)?|bootstrap|dependencies|安装|環境|环境|依赖|准备|初始化"
_TEST_WORDS = r"(?:run(?:ning)? )?(?:the )?(?:unit )?test(?:s|ing)?(?: commands?| instructions| suite)?|测试|測試|单元测试|运行测试"
_SETUP_HEADING = re.compile(rf"(?:^|\b)(?:{_SETUP_WORDS})(?:\b|$)|安装|环境|依赖", re.IGNORECASE)
_TEST_HEADING = re.compile(r"\btest(?:s|ing)?\b|测试|測試", re.IGNORECASE)
_HEADING = re.compile(r"^(#{1,6})\s+(.+?)\s*#*\s*$")
_FENCE = re.compile(r"^\s*(```+|~~~+)\s*([\w+-]*)\s*$")
_SHELL_FENCES = frozenset({"", "sh", "bash", "shell", "console", "zsh", "shell-session"})
_LABELLED = re.compile(
    rf"^\s*(?:[-*+]|\d+\.)?\s*\**(?:(?P<setup>{_SETUP_WORDS})|(?P<test>{_TEST_WORDS}))\**\s*[:：]\**\s*`(?P<command>[^`]+)`\s*[.。]?\s*$",
    re.IGNORECASE,
)
_PLACEHOLDER = re.compile(r"<[\w ./-]+>|\.\.\.$|…|--watch\b")
_SHARED_STATE = re.compile(r"^(?:cd|export|source|\.|pushd|if|for|while)\s|^\w+=\S*$")


@dataclass(frozen=True)
class AgentsCommands:
    """The commands found, in the order of the file; empty when the file names none."""

    setup: tuple[str, ...] = ()
    test: tuple[str, ...] = ()


def parse_agents_md(text: str) -> AgentsCommands:
    """Find the set-up and test commands of an AGENTS.md."""
    found: dict[str, list[str]] = {"setup": [], "test": []}
    section: str | None = None
    fence: tuple[str, bool] | None = None
    block: list[str] = []
    for line in text.splitlines():
        mark = _FENCE.match(line)
        if fence is not None:
            if mark and mark.group(1).startswith(fence[0]) and not mark.group(2):
                if section and fence[1]:
                    found[section].extend(_commands(block))
                fence, block = None, []
            else:
                block.append(line)
        elif mark:
            fence = (mark.group(1), mark.group(2).lower() in _SHELL_FENCES)
        elif heading := _HEADING.match(line):
            section = _section(heading.group(2))
        elif labelled := _LABELLED.match(line):
            found["setup" if labelled["setup"] else "test"].append(labelled["command"].strip())
    return AgentsCommands(_unique(found["setup"]), _unique(found["test"]))


def _section(title: str) -> str | None:
    if _TEST_HEADING.search(title):
        return "test"
    return "setup" if _SETUP_HEADING.search(title) else None


def _commands(block: list[str]) -> list[str]:
    """Turn a code block into commands: prompts and comments go, placeholders go, lines that need each other stay together."""
    prompted = [line for line in block if line.lstrip().startswith("$ ")]
    lines = [line.lstrip()[2:] for line in prompted] if prompted else block
    joined = "\n".join(lines).replace("\\\n", " ")
    commands = [line.strip() for line in joined.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    commands = [line for line in commands if not _PLACEHOLDER.search(line)]
    if any(_SHARED_STATE.match(line) for line in commands):
        return ["set -e\n" + "\n".join(commands)]
    return commands


def _unique(commands: list[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(commands))
