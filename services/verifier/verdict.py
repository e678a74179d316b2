"""The verdict on a change: what the tests said before it against what they say after it.

Invariant: only commands that ran to their end and said so can make a change pass; a dropped stream, a deadline or a silent loss never does.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from pydantic import BaseModel, ConfigDict

from libs.contracts.run import ChangedFile
from services.verifier.feedback import write_feedback
from services.verifier.losses import deleted_tests, losses, renamed, these, unmoved
from services.verifier.runs import CommandRun

__all__ = ["ChangedFile", "CommandRun", "Outcome", "Verdict", "judge", "needs_rerun"]

Outcome = Literal["passed", "failed", "no_tests", "timeout", "unknown", "flaky_passed", "tests_removed"]
NoTests = Literal["fail", "ask", "pass"]

_PYTEST_NOTHING_COLLECTED = 5
_NAMES_KEPT = 200


class Verdict(BaseModel):
    """The decision and its grounds. Only ok lets a change be committed; `no_tests` without ok may be put to a person."""

    model_config = ConfigDict(frozen=True)

    ok: bool
    outcome: Outcome
    reasons: tuple[str, ...] = ()
    newly_failing: tuple[str, ...] = ()
    newly_passing: tuple[str, ...] = ()
    still_failing: tuple[str, ...] = ()
    feedback: str = ""


@dataclass
class _Findings:
    """What the comparison of all commands brought to light."""

    failures: list[str] = field(default_factory=list)
    timeouts: list[str] = field(default_factory=list)
    unknowns: list[str] = field(default_factory=list)
    removals: list[str] = field(default_factory=list)
    newly_failing: set[str] = field(default_factory=set)
    newly_passing: set[str] = field(default_factory=set)
    still_failing: set[str] = field(default_factory=set)


def judge(
    baseline: Sequence[CommandRun],
    after: Sequence[CommandRun],
    changed: Sequence[ChangedFile],
    rerun: Sequence[CommandRun] | None = None,
    no_tests: NoTests = "fail",
) -> Verdict:
    """Decide whether a change may be committed.

    baseline: the test commands on the untouched tree. after: the same commands on the changed one. rerun: the second try, when the first
    verdict asked for it (`needs_rerun`); a change that passes only then is `flaky_passed`.
    """
    first = _judge_once(baseline, after, changed, no_tests)
    if rerun is None or not needs_rerun(first):
        return first
    second = _judge_once(baseline, rerun, changed, no_tests)
    if not second.ok:
        return second.model_copy(update={"reasons": (*second.reasons, "the second run of the tests did not pass either")})
    told = f"the first run did not pass ({'; '.join(first.reasons)}), the second one did"
    outcome: Outcome = "passed" if first.outcome == "unknown" else "flaky_passed"
    return second.model_copy(update={"outcome": outcome, "reasons": (*second.reasons, told)})


def needs_rerun(verdict: Verdict) -> bool:
    """Tell whether running the tests once more can change the verdict: a test may be unstable, a stream may have been cut."""
    return not verdict.ok and verdict.outcome in {"failed", "unknown"}


def _judge_once(baseline: Sequence[CommandRun], after: Sequence[CommandRun], changed: Sequence[ChangedFile], no_tests: NoTests) -> Verdict:
    before = {run.command: run for run in baseline}
    found = _Findings()
    found.removals.extend(f"the test file {path} was deleted" for path in deleted_tests(changed))
    for run in after:
        _compare(before.get(run.command), run, changed, found)
    present = {run.command for run in after}
    found.removals.extend(
        f"`{run.command}` is no longer a test command of the repository"
        for run in baseline
        if run.command not in present and _ran_tests(run)
    )
    outcome, reasons = _outcome(found)
    if outcome == "passed" and not any(_ran_tests(run) for run in after):
        return _without_tests(no_tests, "no tests found")
    if outcome == "passed" and not any(_shows_something(run) for run in after):
        return _without_tests(no_tests, "no test passes, before the change or after it")
    verdict = Verdict(
        ok=outcome == "passed",
        outcome=outcome,
        reasons=tuple(reasons),
        newly_failing=tuple(sorted(found.newly_failing)[:_NAMES_KEPT]),
        newly_passing=tuple(sorted(found.newly_passing)[:_NAMES_KEPT]),
        still_failing=tuple(sorted(found.still_failing)[:_NAMES_KEPT]),
    )
    return verdict if verdict.ok else verdict.model_copy(update={"feedback": write_feedback(verdict.reasons, found.newly_failing, after)})


def _outcome(found: _Findings) -> tuple[Outcome, list[str]]:
    """Choose the word for the findings; the gravest and the surest come first, and every reason is kept."""
    reasons = [*found.timeouts, *found.failures, *found.unknowns, *found.removals]
    if found.timeouts:
        return "timeout", reasons
    if found.failures:
        return "failed", reasons
    if found.unknowns:
        return "unknown", reasons
    return ("tests_removed" if found.removals else "passed"), reasons


def _without_tests(no_tests: NoTests, reason: str) -> Verdict:
    advice = f"Nothing shows that the change works ({reason}): add tests that do, where the repository's runner finds them."
    return Verdict(ok=no_tests == "pass", outcome="no_tests", reasons=(reason,), feedback="" if no_tests == "pass" else advice)


def _shows_something(run: CommandRun) -> bool:
    """Tell whether at least one test passed, or the command as a whole where tests are not counted."""
    counts = run.report.counts
    return run.exit_code == 0 or bool(run.report.passed) or (counts is not None and counts.passed > 0)


def _ran_tests(run: CommandRun) -> bool:
    """Tell whether a command may have run a test; an unknown runner gets the benefit of the doubt."""
    return not run.report.ran_nothing


def _is_empty_run(run: CommandRun) -> bool:
    """Tell whether the runner came to its end and found nothing: no change is to blame for its exit code."""
    by_code = run.exit_code == _PYTEST_NOTHING_COLLECTED and run.report.runner in {"pytest", "unittest"}
    return run.report.ran_nothing and (run.exit_code == 0 or by_code)


def _compare(before: CommandRun | None, after: CommandRun, changed: Sequence[ChangedFile], found: _Findings) -> None:
    """Add to the findings what one command tells."""
    if after.is_unknown:
        found.unknowns.append(f"`{after.command}` {after.ending}")
        return
    if after.outcome != "exited":
        (found.timeouts if after.outcome == "timeout" else found.failures).append(f"`{after.command}` {after.ending}")
        return
    if before is not None and before.is_unknown:
        found.unknowns.append(f"`{after.command}` {before.ending} on the untouched tree: there is nothing to compare with")
        return
    old = before if before is not None and before.outcome == "exited" else None
    known_failed = renamed(old.report.failed, changed) if old else frozenset()
    failing = after.report.failed - known_failed
    found.newly_failing |= failing
    found.still_failing |= after.report.failed & known_failed
    if old:
        found.newly_passing |= after.report.passed & known_failed
    if failing:
        found.failures.append(f"`{after.command}`: {these(failing)} failed that did not fail before")
    elif reason := _exit_reason(old, after, known_failed):
        found.failures.append(reason)
    elif stuck := unmoved(old.report if old else None, after.report, changed):
        found.failures.append(f"`{after.command}`: the change touches {these(stuck)}, where nothing passes that did not pass before")
    if old:
        found.removals.extend(losses(old, after, changed))


def _exit_reason(old: CommandRun | None, after: CommandRun, known_failed: frozenset[str]) -> str | None:
    """Return why an exit code other than 0 counts, or None when tests that failed before explain it."""
    if after.exit_code == 0 or _is_empty_run(after):
        return None
    explained = bool(after.report.failed) and after.report.failed <= known_failed
    if old is not None and old.exit_code != 0 and explained and _failed_count(after) <= max(_failed_count(old), len(after.report.failed)):
        return None
    if old is not None and old.exit_code != 0:
        return f"`{after.command}` {after.ending}, as before; nothing shows that the failures are the old ones"
    return f"`{after.command}` {after.ending}"


def _failed_count(run: CommandRun) -> int:
    return run.report.counts.failed if run.report.counts else len(run.report.failed)
