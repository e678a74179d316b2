"""The planner's three messages: a run that was opened, a change that was rejected, a request for more. Each becomes a plan."""

from functools import partial

from libs.agent import AskedModel, JournalTranscript, Model
from libs.bus import Permanent, Refusal, Step
from libs.contracts.artifact import Imported, ImportRepository
from libs.contracts.fold import RunState
from libs.contracts.inference import ChatMessage
from libs.contracts.run import Plan, RunOpened, RunPlanned, RunRejected
from libs.contracts.team import RunFollowedUp
from libs.repository import Override, RepositoryError, detect, repository_map
from libs.repository.committed import read_commit
from services.planner.domain import PLAN_SCHEMA, BadPlan, for_a_person, next_attempt, parse_plan, shell_lines
from services.planner.prompts import corrected, planning
from services.planner.settings import PlannerSettings


async def plan(settings: PlannerSettings, event: RunOpened | RunRejected | RunFollowedUp, step: Step) -> RunPlanned:
    """The next plan of a run. Raises Permanent when no attempt is left, the repository cannot be used, or no valid plan comes."""
    state = await step.state()
    opened = event if isinstance(event, RunOpened) else state.opened
    assert opened is not None
    attempt = next_attempt(event, opened.policy, state.round_from, state.retried_from)
    try:
        return await _plan(settings, opened, event, attempt, state, step)
    except Refusal as refusal:
        raise for_a_person(refusal) from refusal
    except RepositoryError as error:
        raise Permanent(str(error)) from error


async def _plan(
    settings: PlannerSettings,
    opened: RunOpened,
    event: RunOpened | RunRejected | RunFollowedUp,
    attempt: int,
    state: RunState,
    step: Step,
) -> RunPlanned:
    base = await _base(opened, event, state, step)
    asked = event.feedback if isinstance(event, RunFollowedUp) else ""
    words = f"{opened.issue.title}\n{opened.issue.body}\n{asked}"
    committed = await read_commit(step.ask, base.repository, base.base_commit, words)
    project = detect(committed.tree, Override(setup=opened.policy.setup_commands, test=opened.policy.test_commands))
    text = repository_map(committed.tree, words, settings.map_characters, project)
    transcript = await JournalTranscript.open(step, "plan")
    made = await ask_for_plan(
        _model(settings, opened, step), transcript, planning(opened.issue, text, state, event), _calls(settings, state, opened)
    )
    return RunPlanned(
        run_id=opened.run_id,
        attempt=attempt,
        plan=made,
        repository=base.repository,
        base_branch=base.base_branch,
        base_commit=base.base_commit,
        languages=tuple(language.name for language in project.languages),
        setup_commands=shell_lines(project.setup_commands),
        test_commands=shell_lines(project.test_commands),
        usage=transcript.record.usage(),
    )


async def ask_for_plan(model: Model, transcript: JournalTranscript, messages: list[ChatMessage], calls: int) -> Plan:
    """Ask until a plan is valid, telling what was wrong, `calls` times at most. Raises Permanent after the last."""
    record, fault = transcript.record, ""
    for call in range(1, record.allowance_from + calls + 1):
        if call > len(record.replies):
            reply = await model.complete(messages, (), f"{transcript.prefix}-{call}")
            await transcript.record_reply(reply)
        reply = record.replies[call - 1]
        try:
            return parse_plan(reply)
        except BadPlan as bad:
            fault = str(bad)
            messages = [*messages, *corrected(reply, fault)]
    raise Permanent(f"The model gave no usable plan in {calls} tries: {fault} Choose a more capable model, or retry the run.")


async def _base(opened: RunOpened, event: RunOpened | RunRejected | RunFollowedUp, state: RunState, step: Step) -> Imported | RunPlanned:
    """Where the attempt starts from: after a rejection where the rejected one did, else what is imported now.

    What a follow-up starts from is the head of the branch that the run's change is on, with whatever people have put there since.
    """
    if isinstance(event, RunRejected) and state.planned is not None:
        return state.planned
    await step.progress("status", "importing the repository")
    branch = state.committed.branch if isinstance(event, RunFollowedUp) and state.committed else None
    imported: Imported = await step.ask(ImportRepository(source=opened.repo, base=branch or opened.base))
    return imported


def _calls(settings: PlannerSettings, state: RunState, opened: RunOpened) -> int:
    """How many model calls planning may take. Raises Permanent when the run has used its tokens."""
    used = state.usage.input_tokens + state.usage.output_tokens
    if used >= opened.policy.max_tokens:
        raise Permanent(f"The run used {used:,} tokens of {opened.policy.max_tokens:,}; raise policy.max_tokens.", kind="limit")
    return settings.model_calls


def _model(settings: PlannerSettings, opened: RunOpened, step: Step) -> Model:
    return AskedModel(
        step.ask,
        account=step.run_id,
        purpose="plan",
        name=opened.policy.model,
        json_schema=PLAN_SCHEMA,
        max_output_tokens=settings.max_output_tokens,
        ceiling_usd=opened.policy.ceiling_usd,
        show=partial(step.progress, "model"),
    )
