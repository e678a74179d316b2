"""The events of a chat turn: a message of a person (or of the server) on its way to an answer, on `turn.<turn_id>.<event>`.

opened ─► admitted (it is this turn's turn) ─► … model replies, tool calls … ─► finished
              │                      └─► paused ─► answered.turn (each pending call) ─► …
              └─► superseded                                      failed · cancelled at any moment
"""

from typing import ClassVar, Literal

from pydantic import Field

from libs.contracts.conversation import OwnedCall, SessionCall
from libs.contracts.envelope import Done, Identifier, JsonObject, Message, Question, Time, Usage
from libs.contracts.work import (
    Claim,
    End,
    FailedTry,
    Failure,
    Kind,
    ModelReply,
    Pause,
    PersonAsked,
    Resumes,
    Retries,
    ToolResult,
    ToolStart,
    WorkEvent,
)

Concurrency = Literal["queue", "latest", "merge", "drop", "debounce"]
ASSISTANT = ("assistant",)


class TurnEvent(WorkEvent):
    """An event of a turn."""

    work: ClassVar[str] = "turn"
    id_field: ClassVar[str] = "turn_id"

    turn_id: Identifier


class ClientTool(Message):
    """A tool that the client carries out; the turn waits for its output."""

    name: str = Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")
    description: str = Field(default="", max_length=4000)
    parameters: JsonObject = Field(default_factory=dict)


class TurnOpened(TurnEvent, OwnedCall):
    """Somebody wants an answer. The message that asks is stored before; `parent_id` names it, or whatever the answer continues."""

    subject: ClassVar[str] = "turn.{turn_id}.opened"
    type: ClassVar[str] = "turn.opened"
    producers: ClassVar[tuple[str, ...]] = ("gateway", "mailer", "assistant")

    session_id: Identifier
    agent: str = "assistant"
    parent_id: str
    trigger: Literal["submit", "regenerate", "continue", "server"] = "submit"
    concurrency: Concurrency = "queue"
    debounce_milliseconds: int = Field(default=750, ge=0, le=60_000)
    model: str | None = Field(default=None, max_length=200)
    plan: str | None = Field(default=None, max_length=64)
    max_model_calls: int = Field(default=10, ge=1, le=200)
    client_tools: tuple[ClientTool, ...] = Field(default=(), max_length=50)
    inline_tools: bool = Field(default=True, description="whether the agent's own tools are offered")
    repository: str | None = Field(default=None, max_length=4096, description="attached to the conversation from this turn on")
    opened_at: Time


class TurnAdmitted(TurnEvent):
    """The turn is the one that its conversation works on. `parent_id` is the newest message that it answers: merged turns share one."""

    subject: ClassVar[str] = "turn.{turn_id}.admitted"
    type: ClassVar[str] = "turn.admitted"
    producers: ClassVar[tuple[str, ...]] = ASSISTANT

    parent_id: str


class TurnSuperseded(TurnEvent, End):
    """The turn gets no answer of its own: it was dropped, or a later one answers for it (`by`). Its message is stored all the same."""

    subject: ClassVar[str] = "turn.{turn_id}.superseded"
    type: ClassVar[str] = "turn.superseded"
    producers: ClassVar[tuple[str, ...]] = ASSISTANT

    policy: Concurrency
    by: str | None = None


class TurnStepStarted(TurnEvent, Claim):
    """A worker claims the turn."""

    subject: ClassVar[str] = "turn.{turn_id}.step_started"
    type: ClassVar[str] = "turn.step_started"
    producers: ClassVar[tuple[str, ...]] = ASSISTANT


class TurnStepFailed(TurnEvent, FailedTry):
    """A try to answer raised."""

    subject: ClassVar[str] = "turn.{turn_id}.step_failed"
    type: ClassVar[str] = "turn.step_failed"
    producers: ClassVar[tuple[str, ...]] = ASSISTANT


class TurnApprovalRequested(TurnEvent, PersonAsked):
    """A person must decide about the turn as a whole."""

    subject: ClassVar[str] = "turn.{turn_id}.approval_requested"
    type: ClassVar[str] = "turn.approval_requested"
    producers: ClassVar[tuple[str, ...]] = ASSISTANT


class TurnModelReplied(TurnEvent, ModelReply):
    """One model reply, recorded before it is acted on."""

    subject: ClassVar[str] = "turn.{turn_id}.model_replied"
    type: ClassVar[str] = "turn.model_replied"
    producers: ClassVar[tuple[str, ...]] = ASSISTANT


class TurnToolStarted(TurnEvent, ToolStart):
    """A tool call with effects is about to run."""

    subject: ClassVar[str] = "turn.{turn_id}.tool_started"
    type: ClassVar[str] = "turn.tool_started"
    producers: ClassVar[tuple[str, ...]] = ASSISTANT


class TurnToolReturned(TurnEvent, ToolResult):
    """What a tool call gave back to the model."""

    subject: ClassVar[str] = "turn.{turn_id}.tool_returned"
    type: ClassVar[str] = "turn.tool_returned"
    producers: ClassVar[tuple[str, ...]] = ASSISTANT


