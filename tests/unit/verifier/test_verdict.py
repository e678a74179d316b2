"""Each rule of the verdict, by what the tests said before and after."""

import pytest

from libs.contracts.run import ChangedFile
from services.verifier.reports import TestCounts, TestReport, parse_report
from services.verifier.verdict import CommandRun, judge, needs_rerun

COMMAND = "python -m pytest -q"


def run(passed: str = "", failed: str = "", skipped: str = "", exit_code: int | None = None, **more: object) -> CommandRun:
    """A run whose tests are known by name; names are given as words."""
    names = [frozenset(text.split()) for text in (passed, failed, skipped)]
    counts = TestCounts(passed=len(names[0]), failed=len(names[1]), skipped=len(names[2]))
    report = TestReport(runner="pytest", passed=names[0], failed=names[1], skipped=names[2], counts=counts, named=True)
    code = (1 if failed else 0) if exit_code is None else exit_code
    return CommandRun.model_validate({"command": COMMAND, "exit_code": code, "report": report, **more})


def counted(passed: int, failed: int = 0, skipped: int = 0, exit_code: int = 0) -> CommandRun:
    report = TestReport(runner="pytest", counts=TestCounts(passed=passed, failed=failed, skipped=skipped))
    return CommandRun(command=COMMAND, exit_code=exit_code, report=report)


def silent(exit_code: int, output: str = "") -> CommandRun:
    return CommandRun(command=COMMAND, exit_code=exit_code, output_tail=output)


def test_passes_when_everything_passes_that_passed_before_and_new_tests_pass() -> None:
    verdict = judge([run("t.py::a")], [run("t.py::a t.py::new")], [ChangedFile(path="t.py", status="modified")])
    assert (verdict.ok, verdict.outcome, verdict.feedback) == (True, "passed", "")


def test_fixed_test_is_named() -> None:
    assert judge([run("a", "b")], [run("a b")], []).newly_passing == ("b",)


def test_fails_when_a_passing_test_fails() -> None:
    verdict = judge([run("a b")], [run("a", "b", output_tail="assert 1 == 2")], [])
    assert (verdict.ok, verdict.outcome, verdict.newly_failing) == (False, "failed", ("b",))
    assert "- b" in verdict.feedback
    assert "assert 1 == 2" in verdict.feedback


def test_fails_when_a_new_test_fails() -> None:
    assert judge([run("a")], [run("a", "new")], []).newly_failing == ("new",)


def test_failures_of_the_untouched_tree_are_tolerated() -> None:
    verdict = judge([run("a", "old")], [run("a b", "old")], [])
    assert verdict.ok
    assert verdict.still_failing == ("old",)


@pytest.mark.parametrize("after", [run("a"), run("a", skipped="b")])
def test_passing_test_that_is_gone_or_skipped_counts_as_removed(after: CommandRun) -> None:
    verdict = judge([run("a b")], [after], [])
    assert (verdict.ok, verdict.outcome) == (False, "tests_removed")
    assert "b" in verdict.reasons[0]


@pytest.mark.parametrize("after", [run("a"), run("a", skipped="t.py::bad")])
def test_failing_test_that_is_gone_or_skipped_counts_as_removed(after: CommandRun) -> None:
    assert judge([run("a", "t.py::bad")], [after], []).outcome == "tests_removed"


def test_file_that_could_not_be_loaded_may_give_way_to_its_tests() -> None:
    assert judge([run("", "tests/test_x.py", exit_code=2)], [run("tests/test_x.py::a")], []).ok
    assert judge([run("", "unittest.loader._FailedTest.test_x")], [run("test_x.T.test_a")], []).ok


def test_deleted_test_file_counts_as_removed_even_when_all_else_passes() -> None:
    verdict = judge([run("a")], [run("a b")], [ChangedFile(path="tests/test_old.py", status="deleted")])
    assert verdict.outcome == "tests_removed"
    assert "tests/test_old.py" in verdict.feedback


