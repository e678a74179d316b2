"""Models that call no tools: they write whole files, search/replace blocks or a unified diff into their answer.

The answer becomes one call of `apply`, all or none of it, followed by `done`; a refused one goes back to the model as text.
"""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from libs.agent import Arguments, Tool, ToolFailed, Tools
from libs.contracts.inference import ChatMessage, Completion, ToolDefinition
from libs.contracts.work import ToolCall
from libs.edits.applier import FileChange, apply_patch, apply_search_replace, apply_whole_files
from libs.workspace.tools import ReadArguments
from libs.workspace.writes import JournaledWrites, Read

Form = Literal["whole_file", "search_replace", "unified_diff"]
_WANTED = re.compile(r"""^\s*<read\s+path=["']([^"'\n]+)["'](?:\s+start=["'](\d+)["'])?\s*/?>\s*$""", re.MULTILINE)
_CHANGE = {
    "whole_file": re.compile(r"^\s*<file\s", re.MULTILINE),
    "search_replace": re.compile(r"^<{5,9} ?SEARCH", re.MULTILINE),
    "unified_diff": re.compile(r"^(?:diff --git |--- |\+\+\+ |@@)", re.MULTILINE),
}
_APPLY: dict[str, Callable[[str, Read], list[FileChange]]] = {
    "whole_file": apply_whole_files,
    "search_replace": apply_search_replace,
    "unified_diff": apply_patch,
}
_ASK_FOR_FILE = 'To see another file first, answer with nothing but a line <read path="path/of/file" start="1"/> for each.'
EXPLAIN: dict[str, str] = {
    "whole_file": (
        "Answer with every file that you change or create, whole, in this form, each tag on a line of its own:\n"
        '<file path="path/of/file">\nthe whole new text\n</file>\n'
        "Before the files you may say in a few sentences what you change and why. " + _ASK_FOR_FILE
    ),
    "search_replace": (
        "Answer with search/replace blocks. On the line before each block stands the path of the file. The search part repeats the "
        "present lines exactly; an empty one creates a file:\n"
        "path/of/file\n<<<<<<< SEARCH\npresent lines\n=======\nnew lines\n>>>>>>> REPLACE\n"
        "Before the blocks you may say in a few sentences what you change and why. " + _ASK_FOR_FILE
    ),
    "unified_diff": (
        "Answer with one unified diff as `git diff` writes it, with `--- a/path` and `+++ b/path` lines and at least three lines of "
        "context. Before it you may say in a few sentences what you change and why. " + _ASK_FOR_FILE
    ),
}


class ApplyArguments(Arguments):
    answer: str


@dataclass(frozen=True)
class TextForm:
    """The dialect of a model that answers in `form`. Its tools are named in no prompt; their results are told as text."""

    form: Form

    def prompt(self, messages: Sequence[ChatMessage], tools: Tools) -> tuple[Sequence[ChatMessage], Sequence[ToolDefinition]]:
        """Results as user messages, the model's own calls as the text that it wrote."""
        told = [
            ChatMessage(role="user", content=message.content) if message.role == "tool" else message.model_copy(update={"tool_calls": ()})
            for message in messages
        ]
        return _joined(told), ()

    def read(self, reply: Completion, tools: Tools) -> Completion:
        """The calls that an answer stands for: `read` for each file asked for, or `apply` and `done`."""
        text = reply.content
        if not text.strip():
            return reply.model_copy(update={"tool_calls": ()})
        wanted = [] if _CHANGE[self.form].search(text) else _WANTED.findall(text)
        if wanted:
            reads = [{"path": path} | ({"start": int(start)} if start else {}) for path, start in wanted]
            return reply.model_copy(update={"tool_calls": tuple(_call("read", read) for read in reads)})
        summary = _before(text, _CHANGE[self.form]) or "Changed as asked."
        calls = (_call("apply", {"answer": text}), _call("done", {"summary": summary}))
        return reply.model_copy(update={"tool_calls": calls})

    def nudge(self, reply: Completion, tools: Tools) -> str:
        """An empty answer."""
        return "Your answer was empty. " + EXPLAIN[self.form]

    def tool(self, writes: JournaledWrites) -> Tool[ApplyArguments]:
        """The tool that applies an answer."""

        async def apply(arguments: ApplyArguments, call_id: str) -> str:
            try:
                paths = await writes.carry_out(call_id, lambda read: _APPLY[self.form](arguments.answer, read))
            except ToolFailed as error:
                raise ToolFailed(f"Nothing of your answer was applied. {error}\n{EXPLAIN[self.form]}") from error
            return f"Applied: {', '.join(paths)}"

        return Tool("apply", "Apply an answer.", ApplyArguments, apply, effects="repeatable")

    def tools(self, reading: Tool[ReadArguments], writes: JournaledWrites) -> Tools:
        """The tools behind the form."""
        return Tools((reading, self.tool(writes)))


def _call(name: str, arguments: dict[str, object]) -> ToolCall:
    return ToolCall(id="", name=name, arguments=json.dumps(arguments, ensure_ascii=False))


def _before(text: str, change: re.Pattern[str]) -> str:
    """The prose before the first change, without the path line and fence that belong to it."""
    match = change.search(text)
    lines = text[: match.start()].strip().split("\n") if match else []
    while lines and (lines[-1].startswith("```") or (" " not in lines[-1].strip() and "." in lines[-1]) or not lines[-1].strip()):
        lines.pop()
    return "\n".join(lines).strip()[:2000]


def _joined(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """Neighbouring user messages as one; some models refuse two in a row."""
    joined: list[ChatMessage] = []
    for message in messages:
        if joined and message.role == joined[-1].role == "user":
            joined[-1] = joined[-1].model_copy(update={"content": f"{joined[-1].content}\n\n{message.content}"})
        else:
            joined.append(message)
    return joined
