"""Reading node --test (TAP and spec), tape and other TAP, mocha, jest and vitest."""

import re

from services.verifier.reports.models import Findings, Status, TestCounts

_SEPARATOR = " > "

_TAP_RESULT = re.compile(r"^(\s*)(not )?ok\s+(\d+)(?:\s+-)?(?:\s+(.*))?$")
_TAP_DIRECTIVE = re.compile(r"(?:^|\s)#\s*(SKIP|TODO)\b.*$", re.IGNORECASE)
_TAP_PLAN = re.compile(r"^\s*1\.\.(\d+)")
_TAP_SUBTEST = re.compile(r"^(\s*)# Subtest: (.*)$")
_TAP_NUMBER = re.compile(r"^# (tests|pass|fail|cancelled|skipped|todo)\s+(\d+)$")
_TAP_SUMMARY = re.compile(r"^# (?:(?:tests|pass|fail|cancelled|skipped|skip|todo|suites|duration_ms)\b\s*[\d.]+|ok|failed.*)\s*$")

_SPEC_LINE = re.compile(r"^( *)([✔✖﹣▶])\s(.+?)(?: \([\d.]+ms\)(?: # .*)?)?$")
_SPEC_NUMBER = re.compile(r"^ℹ (tests|pass|fail|cancelled|skipped|todo) (\d+)$")
_SPEC_MARKS: dict[str, Status] = {"✔": "passed", "✖": "failed", "﹣": "skipped"}

_LISTED = re.compile(r"^( +)(✔|✓|√|✕|×|○ skipped|○|✎ todo|-|\d+\))\s(.+?)(?: \([\d.]+ ?m?s\))?$")
_LISTED_SUITE = re.compile(r"^( +)(\S.*)$")
_MOCHA_NUMBER = re.compile(r"^\s+(\d+) (passing|failing|pending)\b")
_JEST_FILE = re.compile(r"^(?:PASS|FAIL) (\S+)")
_JEST_TOTAL = re.compile(r"^Tests:\s+(.*\btotal)\b")
_VITEST_LINE = re.compile(r"^\s*([✓✔×✗↓])\s+(.+ > .+?)(?:\s+\d+ ?m?s)?(?: \[skipped\])?$")
_VITEST_TOTAL = re.compile(r"^\s+Tests\s+(\d.*)\(\d+\)")
_VITEST_MARKS: dict[str, Status] = {"✓": "passed", "✔": "passed", "↓": "skipped"}


def parse_tap(lines: list[str]) -> Findings:
    """Read TAP 12 to 14: node's nested subtests, or tape's flat assertions, which count as one test for each comment above them."""
    results = [line for line in lines if _TAP_RESULT.match(line)]
    if not results or not any(line.startswith("TAP version") or _TAP_PLAN.match(line) or _TAP_NUMBER.match(line) for line in lines):
        return Findings()
    if any(_TAP_SUBTEST.match(line) for line in lines):
        return _nested_tap(lines)
    return _flat_tap(lines)


def _nested_tap(lines: list[str]) -> Findings:
    found = Findings()
    open_tests: dict[int, str] = {}
    numbers: dict[str, int] = {}
    for line in lines:
        if subtest := _TAP_SUBTEST.match(line):
            depth = len(subtest.group(1))
            open_tests = {level: name for level, name in open_tests.items() if level < depth}
            open_tests[depth] = _tap_text(subtest.group(2))
        elif number := _TAP_NUMBER.match(line):
            numbers[number.group(1)] = int(number.group(2))
        elif result := _TAP_RESULT.match(line):
            name, status = _tap_result(result)
            parents = [text for level, text in sorted(open_tests.items()) if level < len(result.group(1))]
            found.add(_SEPARATOR.join([*parents, name]), status)
    found.counts = _numbered(numbers)
    return found


def _flat_tap(lines: list[str]) -> Findings:
    found = Findings()
    tests: list[tuple[str, list[Status]]] = []
    for line in lines:
        if result := _TAP_RESULT.match(line):
            name, status = _tap_result(result)
            if tests:
                tests[-1][1].append(status)
            else:
                found.add(name, status)
        elif line.startswith("# ") and not _TAP_SUMMARY.match(line):
            title = line[2:].strip()
            skipped = title.upper().startswith("SKIP ")
            tests.append((title[5:] if skipped else title, ["skipped"] if skipped else []))
    for name, statuses in tests:
        if statuses:
            found.add(name, "failed" if "failed" in statuses else "passed" if "passed" in statuses else "skipped")
    return found


