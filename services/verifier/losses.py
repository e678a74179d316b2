"""What a change took away from the tests: deleted files, tests that are gone, tests turned into skips.

Invariant: a test that was moved by a rename, or whose parameters changed, is not lost.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import PurePosixPath

from libs.contracts.run import ChangedFile
from libs.repository import is_test_path
from services.verifier.reports import TestReport
from services.verifier.runs import CommandRun

_CASE = re.compile(r"\[.*\]$|\(line \d+\)$| \(\d+\)$", re.DOTALL)
_NOT_A_TEST = re.compile(r"\._FailedTest\.|\.(?:setUp|tearDown)(?:Class|Module)$|^[^:\s]*\.(?:py|[cm]?[jt]sx?)$")


def deleted_tests(changed: Sequence[ChangedFile]) -> list[str]:
    """Return the test files that the change deletes and that do not come back elsewhere under their name."""
    moved = {old for old, _ in _moves(changed)}
    return [file.path for file in changed if file.status == "deleted" and is_test_path(file.path) and file.path not in moved]


def unmoved(old: TestReport | None, after: TestReport, changed: Sequence[ChangedFile]) -> list[str]:
    """Return the changed test files that still have failing tests and no test that newly passes: their change shows nothing."""
    if old is None or not (old.named and after.named):
        return []
    passed_before = renamed(old.passed, changed)
    files = [file.path for file in changed if file.status != "deleted" and is_test_path(file.path)]
    return [
        path
        for path in files
        if any(_is_in(name, path) for name in after.failed) and not any(_is_in(name, path) for name in after.passed - passed_before)
    ]


def _is_in(name: str, path: str) -> bool:
    if name == path or name.startswith((f"{path}::", f"{path} > ")):
        return True
    parts = _module(path)
    return any(name.startswith(".".join(parts[skip:]) + ".") for skip in range(len(parts)))


def losses(old: CommandRun, after: CommandRun, changed: Sequence[ChangedFile]) -> list[str]:
    """Name the tests that ran before and do not run after; where names are not known, say how many."""
    if old.report.named and after.report.named and old.report.complete and after.report.complete:
        return _named_losses(old.report, after.report, changed)
    before, now = old.report.counts, after.report.counts
    if before is None or now is None:
        return []
    failing = len(after.report.failed - old.report.failed)
    fewer_pass = before.passed - now.passed - max(failing, now.failed - before.failed, 0) > 0
    fewer_run = before.passed + before.failed > now.passed + now.failed and now.passed <= before.passed
    if not fewer_pass and not fewer_run:
        return []
    told = f"{now.passed} tests pass and {now.skipped} are skipped, before it were {before.passed} and {before.skipped}"
    return [f"`{after.command}`: tests were taken away ({told})"]


def _named_losses(old: TestReport, after: TestReport, changed: Sequence[ChangedFile]) -> list[str]:
    present = after.passed | after.failed
    passed, failed = renamed(old.passed, changed), renamed(old.failed, changed)
    expected = passed | failed
    skipped = (expected - present) & after.skipped
    missing = expected - present - skipped
    gone = _really_gone(missing & passed, expected, present)
    dropped = _really_gone(frozenset(name for name in missing & failed if _is_test(name, after)), expected, present)
    reasons = (
        (skipped, "ran before and is skipped"),
        (gone, "passed before and is gone"),
        (dropped, "failed before and is gone"),
    )
    return [f"{these(names)} {what}" for names, what in reasons if names]


def _is_test(name: str, after: TestReport) -> bool:
    """Tell a test from what stands for many: a file that cannot be loaded, a package that does not build, a fixture of a class."""
    if _NOT_A_TEST.search(name):
        return False
    inside = (f"{name}.", f"{name}::", f"{name} > ")
    return not any(other.startswith(inside) for other in after.passed | after.failed | after.skipped)


def _really_gone(lost: frozenset[str], expected: frozenset[str], present: frozenset[str]) -> frozenset[str]:
    """Forgive the cases of a parametrised test whose values changed, as long as it has no fewer cases than before."""
    had, has = Counter(map(_stem, expected)), Counter(map(_stem, present))
    return frozenset(name for name in lost if _stem(name) == name or has[_stem(name)] < had[_stem(name)])


def _stem(name: str) -> str:
    return _CASE.sub("", name)


def renamed(names: frozenset[str], changed: Sequence[ChangedFile]) -> frozenset[str]:
    """Write the names as they are after the change's renames, in the path form and in the module form."""
    moves = _moves(changed)
    return frozenset(_moved(name, moves) for name in names) if moves else names


def _moves(changed: Sequence[ChangedFile]) -> list[tuple[str, str]]:
    """Return (old, new) of every rename, told or seen: a file deleted here and added there under the same name."""
    told = [(file.renamed_from, file.path) for file in changed if file.status == "renamed" and file.renamed_from]
    added = {PurePosixPath(file.path).name: file.path for file in changed if file.status == "added"}
    deleted = [file.path for file in changed if file.status == "deleted"]
    return told + [(path, added[PurePosixPath(path).name]) for path in deleted if PurePosixPath(path).name in added]


def _moved(name: str, moves: Sequence[tuple[str, str]]) -> str:
    for old, new in moves:
        if name == old or name.startswith((f"{old}::", f"{old} > ")):
            return new + name[len(old) :]
        # unittest names a module from the folder that discovery starts in, so any number of leading folders may be missing.
        old_parts, new_parts = _module(old), _module(new)
        for skip in range(len(old_parts)):
            module = ".".join(old_parts[skip:])
            if name.startswith(f"{module}.") and old_parts[:skip] == new_parts[:skip]:
                return ".".join(new_parts[skip:]) + name[len(module) :]
    return name


def _module(path: str) -> list[str]:
    return path.removesuffix(".py").split("/") if path.endswith(".py") else []


def these(names: Iterable[str]) -> str:
    """Name up to five things."""
    ordered = sorted(name[:200] for name in names)
    shown = ", ".join(ordered[:5])
    return f"{shown} and {len(ordered) - 5} more" if len(ordered) > 5 else shown
