"""The tools that a model may call, and what it is told when a call is malformed.

ToolError
├── MalformedCall   no such tool, arguments that are not JSON or do not fit; nothing was run
└── ToolFailed      the tool ran and says no; its text tells the model what to do next
"""

import json
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from libs.contracts.envelope import JsonObject
from libs.contracts.inference import ToolDefinition
from libs.contracts.work import ToolCall

RESULT_LIMIT = 8000
Effects = Literal["none", "repeatable", "once"]
"""What running a tool again does: nothing; the same as once, for the same call id; something else each time."""


class ToolError(Exception):
    """A tool call gave no result. The text is for the model."""


class MalformedCall(ToolError):
    """The call could not be run as it was written."""


class ToolFailed(ToolError):
    """The tool could not do what it was asked."""


class Arguments(BaseModel):
    """Base of every tool's arguments: unknown fields are named, not ignored."""

    model_config = ConfigDict(frozen=True, extra="forbid")


A = TypeVar("A", bound=BaseModel)


@dataclass(frozen=True)
class Tool(Generic[A]):
    """A tool. `run` gets the arguments and a call id that is the same when the call is run again after a crash.

    `run` returns the text for the model or raises ToolFailed. `rest` says how to get at what was cut off a long result.
    """

    name: str
    description: str
    arguments: type[A]
    run: Callable[[A, str], Awaitable[str]]
    effects: Effects = "none"
    rest: str = "ask for less at a time"

    @property
    def idempotent(self) -> bool:
        """Whether a call whose end is not known may be run again."""
        return self.effects != "once"

    def definition(self) -> ToolDefinition:
        """The tool as the model sees it."""
        return ToolDefinition(name=self.name, description=self.description, parameters=_parameters(self.arguments))

    def form(self) -> str:
        """The call's form in a line: `read(path: string, start?: integer)`."""
        schema = _parameters(self.arguments)
        required = schema.get("required", [])
        fields = [f"{name}{'' if name in required else '?'}: {_type(field)}" for name, field in schema.get("properties", {}).items()]
        return f"{self.name}({', '.join(fields)})"


class AnyArguments(BaseModel):
    """Arguments that somebody else checks."""

    model_config = ConfigDict(frozen=True, extra="allow")


@dataclass(frozen=True)
class DeclaredTool(Tool[AnyArguments]):
    """A tool that somebody else declared, with the JSON Schema of its arguments."""

    parameters: JsonObject = field(default_factory=dict)

    def definition(self) -> ToolDefinition:
        parameters = {"type": "object", "properties": {}, **self.parameters}
        return ToolDefinition(name=self.name, description=self.description, parameters=parameters)

    def form(self) -> str:
        return f"{self.name}({', '.join(self.parameters.get('properties', {}))})"


class Tools:
    """The tools of one loop, by name."""

    def __init__(self, tools: Iterable[Tool[Any]]) -> None:
        self._tools = {tool.name: tool for tool in tools}

    def plus(self, tool: Tool[Any]) -> "Tools":
        """These tools and one more."""
        return Tools((*self._tools.values(), tool))

    @property
    def names(self) -> Sequence[str]:
        return tuple(self._tools)

    def definitions(self) -> tuple[ToolDefinition, ...]:
        """All tools as the model sees them."""
        return tuple(tool.definition() for tool in self._tools.values())

    def find(self, call: ToolCall) -> Tool[Any]:
        """The tool that `call` names. Raises MalformedCall."""
        tool = self._tools.get(call.name)
        if tool is None:
            raise MalformedCall(f"There is no tool {call.name[:80]!r}. The tools are: {', '.join(self._tools)}.")
        return tool

    def arguments(self, call: ToolCall) -> BaseModel:
        """The validated arguments of `call`. Raises MalformedCall with each faulty field and the expected form."""
        tool = self.find(call)
        raw = parse_arguments(call.arguments)
        if raw is None:
            raise MalformedCall(
                f"The arguments of {call.name} are not a JSON object, or they end in the middle. Nothing was run. "
                f"Call it again with complete arguments: {tool.form()}. If they are long, do it in several smaller calls."
            )
        if not _is_unicode(raw):
            raise MalformedCall(
                f"The arguments of {call.name} hold half of a character: an escape such as \\ud83d without its other half. "
                "Nothing was run. Write the character itself."
            )
        try:
            valid: BaseModel = tool.arguments.model_validate(raw)
        except ValidationError as error:
            faults = [f"{'.'.join(map(str, e['loc'])) or 'arguments'}: {e['msg']}" for e in error.errors(include_url=False)]
            raise MalformedCall(f"{call.name} was not run. {'; '.join(faults)}. Expected: {tool.form()}.") from None
        return valid


def parse_arguments(text: str) -> JsonObject | None:
    """The JSON object of a call's arguments, None when it is none; line breaks inside of strings are taken as they are."""
    try:
        value = json.loads(text or "{}", strict=False)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _is_unicode(value: JsonObject) -> bool:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


def cut(text: str, rest: str, limit: int = RESULT_LIMIT) -> str:
    """`text`, cut at `limit` characters with a note how to get at the rest."""
    if len(text) <= limit:
        return text
    return f"{text[:limit]}\n[{len(text) - limit:,} of {len(text):,} characters are left out here; to see the rest, {rest}]"


@lru_cache(maxsize=1024)
def _parameters(arguments: type[BaseModel]) -> JsonObject:
    """The schema of a class of arguments, as providers take it; made once, as it is asked for with every prompt."""
    return _plain(arguments.model_json_schema())


def _plain(schema: JsonObject) -> JsonObject:
    """A schema without titles, and with `T | None` as an optional T: the form that every provider takes."""
    properties = {}
    for name, given in schema.get("properties", {}).items():
        kept = {key: value for key, value in given.items() if key not in {"title", "default", "anyOf"}}
        options = [option for option in given.get("anyOf", ()) if option.get("type") != "null"]
        if len(options) == 1:
            kept |= options[0]
        elif options:
            kept["anyOf"] = options
        properties[name] = kept
    return {"type": "object", "properties": properties, "required": schema.get("required", []), "additionalProperties": False}


def _type(field: JsonObject) -> str:
    return str(field.get("type", "any"))
