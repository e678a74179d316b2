"""The editor's decisions, pure: which model and form, which limits, and what an end without a change means."""

from collections.abc import Sequence
from typing import Literal

from pydantic import BaseModel, ConfigDict

from libs.agent import Limits, ModelStuck
from libs.bus import Permanent
from libs.contracts.envelope import Usage
from libs.contracts.inference import Models
from libs.contracts.run import CommandRun, Policy, RunPlanned, RunRejected, Verdict
from libs.repository.project import SHELL_PRELUDE
from services.editor.text_forms import Form

_NO_CHANGE = (
    "The attempt changed no file. If the issue is solved already, say which code does it and add a test that shows it; "
    "otherwise plan the change anew, with the files that have to change."
)


class ChosenModel(BaseModel):
    """How the model of a loop is spoken to; journaled, so that a resumed loop goes on in the same form."""

    model_config = ConfigDict(frozen=True)

    form: Form | None = None
    context_tokens: int = 128_000


def choose_model(models: Models, wanted: str | None) -> ChosenModel:
    """The form of the model that a run names, else of the first one. Raises Permanent when there is none."""
    if not models.models:
        raise Permanent(models.advice or "No model is configured: set MODEL, for example MODEL=anthropic/<model>, and start the run again.")
    found = next((model for model in models.models if model.name == wanted), models.models[0])
    form: Literal["tools"] | Form = found.edit_format
    if form == "tools" and not found.tool_calling:
        form = "whole_file"
    return ChosenModel(form=None if form == "tools" else form, context_tokens=found.context_tokens)


def limits_of(policy: Policy, spent: Usage, chosen: ChosenModel, max_output_tokens: int) -> Limits:
    """What one editing attempt may use. `spent` is what the run used before this attempt's editing."""
    return Limits(
        max_calls=policy.max_model_calls,
        max_seconds=policy.edit_timeout_seconds,
        max_tokens=policy.max_tokens,
        ceiling_usd=policy.ceiling_usd,
        spent=spent,
        context_tokens=chosen.context_tokens,
        max_output_tokens=min(max_output_tokens, chosen.context_tokens // 4),
        failed_in_a_row=10 if chosen.form is None else 8,
    )


def files_room(context_tokens: int, steps: int) -> int:
    """Characters of files that one step may show: at three a token, a third of the context shared by all steps."""
    return min(160_000, context_tokens // max(steps, 1))


def less(whole: Usage, part: Usage) -> Usage:
    """`whole` without `part`."""
    return Usage(
        input_tokens=whole.input_tokens - part.input_tokens,
        output_tokens=whole.output_tokens - part.output_tokens,
        cached_tokens=whole.cached_tokens - part.cached_tokens,
        cost_usd=max(round(whole.cost_usd - part.cost_usd, 9), 0.0),
        calls=whole.calls - part.calls,
    )


def rejected_without_change(event: RunPlanned, summary: str) -> RunRejected:
    """The model says that it is done, and nothing has changed."""
    said = f"\nThe model said: {summary[:4000]}" if summary else ""
    verdict = Verdict(ok=False, outcome="no_change", reasons=("nothing was changed",), feedback=_NO_CHANGE + said)
    return RunRejected(run_id=event.run_id, attempt=event.attempt, verdict=verdict)


def rejected_unsaved(event: RunPlanned, reason: str) -> RunRejected:
    """The tree holds what may not be committed; the next attempt is told what."""
    feedback = f"The attempt's changes were given up, as they could not be saved: {reason}. Leave such files out of the repository."
    verdict = Verdict(ok=False, outcome="failed", reasons=(f"the change cannot be saved: {reason}"[:2000],), feedback=feedback[:16_000])
    return RunRejected(run_id=event.run_id, attempt=event.attempt, verdict=verdict)


def rejected_stuck(event: RunPlanned, stuck: ModelStuck, done: Sequence[str]) -> RunRejected:
    """The model got nowhere; the next attempt is told how."""
    finished = f" Steps that were finished before: {len(done)}." if done else ""
    feedback = f"The attempt was stopped: {stuck}{finished} Its changes were given up. Plan smaller steps, and name the files exactly."
    verdict = Verdict(ok=False, outcome="unknown", reasons=(f"the model got stuck: {stuck}",), feedback=feedback[:16_000])
    return RunRejected(run_id=event.run_id, attempt=event.attempt, verdict=verdict)


def setup_output(commands: Sequence[CommandRun]) -> str:
    """The failing set-up commands with the end of their output, 4,000 characters at most."""
    failed = [run for run in commands if run.outcome != "exited" or run.exit_code != 0]
    return "\n".join(f"$ {run.command.removeprefix(SHELL_PRELUDE)}\n{run.outcome} {run.exit_code}\n{run.output_tail}" for run in failed)[
        -4000:
    ]