@pytest.mark.parametrize(
    "changed",
    [
        [ChangedFile(path="unit/test_a.py", status="renamed", renamed_from="tests/test_a.py")],
        [ChangedFile(path="tests/test_a.py", status="deleted"), ChangedFile(path="unit/test_a.py", status="added")],
    ],
)
def test_tests_of_a_renamed_file_are_not_lost(changed: list[ChangedFile]) -> None:
    assert judge([run("tests/test_a.py::x")], [run("unit/test_a.py::x")], changed).ok
    assert judge([run("tests.test_a.T.x")], [run("unit.test_a.T.x")], changed).ok


def test_unittest_names_below_the_start_folder_follow_a_rename() -> None:
    changed = [ChangedFile(path="tests/test_b.py", status="renamed", renamed_from="tests/test_a.py")]
    assert judge([run("test_a.T.x")], [run("test_b.T.x")], changed).ok


def test_changed_parameters_are_no_loss_but_fewer_cases_are() -> None:
    before = run("t.py::p[1-2] t.py::p[3-4]")
    assert judge([before], [run("t.py::p[1-2] t.py::p[3-5]")], []).ok
    assert judge([before], [run("t.py::p[1-9]")], []).outcome == "tests_removed"


def test_suite_that_could_not_start_before_passes_when_it_does() -> None:
    assert judge([silent(2)], [silent(0)], []).ok
    assert judge([silent(2)], [run("a")], []).ok


def test_without_names_a_failure_like_the_one_before_is_not_enough() -> None:
    verdict = judge([silent(1)], [silent(1, "boom")], [])
    assert (verdict.ok, verdict.outcome) == (False, "failed")
    assert "boom" in verdict.feedback


def test_exit_code_counts_when_no_test_explains_it() -> None:
    assert judge([run("a")], [run("a", exit_code=3)], []).outcome == "failed"
    assert judge([run("a", "b")], [run("a b", exit_code=1)], []).outcome == "failed"


def test_without_names_the_numbers_may_not_fall() -> None:
    assert judge([counted(5)], [counted(6)], []).ok
    assert judge([counted(5)], [counted(4, skipped=1)], []).outcome == "tests_removed"
    assert judge([counted(5, failed=1, exit_code=1)], [counted(5)], []).outcome == "tests_removed"


def test_command_that_vanishes_from_the_repository_counts_as_removed() -> None:
    other = CommandRun(command="npm test", exit_code=0, report=TestReport(runner="tap", counts=TestCounts(passed=3)))
    assert judge([run("a"), other], [run("a")], []).outcome == "tests_removed"


def test_command_that_is_new_must_pass() -> None:
    assert judge([], [run("a")], []).ok
    assert judge([], [run("a", "b")], []).newly_failing == ("b",)


def test_deadline_is_told_in_words() -> None:
    verdict = judge([run("a")], [CommandRun(command=COMMAND, outcome="timeout", duration_seconds=300, output_tail="waiting")], [])
    assert (verdict.ok, verdict.outcome) == (False, "timeout")
    assert "deadline after 300 s" in verdict.feedback
    assert not needs_rerun(verdict)


@pytest.mark.parametrize(
    "after", [CommandRun(command=COMMAND, outcome="unknown", exit_code=0), CommandRun(command=COMMAND, exit_code=None)]
)
def test_dropped_stream_is_never_a_pass(after: CommandRun) -> None:
    verdict = judge([run("a")], [after], [])
    assert (verdict.ok, verdict.outcome) == (False, "unknown")
    assert needs_rerun(verdict)
    assert judge([run("a")], [after], [], rerun=[run("a")]).outcome == "passed"


@pytest.mark.parametrize(
    ("outcome", "words"),
    [("output_limit", "printed more"), ("memory_limit", "more memory"), ("disk_limit", "to the disk"), ("killed", "was killed")],
)
def test_command_stopped_at_a_limit_fails_with_the_limit_named(outcome: str, words: str) -> None:
    verdict = judge([run("a")], [run("a").model_copy(update={"outcome": outcome, "exit_code": None})], [])
    assert (verdict.ok, verdict.outcome) == (False, "failed")
    assert words in verdict.feedback


