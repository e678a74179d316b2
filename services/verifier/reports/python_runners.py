"""Reading pytest (short summary and JUnit XML) and unittest (verbose and plain)."""

import re
from xml.etree import ElementTree

from services.verifier.reports.models import Findings, Status, TestCounts

_PYTEST_TOTAL = re.compile(r"^=*\s*((?:\d+ [a-z]+(?: [a-z]+)?(?:, )?)+) in [\d.]+\s?s\b|^=*\s*(no tests ran|no tests collected)\b")
_PYTEST_NUMBER = re.compile(r"(\d+) (passed|failed|errors?|skipped|xfailed|xpassed)")
_PYTEST_LINE = re.compile(r"^(PASSED|FAILED|ERROR|XFAIL|XPASS|SUBFAIL(?:ED)?)\S* (\S.*)$")
_PYTEST_STATUS: dict[str, Status] = {"PASSED": "passed", "XPASS": "passed", "FAILED": "failed", "ERROR": "failed", "XFAIL": "skipped"}
_PYTEST_HEADER = "short test summary info"

_UNITTEST_RAN = re.compile(r"^Ran (\d+) tests? in ")
_UNITTEST_END = re.compile(r"^(?:OK|FAILED|NO TESTS RAN)(?: \((.*)\))?$")
_UNITTEST_NAME = re.compile(r"^(\w+) \(([\w.<>]+)\)")
_UNITTEST_RESULT = re.compile(r"(?:^|\.\.\. )(ok|FAIL|ERROR|skipped .*|expected failure|unexpected success)$")
_UNITTEST_PROBLEM = re.compile(r"^(?:FAIL|ERROR): (.+)$")


def parse_pytest(lines: list[str]) -> Findings:
    """Read the end of pytest's output; a test's own printing counts for nothing once the summary header is there."""
    found = Findings()
    starts = [index for index, line in enumerate(lines) if _PYTEST_HEADER in line and line.startswith("=")]
    for line in lines[starts[-1] :] if starts else lines:
        if match := _PYTEST_LINE.match(line):
            status = _PYTEST_STATUS.get(match.group(1), "failed")
            if name := _node_id(match.group(2)):
                found.add_once(name, status)
    for line in reversed(lines):
        if total := _PYTEST_TOTAL.match(line):
            found.counts = _pytest_counts(total.group(1) or "")
            return found
    return found if starts else Findings()


def _node_id(text: str) -> str | None:
    """Return the node id of a summary line: what stands before " - reason", brackets of parameters respected."""
    depth = 0
    for index, character in enumerate(text):
        depth += (character == "[") - (character == "]")
        if depth <= 0 and text.startswith(" - ", index):
            text = text[:index]
            break
    path = text.split("::", 1)[0]
    return text.strip() if path.endswith((".py", ".txt", ".rst", ".md", ".yaml", ".yml")) else None


def _pytest_counts(text: str) -> TestCounts:
    number = {word.rstrip("s") if word.startswith("error") else word: int(count) for count, word in _PYTEST_NUMBER.findall(text)}
    return TestCounts(
        passed=number.get("passed", 0) + number.get("xpassed", 0),
        failed=number.get("failed", 0) + number.get("error", 0),
        skipped=number.get("skipped", 0) + number.get("xfailed", 0),
    )


def parse_junit_xml(text: str) -> Findings:
    """Read a JUnit XML file; with pytest's xunit1 family the names equal those of its short summary."""
    found = Findings()
    try:
        root = ElementTree.fromstring(text)
    except ElementTree.ParseError:
        return found
    for case in root.iter("testcase"):
        tags = {child.tag for child in case}
        status: Status = "failed" if tags & {"failure", "error"} else "skipped" if "skipped" in tags else "passed"
        if (case.get("name") or "").strip():
            found.add(_junit_name(case), status)
    if not found and root.tag in {"testsuites", "testsuite"}:
        found.counts = TestCounts()
    return found


def _junit_name(case: ElementTree.Element) -> str:
    name, classname, file = case.get("name", ""), case.get("classname", ""), case.get("file")
    if not file:
        return f"{classname}.{name}" if classname else name
    module = file.removesuffix(".py").replace("/", ".")
    if not classname:
        return file
    inner = classname.removeprefix(module).strip(".") if classname.startswith(module) else ""
    return "::".join([file, *(inner.split(".") if inner else []), name])


def parse_unittest(lines: list[str]) -> Findings:
    """Read unittest's output; names of passed tests are there only with -v."""
    found = Findings()
    current: str | None = None
    ran: int | None = None
    problems: set[str] = set()
    for line in lines:
        if total := _UNITTEST_RAN.match(line):
            ran = int(total.group(1))
        elif ran is not None and (end := _UNITTEST_END.match(line)):
            found.counts = _unittest_counts(ran, end.group(1) or "")
        elif problem := _UNITTEST_PROBLEM.match(line):
            problems.add(_unittest_name(problem.group(1)))
        else:
            current = _unittest_line(line, current, found)
    for name in sorted(problems):
        found.add_once(name, "failed")
    return found if ran is not None or found else Findings()


def _unittest_line(line: str, current: str | None, found: Findings) -> str | None:
    """Take one line of the verbose listing; return the test whose result is still awaited."""
    if _UNITTEST_NAME.match(line):
        current = _unittest_name(line)
    result = _UNITTEST_RESULT.search(line)
    if result is None or current is None:
        return current
    word = result.group(1)
    if word in {"FAIL", "ERROR", "unexpected success"}:
        found.add_once(current, "failed")
    else:
        found.add(current, "passed" if word == "ok" else "skipped")
    return None


def _unittest_name(text: str) -> str:
    """Return `module.Class.test`, the same for Python before and after 3.11."""
    match = _UNITTEST_NAME.match(text)
    if match is None:
        return text.strip()
    method, place = match.groups()
    return place if place.endswith(f".{method}") else f"{place}.{method}"


def _unittest_counts(ran: int, details: str) -> TestCounts:
    number = {key.strip(): int(value) for key, value in re.findall(r"([a-z ]+)=(\d+)", details)}
    failed = number.get("failures", 0) + number.get("errors", 0) + number.get("unexpected successes", 0)
    skipped = number.get("skipped", 0) + number.get("expected failures", 0)
    return TestCounts(passed=max(ran - failed - skipped, 0), failed=failed, skipped=skipped)
