"""Reports are read from outputs that the real runners printed (samples/) for one small suite each."""

from pathlib import Path

import pytest

from services.verifier.reports import TestReport, parse_report

SAMPLES = Path(__file__).parent / "samples"


def read(name: str, command: str, **more: object) -> TestReport:
    return parse_report(command, (SAMPLES / f"{name}.txt").read_text(), **more)  # type: ignore[arg-type]  # forwarded keywords


@pytest.mark.parametrize(
    ("sample", "command", "runner", "named", "numbers"),
    [
        ("pytest_rA", "python -m pytest", "pytest", True, (6, 2, 2)),
        ("pytest_q", "make test", "pytest", False, (6, 2, 2)),
        ("unittest_v", "python -m unittest -v", "unittest", True, (2, 3, 2)),
        ("unittest_plain", "make test", "unittest", False, (2, 3, 2)),
        ("node_tap", "node --test", "tap", True, (3, 3, 2)),
        ("node_spec", "npm test", "node", True, (3, 3, 2)),
        ("node_tape", "node --test", "tap", True, (0, 1, 0)),
        ("tape", "npm test", "tap", True, (2, 1, 0)),
        ("mocha", "npm test", "mocha", True, (2, 1, 1)),
        ("jest", "npm test", "jest", True, (2, 1, 1)),
        ("vitest", "npm test", "vitest", True, (2, 1, 1)),
        ("cargo", "cargo test", "cargo", True, (3, 1, 1)),
    ],
)
def test_each_runner_is_recognised_and_counted(sample: str, command: str, runner: str, named: bool, numbers: tuple[int, int, int]) -> None:
    report = read(sample, command)
    assert (report.runner, report.named) == (runner, named)
    assert report.counts is not None
    assert (report.counts.passed, report.counts.failed, report.counts.skipped) == numbers


def test_pytest_names_keep_their_parameters_and_ignore_what_tests_print() -> None:
    report = read("pytest_rA", "pytest")
    assert "tests/test_a.py::test_p[x - y]" in report.passed
    assert "tests/test_a.py::TestC::test_in" in report.passed
    assert report.failed == {"tests/test_a.py::test_bad", "tests/test_a.py::test_err"}
    assert not any("fake" in name for name in report.passed)


def test_pytest_junit_report_gives_the_names_of_the_short_summary() -> None:
    summary = read("pytest_rA", "pytest")
    report = parse_report("pytest", "cut", complete=False, junit_xml=(SAMPLES / "pytest.xml").read_text())
    assert (report.passed, report.failed) == (summary.passed, summary.failed)
    assert "tests/test_a.py::test_skip" in report.skipped
    assert report.complete
    assert report.named


def test_broken_junit_report_falls_back_to_the_output() -> None:
    assert read("pytest_rA", "pytest", junit_xml="<testsuites><tests").counts == read("pytest_rA", "pytest").counts


def test_file_that_cannot_be_imported_is_a_failure() -> None:
    assert read("pytest_collect", "pytest").failed == {"none/test_x.py"}
    assert read("unittest_load", "python -m unittest -v").failed == {"unittest.loader._FailedTest.test_x"}


@pytest.mark.parametrize(("sample", "command"), [("pytest_none", "pytest -q"), ("unittest_none", "python -m unittest")])
def test_runner_that_found_nothing_says_so(sample: str, command: str) -> None:
    assert read(sample, command).ran_nothing


def test_unittest_names_do_not_depend_on_the_python_version() -> None:
    old = parse_report("python -m unittest -v", "test_ok (tests.test_u.T) ... ok\n\nRan 1 test in 0.001s\n\nOK\n")
    new = parse_report("python -m unittest -v", "test_ok (tests.test_u.T.test_ok) ... ok\n\nRan 1 test in 0.001s\n\nOK\n")
    assert old.passed == new.passed == {"tests.test_u.T.test_ok"}


def test_unittest_result_is_found_behind_a_docstring_and_behind_printing() -> None:
    assert read("unittest_v", "python -m unittest -v").passed == {"tests.test_u.T.test_ok", "tests.test_u.T.test_print"}


@pytest.mark.parametrize("sample", ["node_tap", "node_spec"])
def test_node_names_carry_their_suites_and_repeated_names_are_numbered(sample: str) -> None:
    report = read(sample, "node --test")
    assert report.passed == {"ok one", "ok one (2)", "suite 中文 > inner ok"}
    assert {"bad # hash", "suite 中文 > inner bad", "js/test/c.test.js"} <= report.failed
    assert report.skipped == {"skipped", "todo"}


