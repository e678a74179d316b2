"""What the planning model is told. Pure; everything that others wrote is wrapped as data."""

from collections.abc import Sequence

from libs.agent import RULE, said_since, wrap
from libs.contracts.fold import RunState, Thought
from libs.contracts.inference import ChatMessage, Completion
from libs.contracts.run import Issue, RunOpened, RunPlanned, RunRejected
from libs.contracts.team import RunFollowedUp

_ROLE = (
    "You plan how an issue in a repository is solved; another engineer carries the plan out step by step and the repository's tests "
    "judge it. Find the cause first. Plan the smallest change that solves the issue well, with a test that shows it where the repository "
    "has tests. Give one to five ordered steps; one is enough for a small change."
)
_FORM = (
    "Answer with one JSON object and nothing else:\n"
    '{"summary": "the cause and the change in two or three sentences", "steps": [{"title": "what to do, in a line", '
    '"detail": "how, precisely: functions, cases, names", "why": "the reason", "files": ["path/of/file"]}]}\n'
    "`files` names every file that the step changes or creates, relative to the root of the repository. "
    "Write the texts in the language of the issue."
)
_FEEDBACK_CHARACTERS = 8000


def planning(issue: Issue, repository_map: str, state: RunState, event: RunOpened | RunRejected | RunFollowedUp) -> list[ChatMessage]:
    """The prompt for a plan: the issue, the repository, what people have said since, and what earlier attempts have taught."""
    again = not isinstance(event, RunOpened)
    parts = [
        "The issue:\n" + wrap(f"{issue.title}\n\n{issue.body}".strip(), f"issue {issue.id}"),
        "The repository:\n" + wrap(repository_map, "repository map"),
        _earlier_plan(state.planned) if again else "",
        said_since(state),
        *[_rejection(earlier) for earlier in state.round_rejections[-3:]],
        _thoughts(state.thoughts) if again else "",
        "Plan another change that meets these objections." if isinstance(event, RunRejected) else "",
        "Plan the change that the last request asks for." if isinstance(event, RunFollowedUp) else "",
        _FORM,
    ]
    return [
        ChatMessage(role="system", content=f"{_ROLE}\n\n{RULE}"),
        ChatMessage(role="user", content="\n\n".join(part for part in parts if part)),
    ]


def corrected(reply: Completion, fault: str) -> list[ChatMessage]:
    """A bad answer and what is wrong with it."""
    said = reply.content or "\n".join(call.arguments for call in reply.tool_calls)
    told = ChatMessage(role="user", content=f"This is not a usable plan: {fault}\n\n{_FORM}")
    return [ChatMessage(role="assistant", content=said[:8000]), told] if said else [told]


def _earlier_plan(planned: RunPlanned | None) -> str:
    if planned is None:
        return ""
    steps = "\n".join(f"{number}. {step.title} [{', '.join(step.files)}]" for number, step in enumerate(planned.plan.steps, 1))
    return f"The plan of attempt {planned.attempt}:\n" + wrap(f"{planned.plan.summary}\n{steps}".strip(), "earlier plan")


def _rejection(rejected: RunRejected) -> str:
    lines = [*rejected.verdict.reasons, rejected.verdict.feedback[:_FEEDBACK_CHARACTERS]]
    return f"Attempt {rejected.attempt} was rejected ({rejected.verdict.outcome}):\n" + wrap("\n".join(lines), "verdict")


def _thoughts(thoughts: Sequence[Thought]) -> str:
    if not thoughts:
        return ""
    lines = [f"attempt {thought.attempt}, {thought.topic}: {thought.reasoning}" for thought in thoughts[-12:]]
    return "Why earlier attempts did what they did:\n" + wrap("\n".join(lines)[:_FEEDBACK_CHARACTERS], "think")
