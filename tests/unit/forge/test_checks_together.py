"""What the checks of a commit say together."""

import pytest

from services.forge.clients import Checks, together


def run(conclusion: str | None, status: str = "completed") -> dict:
    return {
        "name": "tests",
        "status": status,
        "conclusion": conclusion,
        "output": {"summary": "2\n failed" if conclusion == "failure" else None},
    }


@pytest.mark.parametrize(
    ("runs", "statuses", "outcome"),
    [
        ([], [], "none"),
        ([run("success"), run("neutral"), run("skipped")], [{"context": "ci", "state": "success"}], "passed"),
        ([run("success"), run(None, "in_progress")], [], "pending"),
        ([run("failure"), run(None, "queued")], [], "pending"),
        ([run("success")], [{"context": "ci", "state": "pending"}], "pending"),
        ([run("cancelled")], [], "pending"),
        ([run("success"), run("failure")], [], "failed"),
        ([], [{"context": "ci", "state": "error"}], "failed"),
    ],
)
def test_outcomes(runs, statuses, outcome):
    assert together(runs, statuses).outcome == outcome


def test_a_failure_is_told_by_name_and_summary():
    said = together([run("failure"), run("success")], [{"context": "ci", "state": "failure", "description": "red"}])
    assert said == Checks("failed", ("tests: failure, 2 failed", "ci: failure, red"))
