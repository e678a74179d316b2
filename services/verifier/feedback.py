"""What the next attempt is told about a verdict: the reasons, the failing tests, and the end of what the commands printed."""

from collections.abc import Iterable, Sequence

from services.verifier.runs import CommandRun

TAIL_CHARACTERS = 4000
_NAMES_SHOWN = 20
_NAME_CHARACTERS = 200


def write_feedback(reasons: Sequence[str], newly_failing: Iterable[str], runs: Sequence[CommandRun]) -> str:
    """Write the feedback; the tails of all commands that did not end well share 4,000 characters."""
    lines = ["The change was not accepted:", *(f"- {reason}" for reason in reasons)]
    names = sorted(name[:_NAME_CHARACTERS] for name in newly_failing)
    if names:
        lines += ["", "Tests that fail with this change and did not fail before:", *(f"- {name}" for name in names[:_NAMES_SHOWN])]
        if len(names) > _NAMES_SHOWN:
            lines.append(f"- … and {len(names) - _NAMES_SHOWN} more")
    told = [run for run in runs if run.output_tail.strip() and (run.exit_code != 0 or run.outcome != "exited" or run.report.failed)]
    for run in told:
        lines += ["", f"End of the output of `{run.command}` (it {run.ending}):", tail(run.output_tail, TAIL_CHARACTERS // len(told))]
    return "\n".join(lines)


def tail(text: str, limit: int) -> str:
    """Return the last `limit` characters, from the beginning of a line where there is one."""
    if len(text) <= limit:
        return text.rstrip()
    mark = "[…]\n"
    cut = text[-(limit - len(mark)) :]
    head, newline, rest = cut.partition("\n")
    return mark + (rest if newline and len(head) < limit // 2 else cut).rstrip()
