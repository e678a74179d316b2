"""A run parked for approval meets a newer version of the product: one whose events have one optional field more."""

import shutil
import subprocess
from pathlib import Path

from libs.testkit.product import FAST, product
from tests.faults.story import assert_solved_once, repository, request, script

ROOT = Path(__file__).resolve().parents[2]


def newer(place: Path) -> Path:
    """A copy of the product whose `planned` and `edited` have an optional field more, which its planner and editor fill."""
    files = subprocess.run(
        ["git", "ls-files", "services", "libs", "deploy"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    for name in files:
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, place / name)
    contracts = place / "libs/contracts/run.py"
    text = contracts.read_text()
    for anchor in ('"run.planned"\n', '"run.edited"\n'):
        head, tail = text.split(anchor)
        owner, rest = tail.split("\n\n", 1)
        text = f"{head}{anchor}{owner}\n\n    confidence: float | None = 0.5\n{rest}"
    contracts.write_text(text)
    return place


async def test_a_parked_run_goes_on_with_a_newer_version(tmp_path):
    repo = repository(tmp_path / "repo")
    model = f"scripted:{script(tmp_path)}"
    async with product(tmp_path / "home", model, environment=FAST) as running:
        run_id = await running.solve("7", request(repo, plan_approval=True))
        shown = await running.wait(run_id, frozenset({"waiting"}))
        assert "Fix add and test it" in shown["pending"]["question"]
    copy = newer(tmp_path / "newer")
    environment = {**FAST, "PYTHONPATH": str(copy)}
    async with product(tmp_path / "home", model, environment=environment) as running:
        answer = await running.client.post(f"/api/runs/{run_id}/approve", json={"comment": "好"})
        assert answer.status_code in (200, 202), answer.text
        await running.wait(run_id)
        events = await assert_solved_once(running, run_id, repo)
    edited = next(e["data"] for e in events if e["type"] == "run.edited")
    assert edited["confidence"] == 0.5
    async with product(tmp_path / "home", model, environment=FAST) as running:
        assert (await running.run(run_id))["status"] == "finished"