def test_suite_that_hung_before_passes_when_it_ends_well() -> None:
    assert judge([CommandRun(command=COMMAND, outcome="timeout")], [run("a")], []).ok


def test_unknown_baseline_is_never_a_pass() -> None:
    assert judge([CommandRun(command=COMMAND, outcome="unknown")], [run("a")], []).outcome == "unknown"


@pytest.mark.parametrize(("policy", "ok"), [("fail", False), ("ask", False), ("pass", True)])
@pytest.mark.parametrize("name", ["nothing", "pytest", "unittest"])
def test_repository_without_tests_follows_the_policy(policy: str, ok: bool, name: str) -> None:
    empty = {
        "nothing": [],
        "pytest": [CommandRun(command=COMMAND, exit_code=5, report=parse_report(COMMAND, "\nno tests ran in 0.00s\n"))],
        "unittest": [CommandRun(command="u", exit_code=0, report=parse_report("unittest", "Ran 0 tests in 0.000s\n\nOK\n"))],
    }[name]
    verdict = judge(empty, empty, [], no_tests=policy)  # type: ignore[arg-type]  # the parameter's words
    assert (verdict.ok, verdict.outcome, verdict.reasons) == (ok, "no_tests", ("no tests found",))


def test_first_tests_of_a_repository_make_it_pass() -> None:
    before = CommandRun(command=COMMAND, exit_code=5, report=parse_report(COMMAND, "\nno tests ran in 0.00s\n"))
    assert judge([before], [run("a")], []).ok


def test_taking_all_tests_away_is_not_having_none() -> None:
    after = CommandRun(command=COMMAND, exit_code=5, report=parse_report(COMMAND, "\nno tests ran in 0.00s\n"))
    assert judge([run("a")], [after], [], no_tests="pass").outcome == "tests_removed"


def test_second_run_that_passes_is_recorded_as_flaky() -> None:
    first = judge([run("a b")], [run("a", "b")], [])
    assert needs_rerun(first)
    verdict = judge([run("a b")], [run("a", "b")], [], rerun=[run("a b")])
    assert (verdict.ok, verdict.outcome) == (True, "flaky_passed")
    assert any("b failed" in reason for reason in verdict.reasons)


def test_second_run_that_fails_settles_it() -> None:
    assert judge([run("a b")], [run("a", "b")], [], rerun=[run("a", "b")]).outcome == "failed"


def test_removed_tests_are_not_tried_again() -> None:
    assert judge([run("a b")], [run("a")], [], rerun=[run("a b")]).outcome == "tests_removed"


def test_cut_output_does_not_turn_unseen_names_into_losses() -> None:
    whole, cut = run("a b c"), run("c")
    report = cut.report.model_copy(update={"complete": False, "counts": TestCounts(passed=3)})
    assert judge([whole], [cut.model_copy(update={"report": report})], []).ok


def test_feedback_keeps_the_end_of_long_output_within_its_limit() -> None:
    verdict = judge([run("a")], [run("", "a", output_tail="x\n" * 9000 + "the cause")], [])
    assert "the cause" in verdict.feedback
    assert len(verdict.feedback) < 4400


def test_a_suite_in_which_nothing_passes_shows_nothing() -> None:
    verdict = judge([run(failed="t.py::a")], [run(failed="t.py::a")], [ChangedFile(path="src.py", status="modified")])
    assert (verdict.ok, verdict.outcome) == (False, "no_tests")
    assert "no test passes" in verdict.reasons[0]


def test_a_changed_test_that_still_fails_counts() -> None:
    changed = [ChangedFile(path="test_t.py", status="modified")]
    verdict = judge([run("o.py::x", "test_t.py::a")], [run("o.py::x", "test_t.py::a")], changed)
    assert (verdict.ok, verdict.outcome) == (False, "failed")
    assert "test_t.py" in verdict.reasons[0]
    assert judge([run("o.py::x", "test_t.py::a test_t.py::b")], [run("o.py::x test_t.py::b", "test_t.py::a")], changed).ok
