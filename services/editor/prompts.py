"""What the editing model is told. Pure; everything that others wrote is wrapped as data."""

from collections.abc import Mapping, Sequence

from libs.agent import RULE, said_since, wrap
from libs.contracts.fold import RunState, Thought
from libs.contracts.inference import ChatMessage
from libs.contracts.run import Issue, PlanStep, RunPlanned
from services.editor.text_forms import EXPLAIN, Form

_ROLE = (
    "You are an experienced software engineer who works in a checked-out repository. An issue is to be solved. A plan stands; you are "
    "given one step of it at a time and carry it out completely, tests included where they belong. Change what the step needs and nothing "
    "else; keep the style of the code around it. Never delete, skip or weaken a test to make it pass. Answer in the language of the issue."
)
_TOOLS = (
    "Work by calling tools. Look at code before you change it. Prefer edit for small changes. Run the tests with exec when they can be "
    "run. Note decisions with think. When the step is complete, call done with a summary of what you changed and why."
)
_DIFF_CHARACTERS = 12_000


def opening(
    state: RunState,
    event: RunPlanned,
    event_sequence: int,
    *,
    form: Form | None,
    guidance: str,
    repository_map: str,
    earlier_diff: str,
    setup: str,
    task: str,
) -> list[ChatMessage]:
    """The beginning of the conversation: who the model is, then all that it works from, then the first step.

    Comments after `event_sequence` are left to the next plan, so that an edit that is resumed is told the same.
    """
    assert state.opened is not None
    rules = _TOOLS if form is None else EXPLAIN[form]
    parts = [
        issue_text(state.opened.issue),
        plan_text(event),
        _section("The repository's guidance for agents. Follow it where it fits the task", guidance, "AGENTS.md"),
        _section("The repository", repository_map, "repository map"),
        said_since(state, event_sequence),
        _feedback(state),
        _thoughts(state.thoughts, event.attempt),
        _section("The change of the last attempt, which is not in the workspace", earlier_diff[:_DIFF_CHARACTERS], "diff"),
        setup,
        task,
    ]
    return [
        ChatMessage(role="system", content=f"{_ROLE}\n\n{rules}\n\n{RULE}"),
        ChatMessage(role="user", content="\n\n".join(part for part in parts if part)),
    ]


def issue_text(issue: Issue) -> str:
    """The issue as data."""
    return "The issue:\n" + wrap(f"{issue.title}\n\n{issue.body}".strip(), f"issue {issue.id}")


def plan_text(event: RunPlanned) -> str:
    """The whole plan in a few lines."""
    steps = [event.plan.summary, *(f"{number}. {step.title}" for number, step in enumerate(event.plan.steps, 1))]
    tests = "\n".join(f"- {command}" for command in event.test_commands) or "- none are known"
    return "\n".join(("The plan:", wrap("\n".join(steps).strip(), "plan"), "", "Test commands:", wrap(tests, "tests")))


def task_text(steps: Sequence[PlanStep], index: int, files: Mapping[str, str | None] | None = None, room: int = 0) -> str:
    """Step `index` (from 0), with the present texts of its files, `room` characters in all, when the model cannot read them itself."""
    step = steps[index]
    lines = [step.title, step.detail, f"Why: {step.why}" if step.why else "", f"Files: {', '.join(step.files)}" if step.files else ""]
    task = f"Step {index + 1} of {len(steps)}, to be done now:\n{wrap(chr(10).join(line for line in lines if line), 'plan step')}"
    return "\n\n".join([task, *_files(files or {}, room)])


def setup_failed(output: str) -> str:
    """What a model is told when set-up did not work."""
    return f"The set-up of the repository failed, so tests may not run here. Make the change nevertheless.\n{wrap(output, 'set-up')}"


def plan_in_words(event: RunPlanned) -> str:
    """The question that a person answers before a plan is carried out."""
    lines = [f"Shall this plan be carried out (attempt {event.attempt})?", event.plan.summary]
    for number, step in enumerate(event.plan.steps, 1):
        files = f" [{', '.join(step.files)}]" if step.files else ""
        lines.append(f"{number}. {step.title}{files}" + (f" ({step.why})" if step.why else ""))
    return "\n".join(line for line in lines if line)


def _section(title: str, text: str, source: str) -> str:
    return f"{title}:\n{wrap(text, source)}" if text.strip() else ""


def _feedback(state: RunState) -> str:
    if not state.round_rejections:
        return ""
    verdict = state.round_rejections[-1].verdict
    return _section("The last attempt was rejected", "\n".join((*verdict.reasons, verdict.feedback)), "verdict")


def _thoughts(thoughts: Sequence[Thought], attempt: int) -> str:
    earlier = [f"{thought.topic}: {thought.reasoning}" for thought in thoughts if thought.attempt < attempt]
    return _section("Thoughts of earlier attempts", "\n".join(earlier[-10:])[:6000], "think")


def _files(files: Mapping[str, str | None], room: int) -> list[str]:
    """Each file's present text; what does not fit is named."""
    parts: list[str] = []
    for path, text in files.items():
        if text is None:
            parts.append(f"{path} does not exist or is not text.")
        elif len(text) > room:
            parts.append(f'{path} has {len(text):,} characters, too many to be shown here; ask for it with <read path="{path}"/>.')
        else:
            room -= len(text)
            parts.append(f"Present text of {path}:\n{wrap(text, path)}")
    return parts
