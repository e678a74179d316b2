"""The editor's one message: a plan is carried out in the run's workspace and saved as a commit."""

from functools import partial

from libs.agent import AskedModel, LimitReached, LoopResult, ModelStuck, NativeCalls, ToolFailed, run_loop
from libs.bus import NeedsHuman, Permanent, Refusal, Step
from libs.contracts.run import RunEdited, RunPlanned, RunRejected
from libs.workspace.tools import WorkspaceTools
from services.editor.domain import less, limits_of, rejected_stuck, rejected_unsaved, rejected_without_change
from services.editor.prompts import plan_in_words
from services.editor.session import Session
from services.editor.settings import EditorSettings
from services.editor.text_forms import TextForm


async def edit(settings: EditorSettings, event: RunPlanned, step: Step) -> RunEdited | RunRejected:
    """Carry out the plan step by step. Raises NeedsHuman for a plan that a person must approve, Permanent at a limit of the policy."""
    state = await step.state()
    if state.opened and state.opened.policy.plan_approval and not state.approved("edit", step.sequence):
        raise NeedsHuman(plan_in_words(event))
    session = await Session.begin(event, step, state)
    try:
        result = await _run(settings, session)
    except LimitReached as limit:
        raise Permanent(f"The edit was stopped at a limit: {limit}", kind="limit") from limit
    except ModelStuck as stuck:
        return rejected_stuck(event, stuck, session.finished)
    except Refusal as refusal:
        if refusal.code == "budget_exceeded":
            raise Permanent(f"The edit was stopped at a limit: {refusal.detail}", kind="limit") from refusal
        raise
    return await _save(session, result)


async def _run(settings: EditorSettings, session: Session) -> LoopResult:
    """The loop over all steps of the plan."""
    chosen, step = await session.model(), session.step
    spent = less(session.state.usage, session.transcript.record.usage())
    limits = limits_of(session.policy, spent, chosen, settings.max_output_tokens)
    model = AskedModel(
        step.ask,
        account=step.run_id,
        purpose="edit",
        name=session.policy.model,
        max_output_tokens=limits.max_output_tokens,
        ceiling_usd=session.policy.ceiling_usd,
        show=partial(step.progress, "model"),
    )
    tools = WorkspaceTools(session.workspace, session.writes, step.progress)
    form = TextForm(chosen.form) if chosen.form else None
    return await run_loop(
        model,
        form.tools(tools.reading(), session.writes) if form else tools.all(),
        session.transcript,
        limits,
        await session.messages(chosen),
        partial(session.next_task, chosen),
        dialect=form or NativeCalls(),
        show=step.progress,
        span=step.bus.telemetry.span,
    )


async def _save(session: Session, result: LoopResult) -> RunEdited | RunRejected:
    """Save the tree; a change of nothing, or one that may not be committed, goes back to the planner."""
    event = session.event
    try:
        snapshot = await session.workspace.snapshot(session.step.sequence, f"Attempt {event.attempt} of run {event.run_id}")
    except ToolFailed as refused:
        return rejected_unsaved(event, str(refused))
    if not snapshot.changed_files:
        return rejected_without_change(event, result.summary)
    return RunEdited(
        run_id=event.run_id,
        attempt=event.attempt,
        commit=snapshot.commit,
        tree=snapshot.tree,
        changed_files=snapshot.changed_files,
        summary=result.summary[:16_000],
        usage=result.usage,
    )
