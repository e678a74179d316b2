"""The verdict in the words of the contract."""

from libs.contracts.run import CommandRun, NoTests, Policy, Verdict
from libs.repository import Project
from services.verifier.verdict import Verdict as Found

_FEEDBACK = 16_000


def contract_verdict(found: Found) -> Verdict:
    """What the comparison found, as it goes on the journal."""
    return Verdict(
        ok=found.ok,
        outcome=found.outcome,
        reasons=tuple(r[:2000] for r in found.reasons),
        newly_failing=found.newly_failing,
        newly_passing=found.newly_passing,
        feedback=found.feedback[:_FEEDBACK],
    )


def setup_verdict(commands: tuple[CommandRun, ...]) -> Verdict:
    """The change made the set-up fail, which the untouched tree did not."""
    last = commands[-1] if commands else None
    command = last.command.rsplit("\n", 1)[-1] if last else "the set-up"
    feedback = f"After the change the set-up fails at `{command}`:\n{last.output_tail if last else ''}"
    return Verdict(ok=False, outcome="setup_failed", reasons=(f"`{command}` fails after the change",), feedback=feedback[:_FEEDBACK])


def no_tests_wanted(policy: Policy, project: Project) -> NoTests:
    """What happens without tests: the repository's own word, else the run's policy."""
    return project.no_tests or policy.no_tests
