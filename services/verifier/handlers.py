"""The verifier's one message: a saved change is tested against the untouched tree."""

from libs.bus import NeedsHuman, Permanent, Step
from libs.contracts.run import Policy, RunEdited, RunPlanned, RunRejected, RunVerified, Verdict
from libs.repository import ConfigError
from libs.repository.committed import read_commit
from services.verifier.domain import contract_verdict, no_tests_wanted, setup_verdict
from services.verifier.runs import CommandRun
from services.verifier.testing import SetupFailed, TestBench, Tested, describe
from services.verifier.verdict import judge, needs_rerun


async def verify(event: RunEdited, step: Step) -> RunVerified | RunRejected:
    """Test the change. Raises NeedsHuman without tests when the policy asks, Permanent when the untouched tree cannot be set up."""
    state = await step.state()
    assert state.planned is not None
    assert state.opened is not None
    planned, policy = state.planned, state.opened.policy
    bench = TestBench(step, planned.repository, policy)
    base = await _described(step, planned, planned.base_commit, policy, None)
    change = await _described(step, planned, event.commit, policy, event)
    if isinstance(change, Verdict):
        return _answer(event, change, bench)
    assert isinstance(base, Tested)
    verdict = await _verdict(bench, base, change, event, policy)
    if verdict.outcome == "no_tests" and not verdict.ok and no_tests_wanted(policy, change.project) == "ask":
        if not state.approved("verify", step.sequence):
            raise NeedsHuman(f"Nothing shows that the change works: {'; '.join(verdict.reasons)}. Commit it all the same?")
        verdict = verdict.model_copy(update={"ok": True, "reasons": (*verdict.reasons, "a person approved the change")})
    return _answer(event, verdict, bench)


async def _described(step: Step, planned: RunPlanned, commit: str, policy: Policy, change: RunEdited | None) -> Tested | Verdict:
    """How a commit is tested; a broken `.agent-coder.toml` of the change is its fault, one of the untouched tree ends the run."""
    try:
        return describe(commit, await read_commit(step.ask, planned.repository, commit, ""), policy)
    except ConfigError as error:
        if change is None:
            raise Permanent(f"the repository's .agent-coder.toml cannot be followed: {error}") from error
        return Verdict(ok=False, outcome="failed", reasons=("the change broke .agent-coder.toml",), feedback=str(error)[:16_000])


async def _verdict(bench: TestBench, base: Tested, change: Tested, event: RunEdited, policy: Policy) -> Verdict:
    before = await _baseline(bench, base)
    try:
        await bench.lay(change)
    except SetupFailed as failed:
        return setup_verdict(failed.commands)
    operation = f"attempt-{event.attempt}-{event.commit[:16]}"
    after = await bench.run(change, "test", operation)
    first = judge(before, after, event.changed_files)
    if not needs_rerun(first):
        return contract_verdict(first)
    await bench.lay(change)
    again = await bench.run(change, "rerun", f"{operation}-rerun")
    return contract_verdict(judge(before, after, event.changed_files, again))


async def _baseline(bench: TestBench, base: Tested) -> list[CommandRun]:
    try:
        await bench.lay(base)
    except SetupFailed as failed:
        tail = failed.commands[-1] if failed.commands else None
        words = f"`{tail.command}` {tail.outcome} {tail.exit_code}:\n{tail.output_tail[-2000:]}" if tail else ""
        raise Permanent(
            "The set-up of the untouched repository failed, so its tests cannot run. Name working commands in .agent-coder.toml "
            f"([setup] commands = […]) or in the run's policy (setup_commands).\n{words}"
        ) from failed
    return await bench.baseline(base)


def _answer(event: RunEdited, verdict: Verdict, bench: TestBench) -> RunVerified | RunRejected:
    commands = tuple(bench.shown)
    if not verdict.ok:
        return RunRejected(run_id=event.run_id, attempt=event.attempt, commit=event.commit, verdict=verdict, commands=commands)
    return RunVerified(
        run_id=event.run_id,
        attempt=event.attempt,
        commit=event.commit,
        verdict=verdict,
        commands=commands,
        changed_files=event.changed_files,
    )
