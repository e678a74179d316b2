"""Reading go test (plain and JSON), cargo test, and the builds of Maven and Gradle."""

import json
import re

from services.verifier.reports.models import Findings, Status, TestCounts

_GO_STATUS: dict[str, Status] = {
    "pass": "passed",
    "fail": "failed",
    "skip": "skipped",
    "PASS": "passed",
    "FAIL": "failed",
    "SKIP": "skipped",
}
_GO_RESULT = re.compile(r"^\s*--- (PASS|FAIL|SKIP): (\S+)")
_GO_PACKAGE = re.compile(r"^(ok  |FAIL|---|\?   )\t(\S+)")

_CARGO_RESULT = re.compile(r"^test (\S.*?)(?: - should panic)? \.\.\. (ok|FAILED|ignored)(?:,.*)?$")
_CARGO_TOTAL = re.compile(r"^test result: \w+\. (\d+) passed; (\d+) failed; (\d+) ignored")
_CARGO_STATUS: dict[str, Status] = {"ok": "passed", "FAILED": "failed", "ignored": "skipped"}
_CARGO_LINE_NUMBER = re.compile(r" \(line \d+\)")

_SUREFIRE = re.compile(r"Tests run: (\d+), Failures: (\d+), Errors: (\d+), Skipped: (\d+)(?!, Time)(?:\s*)$")
_SUREFIRE_CASE = re.compile(r"^(?:\[ERROR\] )?(?:(\w+)\(([\w.$]+)\)\s+|([\w.$]+)\.(\w+) -- )Time elapsed: .*<<< (?:FAILURE|ERROR)!")
_GRADLE_CASE = re.compile(r"^(\S.*? > .+) (FAILED|PASSED|SKIPPED)$")
_GRADLE_TOTAL = re.compile(r"^(\d+) tests? completed(?:, (\d+) failed)?(?:, (\d+) skipped)?")
_GRADLE_STATUS: dict[str, Status] = {"PASSED": "passed", "FAILED": "failed", "SKIPPED": "skipped"}


def parse_go_json(lines: list[str]) -> Findings:
    """Read `go test -json`; a package that fails without a failing test (it does not build) stands under its own name."""
    found = Findings()
    broken: set[str] = set()
    with_failures: set[str] = set()
    for line in lines:
        event = _go_event(line)
        action, package = str(event.get("Action")), str(event.get("Package", ""))
        if action not in {"pass", "fail", "skip"}:
            continue
        if test := event.get("Test"):
            found.add(f"{package}.{test}", _GO_STATUS[action])
            if action == "fail":
                with_failures.add(package)
        elif action == "fail":
            broken.add(package)
    for package in sorted(broken - with_failures):
        found.add(package, "failed")
    return found


def _go_event(line: str) -> dict[str, object]:
    if not line.startswith("{"):
        return {}
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return event if isinstance(event, dict) else {}


def parse_go(lines: list[str]) -> Findings:
    """Read plain `go test`; passed tests have names only with -v. The package's line comes after its tests."""
    found = Findings()
    waiting: list[tuple[str, Status]] = []
    for line in lines:
        if result := _GO_RESULT.match(line):
            waiting.append((result.group(2), _GO_STATUS[result.group(1)]))
        elif package := _GO_PACKAGE.match(line):
            for name, status in waiting:
                found.add(f"{package.group(2)}.{name}", status)
            if package.group(1) == "FAIL" and not any(status == "failed" for _, status in waiting):
                found.add(package.group(2), "failed")
            elif package.group(1) == "ok  " and not any(status == "passed" for _, status in waiting):
                found.add(package.group(2), "passed")
            waiting = []
    return found


def parse_cargo(lines: list[str]) -> Findings:
    """Read `cargo test`. The line number of a documentation test is left out of its name: it moves with every edit."""
    found = Findings()
    totals: list[tuple[int, ...]] = []
    for line in lines:
        if total := _CARGO_TOTAL.match(line):
            totals.append(tuple(int(number) for number in total.groups()))
        elif result := _CARGO_RESULT.match(line):
            found.add(_CARGO_LINE_NUMBER.sub("", result.group(1)), _CARGO_STATUS[result.group(2)])
    if not totals:
        return Findings()
    passed, failed, skipped = (sum(column) for column in zip(*totals, strict=True))
    found.counts = TestCounts(passed=passed, failed=failed, skipped=skipped)
    return found


def parse_surefire(lines: list[str]) -> Findings:
    """Read Maven's totals, added up over the modules, and the names of the tests that failed."""
    found = Findings()
    totals: list[tuple[int, ...]] = []
    for line in lines:
        if case := _SUREFIRE_CASE.match(line):
            method, owner = (case.group(1), case.group(2)) if case.group(1) else (case.group(4), case.group(3))
            found.add_once(f"{owner}.{method}", "failed")
        elif total := _SUREFIRE.search(line):
            totals.append(tuple(int(number) for number in total.groups()))
    if not totals:
        return Findings()
    ran, failures, errors, skipped = (sum(column) for column in zip(*totals, strict=True))
    found.counts = TestCounts(passed=max(ran - failures - errors - skipped, 0), failed=failures + errors, skipped=skipped)
    return found


def parse_gradle(lines: list[str]) -> Findings:
    """Read Gradle, which by default names failing tests only and is silent when all pass."""
    found = Findings()
    for line in lines:
        if case := _GRADLE_CASE.match(line):
            found.add(case.group(1), _GRADLE_STATUS[case.group(2)])
        elif total := _GRADLE_TOTAL.match(line):
            ran, failed, skipped = (int(number or 0) for number in total.groups())
            found.counts = TestCounts(passed=max(ran - failed - skipped, 0), failed=failed, skipped=skipped)
    return found
