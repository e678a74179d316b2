"""What a test run said, in one shape for every runner.

Invariant: a name is in at most one of passed, failed and skipped; a name that occurs several times is passed only when every one passed.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Literal

from pydantic import BaseModel, ConfigDict

Status = Literal["passed", "failed", "skipped"]


class TestCounts(BaseModel):
    """How many tests there were, as the runner's own summary says it."""

    __test__ = False
    model_config = ConfigDict(frozen=True)

    passed: int = 0
    failed: int = 0
    skipped: int = 0

    @property
    def total(self) -> int:
        return self.passed + self.failed + self.skipped


class TestReport(BaseModel):
    """The result of one test command."""

    __test__ = False
    model_config = ConfigDict(frozen=True)

    runner: str
    passed: frozenset[str] = frozenset()
    failed: frozenset[str] = frozenset()
    skipped: frozenset[str] = frozenset()
    counts: TestCounts | None = None
    """None: the output gave no numbers, so only the exit code speaks."""
    named: bool = False
    """The tests that passed are listed by name; otherwise only the numbers and, mostly, the failed names are known."""
    complete: bool = True
    """The output was read from its first byte to its last."""

    @property
    def ran_nothing(self) -> bool:
        """The runner itself says that it found no test."""
        return self.counts is not None and self.counts.total == 0 and not self.failed


class Findings:
    """What a parser gathers, line by line."""

    def __init__(self) -> None:
        self._seen: dict[str, list[Status]] = defaultdict(list)
        self.counts: TestCounts | None = None

    def add(self, name: str, status: Status) -> None:
        """Note one result; the same name may come again."""
        self._seen[name.strip()].append(status)

    def add_once(self, name: str, status: Status) -> None:
        """Note a result that another part of the output may have told already."""
        if status not in self._seen[name.strip()]:
            self.add(name, status)

    def __bool__(self) -> bool:
        return self.counts is not None or any(self._seen.values())

    def report(self, runner: str, *, complete: bool, named: bool | None = None) -> TestReport:
        """Close the gathering. named: None means that names are known when as many passed by name as the summary counts."""
        sets: dict[Status, set[str]] = {"passed": set(), "failed": set(), "skipped": set()}
        for name, statuses in self._seen.items():
            for label, status in _occurrences(name, statuses):
                sets[status].add(label)
        counts = self.counts or (_count(self._seen.values()) if self._seen else None)
        if named is None:
            named = counts is not None and bool(sets["passed"] or not counts.passed) and len(sets["passed"]) >= counts.passed
        return TestReport(
            runner=runner,
            passed=frozenset(sets["passed"]),
            failed=frozenset(sets["failed"]),
            skipped=frozenset(sets["skipped"]),
            counts=counts,
            named=named,
            complete=complete,
        )


def _occurrences(name: str, statuses: list[Status]) -> Iterable[tuple[str, Status]]:
    """Number the occurrences of a name: one that fails makes all of them fail, since nobody can tell them apart."""
    ordered: list[Status] = ["failed"] * len(statuses) if "failed" in statuses else sorted(statuses)
    for index, status in enumerate(ordered, start=1):
        yield (name if index == 1 else f"{name} ({index})"), status


def _count(groups: Iterable[list[Status]]) -> TestCounts:
    counter = Counter(status for statuses in groups for status in statuses)
    return TestCounts(passed=counter["passed"], failed=counter["failed"], skipped=counter["skipped"])
