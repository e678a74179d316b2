"""Runs at known places of their story."""

from datetime import UTC, datetime, timedelta
from typing import Any

from libs.contracts.envelope import Usage
from libs.contracts.run import (
    ApprovalRequested,
    ChangedFile,
    CommandRun,
    Issue,
    ModelReplied,
    Plan,
    PlanStep,
    RunCommitted,
    RunEdited,
    RunEvent,
    RunFailed,
    RunFinished,
    RunOpened,
    RunPlanned,
    RunVerified,
    Verdict,
)
from libs.contracts.work import ToolCall
from tests.unit.gateway.fake_bus import FakeBus

SHA = "1" * 40
BASE = "0" * 40
FILES = (ChangedFile(path="nämé ☃.py", status="modified", added_lines=1, deleted_lines=1),)


def opened(run_id: str = "r1", **fields: Any) -> RunOpened:
    values: dict[str, Any] = {"issue": Issue(id="42", title="修复 Wrokr"), "repo": "team/app", "opened_at": datetime.now(UTC)} | fields
    return RunOpened(run_id=run_id, **values)


def planned(run_id: str = "r1", attempt: int = 1) -> RunPlanned:
    plan = Plan(summary="fix it", steps=(PlanStep(title="line 7", files=("README.md",)),))
    return RunPlanned(run_id=run_id, attempt=attempt, plan=plan, repository="team/app", base_branch="trunk", base_commit=BASE)


def edited(run_id: str = "r1") -> RunEdited:
    return RunEdited(run_id=run_id, attempt=1, commit="2" * 40, tree="3" * 40, changed_files=FILES)


def whole(run_id: str = "r1") -> list[RunEvent]:
    """A run from its opening to its end."""
    think = ToolCall(id="c1", name="think", arguments='{"topic": "cause", "reasoning": "a typo"}')
    command = CommandRun(command="pytest", phase="test", outcome="exited", exit_code=0, passed=3)
    return [
        opened(run_id),
        planned(run_id),
        ModelReplied(
            run_id=run_id,
            step="edit",
            of=2,
            call=1,
            model="m",
            tool_calls=(think,),
            usage=Usage(input_tokens=10, output_tokens=5, cost_usd=0.25, calls=1),
        ),
        edited(run_id),
        RunVerified(
            run_id=run_id, attempt=1, commit="2" * 40, verdict=Verdict(ok=True, outcome="passed"), commands=(command,), changed_files=FILES
        ),
        RunCommitted(run_id=run_id, attempt=1, repository="team/app", branch="fix/issue-42", sha=SHA, message="fix(42): 修复"),
        RunFinished(run_id=run_id, attempts=1, changed_files=FILES, branch="fix/issue-42", sha=SHA, test_summary="3 passed"),
    ]


def waiting(bus: FakeBus, run_id: str = "r1", hours: float = 24) -> int:
    """A run that waits for a person after its plan, for `hours` more; returns the sequence of the question."""
    bus.add(opened(run_id))
    of = bus.add(planned(run_id))
    expires = datetime.now(UTC) + timedelta(hours=hours)
    return bus.add(ApprovalRequested(run_id=run_id, step="edit", of=of, question="Is this plan good?", expires_at=expires))


def failed(bus: FakeBus, run_id: str = "r1") -> None:
    """A run that failed while it edited."""
    bus.add(opened(run_id))
    of = bus.add(planned(run_id))
    bus.add(RunFailed(run_id=run_id, reason="the model is gone", step="edit", kind="exhausted", of=of, dead_letter=9))
