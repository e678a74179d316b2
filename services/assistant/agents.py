"""The kinds of agents: who a model is told to be, which tools wait for a person's consent, and hooks as plain functions.

before_turn       may change what the turn's model is told
before_tool_call  allows a call, blocks it with a reason, or gives a result in its place
after_tool_call   may change what the model is told of a result
on_turn_end       is told of every end, after the conversation is free for the next turn
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from libs.agent import RULE, Given
from libs.contracts.conversation import ContextBlock
from libs.contracts.envelope import JsonObject, Message
from libs.contracts.inference import ChatMessage
from libs.contracts.turn import TurnOpened

NeedsApproval = Callable[[JsonObject], bool]
Messages = tuple[ChatMessage, ...]


class TurnContext(Message):
    """The turn that a hook is told of."""

    turn_id: str
    opened: TurnOpened


class TurnEnd(Message):
    """How a turn ended; `text` is the answer as far as there is one."""

    status: Literal["finished", "failed", "cancelled", "superseded"]
    text: str = ""
    error: str = ""


ALLOW: None = None


def block(reason: str) -> Given:
    """The call is not run; the model is told why."""
    return Given(f"This call was blocked: {reason}", ok=False)


def substitute(result: str) -> Given:
    """The call is not run; this is its result."""
    return Given(result)


async def keep_messages(turn: TurnContext, messages: Messages) -> Messages:
    """The prompt as it is."""
    return messages


async def allow(turn: TurnContext, tool: str, arguments: JsonObject) -> Given | None:
    """Every call runs."""
    return ALLOW


async def keep_result(turn: TurnContext, tool: str, arguments: JsonObject, result: str) -> str:
    """The result as it is."""
    return result


async def end_quietly(turn: TurnContext, end: TurnEnd) -> None:
    """Nothing more is done."""


@dataclass(frozen=True)
class Agent:
    """A kind of agent. `approvals` says for each tool named in it whether a call with these arguments needs a person's consent."""

    name: str
    description: str
    blocks: tuple[ContextBlock, ...]
    approvals: Mapping[str, NeedsApproval] = field(default_factory=dict)
    before_turn: Callable[[TurnContext, Messages], Awaitable[Messages]] = keep_messages
    before_tool_call: Callable[[TurnContext, str, JsonObject], Awaitable[Given | None]] = allow
    after_tool_call: Callable[[TurnContext, str, JsonObject, str], Awaitable[str]] = keep_result
    on_turn_end: Callable[[TurnContext, TurnEnd], Awaitable[None]] = end_quietly

    def needs_approval(self, tool: str, arguments: JsonObject) -> bool:
        """Whether a person must allow this call."""
        ask = self.approvals.get(tool)
        return ask is not None and ask(arguments)


def always(arguments: JsonObject) -> bool:
    """Every call."""
    return True


_INSTRUCTIONS = (
    "You are the assistant of agent-coder, a platform that solves issues in repositories. You talk with a person: answer questions, look "
    "at code with your tools, and start a run with solve_issue when a whole issue is to be solved; run_status tells how it goes. "
    "Keep lasting notes about this conversation with set_context and lasting facts about the person with remember. Load a skill before "
    "you do what it describes. Be brief and exact, say so when you do not know, and answer in the language of the person.\n" + RULE
)

ASSISTANT = Agent(
    name="assistant",
    description="Answers questions, works in an attached repository, starts and watches runs.",
    blocks=(
        ContextBlock(label="instructions", description="who you are", kind="readonly", content=_INSTRUCTIONS),
        ContextBlock(label="notes", description="your notes about this conversation", kind="writable", max_tokens=1100),
        ContextBlock(label="knowledge", description="longer texts to look up, one under each key", kind="searchable"),
    ),
    approvals={"solve_issue": always},
)

AGENTS: Mapping[str, Agent] = {agent.name: agent for agent in (ASSISTANT,)}
