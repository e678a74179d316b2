"""A known good change, told the way a model tells it: as a plan, whole files, search/replace blocks, a unified diff or tool calls. Pure."""

import difflib
import json
import re
from collections.abc import Mapping

from libs.contracts.inference import ToolDefinition
from libs.contracts.run import Plan, PlanStep
from services.inference.domain import RawToolCall

Texts = Mapping[str, str]


def plan_for(new: Texts) -> Plan:
    """A valid plan that names every file of the change, 50 a step, five steps at most."""
    paths = sorted(new)
    groups = [tuple(paths[start : start + 50]) for start in range(0, len(paths), 50)][:5]
    steps = tuple(
        PlanStep(title=f"Change {', '.join(group)}"[:300], detail="Make the change that the issue asks for.", files=group)
        for group in groups
    )
    return Plan(summary="The reference change", steps=steps)


def as_plan(new: Texts, tools: tuple[ToolDefinition, ...]) -> tuple[str, tuple[RawToolCall, ...]]:
    """The plan as JSON text, or as a call of the offered tool that takes `steps`."""
    plan = plan_for(new).model_dump(mode="json")
    for tool in tools:
        if "steps" in tool.parameters.get("properties", {}):
            return "", (RawToolCall(name=tool.name, arguments=plan),)
    return json.dumps(plan, ensure_ascii=False), ()


def as_whole_files(new: Texts) -> str:
    """`<file path="…">` blocks."""
    return "\n".join(f'<file path="{path}">\n{_closed(text)}</file>' for path, text in sorted(new.items()))


def as_tool_calls(old: Texts, new: Texts, tools: tuple[ToolDefinition, ...], turn: int) -> tuple[RawToolCall, ...]:
    """Turn 0: an `edit` call for each changed place of a file that exists, a `write` call for a new one; then `done`."""
    offered = {tool.name for tool in tools}
    if turn > 0:
        return (RawToolCall(name="done", arguments={"summary": "The reference change was made."}),) if "done" in offered else ()
    calls: list[RawToolCall] = []
    for path, text in sorted(new.items()):
        if path in old and "edit" in offered:
            pairs = changed_places(old[path], text)
            calls += [RawToolCall(name="edit", arguments={"path": path, "old": before, "new": after}) for before, after in pairs]
        else:
            calls.append(RawToolCall(name="write", arguments={"path": path, "content": text}))
    return tuple(calls)


def as_search_replace(old: Texts, new: Texts) -> str:
    """Search/replace blocks, each under its file's name; an empty SEARCH part creates a file."""
    blocks: list[str] = []
    for path, text in sorted(new.items()):
        pairs = changed_places(old[path], text) if path in old else [("", text)]
        for before, after in pairs:
            size = _marker_size(before + after)
            search, divider, end = "<" * size + " SEARCH", "=" * size, ">" * size + " REPLACE"
            blocks.append(f"{path}\n{search}\n{_closed(before)}{divider}\n{_closed(after)}{end}")
    return "\n\n".join(blocks)


def _marker_size(text: str) -> int:
    """A marker length from 5 to 9 that no line of the text has."""
    taken = {len(found) for found in re.findall(r"^(<{5,9}|={5,9}|>{5,9})", text, re.MULTILINE)}
    return next((size for size in (7, 6, 8, 9, 5) if size not in taken), 7)


def as_unified_diff(old: Texts, new: Texts) -> str:
    """One unified diff over all files, as `git diff` writes it."""
    parts: list[str] = []
    for path, text in sorted(new.items()):
        before = old.get(path)
        source = f"a/{path}" if before is not None else "/dev/null"
        lines = difflib.unified_diff(_lines(before or ""), _lines(text), source, f"b/{path}")
        parts += [line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines]
    return "".join(parts)


def changed_places(old: str, new: str) -> list[tuple[str, str]]:
    """(old, new) pieces that turn one text into the other when they are replaced in order; each old piece is unique at its turn."""
    before, after = _lines(old), _lines(new)
    for context in (3, 8, 20, 60):
        pairs: list[tuple[str, str]] = []
        text = old
        for group in difflib.SequenceMatcher(None, before, after, autojunk=False).get_grouped_opcodes(context):
            piece = "".join(before[group[0][1] : group[-1][2]])
            if not piece or text.count(piece) != 1:
                break
            pairs.append((piece, "".join(after[group[0][3] : group[-1][4]])))
            text = text.replace(*pairs[-1])
        if text == new and pairs:
            return pairs
    return [(old, new)] if old else [("", new)]


def _lines(text: str) -> list[str]:
    """Lines with their ends; only a line feed ends one, as in git."""
    return re.findall(r"[^\n]*\n|[^\n]+", text)


def _closed(text: str) -> str:
    return text if not text or text.endswith("\n") else f"{text}\n"
