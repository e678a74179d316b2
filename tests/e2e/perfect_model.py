"""What a perfect model says through the OpenAI protocol: a case's reference change, with refusals at chosen requests."""

import json
from dataclasses import dataclass, field
from typing import Any

from libs.contracts.inference import ToolDefinition
from libs.testkit.cases import Case
from libs.testkit.openai_server import ServerReply
from services.inference import reference

TOKENS_IN, TOKENS_OUT = 1000, 100
_TEXTS = {
    "whole_file": lambda old, new: reference.as_whole_files(new),
    "search_replace": reference.as_search_replace,
    "unified_diff": reference.as_unified_diff,
}


@dataclass
class PerfectModel:
    """Answers a request. `refusals` are given to the requests of those numbers, `always` to every one; `form` when no tool is offered."""

    case: Case
    refusals: dict[int, ServerReply] = field(default_factory=dict)
    form: str = "whole_file"
    always: ServerReply | None = None
    count: int = 0

    def __call__(self, request: dict[str, Any]) -> ServerReply:
        self.count += 1
        refusal = self.always or self.refusals.get(self.count)
        return refusal or self._answer(request["messages"], [tool["function"] for tool in request.get("tools", ())])

    def _answer(self, messages: list[dict[str, Any]], functions: list[dict[str, Any]]) -> ServerReply:
        usage = (TOKENS_IN, TOKENS_OUT)
        new = json.loads((self.case.place / "reference.json").read_text())
        if messages[0]["content"].startswith("You plan"):
            return ServerReply(content=reference.as_plan(new, ())[0], usage=usage)
        old = {name: (self.case.repo / name).read_bytes().decode() for name in new if (self.case.repo / name).is_file()}
        if not functions:
            return ServerReply(content=_TEXTS[self.form](old, new), usage=usage)
        turn = sum(message["role"] == "assistant" for message in messages)
        calls = reference.as_tool_calls(old, new, tuple(map(ToolDefinition.model_validate, functions)), turn)
        made = tuple({"id": f"call_{turn}_{n}", "name": c.name, "arguments": json.dumps(c.arguments)} for n, c in enumerate(calls))
        return ServerReply(tool_calls=made, usage=usage)
