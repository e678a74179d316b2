"""From the output of a test command to its report.

Invariant: an output that no parser knows gives a report without names and numbers; it never passes for an empty test suite.
"""

import re
from collections.abc import Callable

from services.verifier.reports import javascript_runners, other_runners, python_runners
from services.verifier.reports.models import Findings, TestReport

_PARSERS: dict[str, Callable[[list[str]], Findings]] = {
    "go": other_runners.parse_go_json,
    "cargo": other_runners.parse_cargo,
    "pytest": python_runners.parse_pytest,
    "unittest": python_runners.parse_unittest,
    "vitest": javascript_runners.parse_vitest,
    "jest": javascript_runners.parse_jest,
    "node": javascript_runners.parse_node_spec,
    "tap": javascript_runners.parse_tap,
    "mocha": javascript_runners.parse_mocha,
    "maven": other_runners.parse_surefire,
    "gradle": other_runners.parse_gradle,
    "go-plain": other_runners.parse_go,
}
_HINTS = ("pytest", "unittest", "cargo", "vitest", "jest", "mocha")
_NEVER_NAMED = frozenset({"maven", "gradle", "go-plain"})
_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07\x1b]*\x07")
UNKNOWN_RUNNER = "unknown"


def parse_report(command: str, output: str, *, complete: bool = True, junit_xml: str | None = None, root: str = "/workspace") -> TestReport:
    """Read what a test command printed.

    complete: the output was not cut; of a cut one the end is expected, for that is where runners sum up.
    junit_xml: the text of the command's report file, which goes before its output.
    root: the folder the command ran in; it is taken out of names, so that two workspaces agree.
    """
    if junit_xml and (found := python_runners.parse_junit_xml(junit_xml)):
        return found.report("pytest" if "pytest" in command else "junit", complete=True, named=True)
    lines = [_clean(line, root) for line in output.splitlines()]
    hinted = [name for name in _HINTS if name in command]
    for runner in [*hinted, *(name for name in _PARSERS if name not in hinted)]:
        if found := _PARSERS[runner](lines):
            return found.report(runner, complete=complete, named=False if runner in _NEVER_NAMED else None)
    return TestReport(runner=UNKNOWN_RUNNER, complete=complete)


def _clean(line: str, root: str) -> str:
    return _ANSI.sub("", line).rstrip("\r").replace(f"{root.rstrip('/')}/", "")