def test_tape_assertions_count_as_the_test_above_them() -> None:
    report = read("tape", "npm test")
    assert report.passed == {"adds", "adds (2)"}
    assert report.failed == {"breaks"}


def test_one_failing_occurrence_of_a_name_fails_all() -> None:
    report = parse_report("x", "TAP version 13\nok 1 - same\nnot ok 2 - same\n1..2\n")
    assert report.failed == {"same", "same (2)"}
    assert not report.passed


@pytest.mark.parametrize("sample", ["mocha", "jest", "vitest"])
def test_indented_listings_name_suites_with_chinese_titles(sample: str) -> None:
    report = read(sample, "npm test")
    assert any("inner 中 > ok" in name for name in report.passed)
    assert any(name.endswith("outer > bad one") for name in report.failed)


def test_cargo_documentation_tests_lose_their_line_number() -> None:
    report = read("cargo", "cargo test")
    assert report.passed == {"tests::adds", "tests::panics", "src/lib.rs - add"}
    assert report.skipped == {"tests::slow"}


def test_go_json_names_tests_by_package_and_reports_packages_that_do_not_build() -> None:
    output = "\n".join(
        [
            '{"Action":"start","Package":"ex.com/a"}',
            '{"Action":"pass","Package":"ex.com/a","Test":"TestOne"}',
            '{"Action":"fail","Package":"ex.com/a","Test":"TestTwo/sub_case"}',
            '{"Action":"skip","Package":"ex.com/a","Test":"TestThree"}',
            '{"Action":"fail","Package":"ex.com/a"}',
            '{"Action":"fail","Package":"ex.com/broken"}',
            '{"Action":"output","Package":"ex.com/a","Out',
        ]
    )
    report = parse_report("go test -json ./...", output)
    assert report.passed == {"ex.com/a.TestOne"}
    assert report.failed == {"ex.com/a.TestTwo/sub_case", "ex.com/broken"}
    assert report.skipped == {"ex.com/a.TestThree"}


def test_plain_go_output_is_read_by_package() -> None:
    output = (
        "--- FAIL: TestTwo (0.00s)\n    a_test.go:3: no\nFAIL\nFAIL\tex.com/a\t0.1s\nok  \tex.com/b\t0.2s\nFAIL\tex.com/c [build failed]\n"
    )
    report = parse_report("go test ./...", output)
    assert report.failed == {"ex.com/a.TestTwo", "ex.com/c"}
    assert not report.named


def test_maven_totals_are_added_over_modules_and_failures_are_named() -> None:
    output = (
        "[INFO] Tests run: 1, Failures: 0, Errors: 0, Skipped: 0, Time elapsed: 0.01 s - in x.BTest\n"
        "[ERROR] bad(x.ATest)  Time elapsed: 0.002 s  <<< FAILURE!\n"
        "[ERROR] x.CTest.worse -- Time elapsed: 0.002 s <<< ERROR!\n"
        "[ERROR] Tests run: 5, Failures: 1, Errors: 1, Skipped: 1\n"
        "[INFO] Tests run: 2, Failures: 0, Errors: 0, Skipped: 0\n"
    )
    report = parse_report("mvn test", output)
    assert report.counts is not None
    assert (report.counts.passed, report.counts.failed, report.counts.skipped) == (4, 2, 1)
    assert report.failed == {"x.ATest.bad", "x.CTest.worse"}


def test_gradle_failures_are_named() -> None:
    report = parse_report("./gradlew test", "x.ATest > bad FAILED\n    java.lang.AssertionError\n\n3 tests completed, 1 failed\n")
    assert report.failed == {"x.ATest > bad"}
    assert report.counts is not None
    assert report.counts.passed == 2


def test_output_nobody_knows_has_neither_names_nor_numbers() -> None:
    report = parse_report("./check", "all is well\n✔ really\n")
    assert (report.runner, report.counts, report.named) == ("unknown", None, False)
    assert not report.ran_nothing


def test_end_of_a_cut_output_still_gives_numbers() -> None:
    whole = (SAMPLES / "pytest_rA.txt").read_text()
    report = parse_report("pytest", whole[-300:], complete=False)
    assert report.counts is not None
    assert report.counts.passed == 6
    assert not report.complete


def test_names_do_not_hold_the_place_of_the_workspace() -> None:
    line = "TAP version 13\n# Subtest: /home/x/test/a.js\nok 1 - /home/x/test/a.js\n1..1\n# pass 1\n"
    assert parse_report("node --test", line, root="/home/x").passed == {"test/a.js"}