class PendingCall(Message):
    """A call that waits for somebody: for the client's output, or for a person's consent with its arguments in view."""

    call_id: str
    tool: str
    arguments: str
    waits_for: Literal["client", "approval"]


class TurnPaused(TurnEvent, Pause):
    """The turn waits, costs nothing and survives restarts until every pending call is answered."""

    subject: ClassVar[str] = "turn.{turn_id}.paused"
    type: ClassVar[str] = "turn.paused"
    producers: ClassVar[tuple[str, ...]] = ASSISTANT

    pending: tuple[PendingCall, ...]


class TurnAnswered(TurnEvent, Resumes):
    """One pending call is answered: `output` or `error` of a client tool, `approved` for a consent."""

    subject: ClassVar[str] = "turn.{turn_id}.answered.{step}"
    type: ClassVar[str] = "turn.answered"
    producers: ClassVar[tuple[str, ...]] = ("gateway", "mailer")

    call_id: str = Field(max_length=200)
    approved: bool | None = None
    output: str | None = Field(default=None, max_length=200_000)
    error: str | None = Field(default=None, max_length=4000)
    goes_on: bool = Field(default=True, description="false in the last answer: it is kept, and the model hears of it with the next message")
    by: str


class TurnRetried(TurnEvent, Retries):
    """A person asks for one more try of a failed turn."""

    subject: ClassVar[str] = "turn.{turn_id}.retried.{step}"
    type: ClassVar[str] = "turn.retried"
    producers: ClassVar[tuple[str, ...]] = ("gateway",)

    by: str


class TurnFailed(TurnEvent, Failure):
    """No answer; what was written so far is kept as a message when `message_id` names one."""

    subject: ClassVar[str] = "turn.{turn_id}.failed"
    type: ClassVar[str] = "turn.failed"
    producers: ClassVar[tuple[str, ...]] = ("assistant", "gateway")

    kind: Literal["permanent", "exhausted", "attempts", "limit", "expired", "schema"] = "permanent"
    message_id: str | None = None


class TurnCancelled(TurnEvent, End):
    """A person stopped the turn."""

    subject: ClassVar[str] = "turn.{turn_id}.cancelled"
    type: ClassVar[str] = "turn.cancelled"
    producers: ClassVar[tuple[str, ...]] = ("gateway",)

    by: str
    reason: str = Field(default="", max_length=4000)


class TurnFinished(TurnEvent, End):
    """The answer is stored as `message_id`."""

    subject: ClassVar[str] = "turn.{turn_id}.finished"
    type: ClassVar[str] = "turn.finished"
    producers: ClassVar[tuple[str, ...]] = ASSISTANT

    message_id: str
    finish_reason: str = "stop"
    usage: Usage = Usage()
    context_tokens: int = Field(default=0, ge=0, description="the active branch with its summaries, estimated; 0 when it is not known")


TURN = Kind(
    "turn",
    "TURN",
    "turn_id",
    {
        Claim: TurnStepStarted,
        FailedTry: TurnStepFailed,
        PersonAsked: TurnApprovalRequested,
        Failure: TurnFailed,
        ModelReply: TurnModelReplied,
        ToolStart: TurnToolStarted,
        ToolResult: TurnToolReturned,
    },
)


class AgentDescription(Message):
    """A kind of agent that a conversation may be held with."""

    name: str
    description: str = ""
    tools: tuple[str, ...] = ()


class Agents(Message):
    """All kinds, the default one first."""

    agents: tuple[AgentDescription, ...]


class DescribeAgents(Question[Agents]):
    """Which kinds of agents are there?"""

    subject: ClassVar[str] = "q.assistant.agents"
    answer: ClassVar[type[Message]] = Agents
    askers: ClassVar[tuple[str, ...]] = ("gateway", "mailer")


class Stability(Message):
    """Whether nothing is under way in a conversation. `active` is the turn that it works on or that waits for somebody."""

    stable: bool
    active: str | None = None
    waiting: int = 0
    repository: str | None = None


class ForgetConversation(Question[Done], SessionCall):
    """Drop what is kept of a conversation's order: it was deleted. One in which something is under way stays."""

    subject: ClassVar[str] = "q.assistant.forget"
    answer: ClassVar[type[Message]] = Done
    askers: ClassVar[tuple[str, ...]] = ("gateway",)


class AwaitStable(Question[Stability], SessionCall):
    """Wait until a conversation has no turn in work, in the queue or waiting for an answer; at the timeout the answer is what is then."""

    subject: ClassVar[str] = "q.assistant.stable"
    answer: ClassVar[type[Message]] = Stability
    askers: ClassVar[tuple[str, ...]] = ("gateway", "mailer")
    deadline_seconds: ClassVar[float] = 630.0

    timeout_seconds: float = Field(default=30.0, ge=0, le=600)
