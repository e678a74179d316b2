"""A scripted model and a few tools over a dictionary of files, for the tests of the loop."""

import json
from collections.abc import Awaitable, Callable, Sequence

from libs.agent import Arguments, Tool, ToolFailed, Tools
from libs.contracts.envelope import Usage
from libs.contracts.inference import ChatMessage, Completion, ToolDefinition
from libs.contracts.work import ToolCall


class Crash(BaseException):
    """The process dies here."""


def call(tool: str, /, **arguments: object) -> ToolCall:
    return ToolCall(id="", name=tool, arguments=json.dumps(arguments))


def says(*calls: ToolCall, text: str = "", finish: str = "stop") -> Completion:
    usage = Usage(input_tokens=10, output_tokens=5, cost_usd=0.01, calls=1)
    return Completion(model="scripted", content=text, tool_calls=calls, finish_reason=finish, usage=usage)


class ScriptedModel:
    """Gives its replies in order. A request id that was answered before is answered the same, as the inference service does."""

    def __init__(self, replies: Sequence[Completion]) -> None:
        self.replies = list(replies)
        self.paid: dict[str, Completion] = {}
        self.asked: list[str] = []
        self.prompts: list[list[ChatMessage]] = []

    async def complete(self, messages: Sequence[ChatMessage], tools: Sequence[ToolDefinition], request_id: str) -> Completion:
        self.asked.append(request_id)
        self.prompts.append(list(messages))
        if request_id not in self.paid:
            self.paid[request_id] = self.replies[len(self.paid)] if len(self.paid) < len(self.replies) else self.replies[-1]
        return self.paid[request_id]


class ReadArguments(Arguments):
    path: str
    start: int | None = None


class WriteArguments(Arguments):
    path: str
    content: str


class CommandArguments(Arguments):
    command: str


class Files:
    """Files with the three kinds of tools: without effects, repeatable under its call id, and once only."""

    def __init__(self) -> None:
        self.files: dict[str, str] = {}
        self.operations: dict[str, int] = {}
        self.sent: list[str] = []
        self.after: Callable[[str], Awaitable[None]] | None = None

    async def read(self, arguments: ReadArguments, call_id: str) -> str:
        if arguments.path not in self.files:
            raise ToolFailed(f"no such file: {arguments.path}")
        return self.files[arguments.path]

    async def write(self, arguments: WriteArguments, call_id: str) -> str:
        self.operations[call_id] = self.operations.get(call_id, 0) + 1
        self.files[arguments.path] = arguments.content
        return f"wrote {arguments.path}"

    async def send(self, arguments: CommandArguments, call_id: str) -> str:
        self.sent.append(arguments.command)
        return "sent"

    def tools(self) -> Tools:
        return Tools(
            (
                Tool("read", "read a file", ReadArguments, self.read, rest="read from a later start"),
                Tool("write", "write a file", WriteArguments, self.write, effects="repeatable"),
                Tool("send", "do it once", CommandArguments, self.send, effects="once"),
            )
        )


async def no_more(summary: str) -> str | None:
    return None


START = (ChatMessage(role="system", content="You edit files."), ChatMessage(role="user", content="Fix it."))