def _tap_result(match: re.Match[str]) -> tuple[str, Status]:
    text = match.group(4) or ""
    directive = _TAP_DIRECTIVE.search(text)
    name = _tap_text(_TAP_DIRECTIVE.sub("", text)) or f"#{match.group(3)}"
    if directive:
        return name, "skipped"
    return name, "failed" if match.group(2) else "passed"


def _tap_text(text: str) -> str:
    return re.sub(r"\\([#\\])", r"\1", text).strip()


def _numbered(numbers: dict[str, int]) -> TestCounts | None:
    if "pass" not in numbers:
        return None
    return TestCounts(
        passed=numbers["pass"],
        failed=numbers.get("fail", 0) + numbers.get("cancelled", 0),
        skipped=numbers.get("skipped", 0) + numbers.get("todo", 0),
    )


def parse_node_spec(lines: list[str]) -> Findings:
    """Read node's spec reporter; its repetition of the failures at the end is left out."""
    numbers = {match.group(1): int(match.group(2)) for line in lines if (match := _SPEC_NUMBER.match(line))}
    found = Findings()
    if "pass" not in numbers:
        return found
    open_tests: dict[int, str] = {}
    for line in lines:
        if line.startswith("✖ failing tests:"):
            break
        if match := _SPEC_LINE.match(line):
            depth, mark, name = len(match.group(1)), match.group(2), match.group(3)
            open_tests = {level: text for level, text in open_tests.items() if level < depth}
            if mark == "▶":
                open_tests[depth] = name
            else:
                status: Status = "skipped" if line.endswith("# TODO") else _SPEC_MARKS[mark]
                found.add(_SEPARATOR.join([*(text for _, text in sorted(open_tests.items())), name]), status)
    found.counts = _numbered(numbers)
    return found


def parse_mocha(lines: list[str]) -> Findings:
    """Read mocha's spec reporter."""
    numbers = {match.group(2): int(match.group(1)) for line in lines if (match := _MOCHA_NUMBER.match(line))}
    if "passing" not in numbers:
        return Findings()
    end = next(index for index, line in enumerate(lines) if _MOCHA_NUMBER.match(line))
    found = _listing(lines[:end])
    found.counts = TestCounts(passed=numbers["passing"], failed=numbers.get("failing", 0), skipped=numbers.get("pending", 0))
    return found


def parse_jest(lines: list[str]) -> Findings:
    """Read jest; the tests' names are there with --verbose."""
    totals = [match.group(1) for line in lines if (match := _JEST_TOTAL.match(line))]
    if not totals:
        return Findings()
    listing: list[str] = []
    listed = False
    for line in lines:
        if _JEST_FILE.match(line):
            listed = True
        elif not line.strip() or line.lstrip().startswith("●"):
            listed = False
        if listed:
            listing.append(line)
    found = _listing(listing)
    found.counts = _worded(totals)
    return found


def parse_vitest(lines: list[str]) -> Findings:
    """Read vitest; the tests' names are there with --reporter=verbose."""
    totals = [match.group(1) for line in lines if (match := _VITEST_TOTAL.match(line))]
    found = Findings()
    if not totals:
        return found
    for line in lines:
        if match := _VITEST_LINE.match(line):
            found.add(match.group(2), _VITEST_MARKS.get(match.group(1), "failed"))
    found.counts = _worded(totals)
    return found


def _listing(lines: list[str]) -> Findings:
    """Read an indented listing of suites and marked tests; a file's name, where there is one, comes first in each test's name."""
    found = Findings()
    suites: dict[int, str] = {}
    for line in lines:
        if file := _JEST_FILE.match(line):
            suites = {0: file.group(1)}
        elif test := _LISTED.match(line):
            parents = [text for level, text in sorted(suites.items()) if level < len(test.group(1))]
            found.add(_SEPARATOR.join([*parents, test.group(3)]), _listed_status(test.group(2)))
        elif suite := _LISTED_SUITE.match(line):
            depth = len(suite.group(1))
            suites = {level: text for level, text in suites.items() if level < depth}
            suites[depth] = suite.group(2)
    return found


def _listed_status(mark: str) -> Status:
    if mark in {"✔", "✓", "√"}:
        return "passed"
    return "skipped" if mark[0] in "○✎-" else "failed"


def _worded(totals: list[str]) -> TestCounts:
    """Add up "1 failed, 2 passed" over all the totals of the output."""
    words = ["passed", "failed", "skipped", "todo"]
    number = {word: sum(int(count) for text in totals for count in re.findall(rf"(\d+) {word}\b", text)) for word in words}
    return TestCounts(passed=number["passed"], failed=number["failed"], skipped=number["skipped"] + number["todo"])
