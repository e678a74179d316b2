"""Real bugs of public packages (`shared/cases` beside the checkout), laid out, scripted and checked with their hidden tests."""

import asyncio
import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from libs.testkit.product import Product

ROOT = Path(__file__).resolve().parents[2]


def folder() -> Path:
    """Where the cases are.

    Raises:
        FileNotFoundError: neither AGENT_CODER_CASES nor the folder beside the checkout has them.
    """
    found = Path(os.environ.get("AGENT_CODER_CASES", ROOT.parent / "shared" / "cases"))
    if not (found / "prepare.py").is_file():
        raise FileNotFoundError(f"no cases in {found}: set AGENT_CODER_CASES to the folder that holds prepare.py and cases.json")
    return found


@dataclass(frozen=True)
class Case:
    """One bug, laid out in `place`."""

    place: Path
    row: dict[str, Any]

    @property
    def repo(self) -> Path:
        """The repository that has the bug."""
        return self.place / "repo"

    @property
    def policy(self) -> dict[str, Any]:
        """The commands that the case names."""
        setup = self.row.get("setup")
        return {"setup_commands": [setup] if setup else None, "test_commands": [self.row["run"]]}

    def request(self, **policy: Any) -> dict[str, Any]:
        """The body of a request to solve it."""
        issue = self.row["issue"]
        return {"title": issue["title"], "body": issue["body"], "repo": str(self.repo), "policy": {**self.policy, **policy}}

    def script(self, form: str) -> Path:
        """A script for the scripted model that answers with the reference change in `form`."""
        edit_format = "tools" if form == "tool_calls" else form
        script = {
            "name": f"{self.row['name']}-{form}",
            "reference": "reference.json",
            "form": form,
            "originals": "repo",
            "edit_format": edit_format,
            "tool_calling": form == "tool_calls",
        }
        path = self.place / f"{form}.json"
        path.write_text(json.dumps(script))
        return path


async def prepare(name: str, place: Path) -> Case:
    """Lay out a case; downloads the package's two releases from its registry.

    Raises:
        RuntimeError: it could not be laid out; the text holds what the script printed.
    """
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(folder() / "prepare.py"), name, str(place), stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    output, _ = await process.communicate()
    if process.returncode != 0:
        raise RuntimeError(f"{name} could not be laid out:\n{output.decode(errors='replace')[-3000:]}")
    return Case(place, json.loads((place / "case.json").read_text()))


def hidden_tests(case: Case, clone: Path) -> subprocess.CompletedProcess[str]:
    """Copy the hidden tests over a clone, set it up as the case says, run them."""
    shutil.copytree(case.place / "hidden", clone, dirs_exist_ok=True)
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(clone)}
    if setup := case.row.get("setup"):
        subprocess.run(setup, shell=True, cwd=clone, env=environment, check=True, capture_output=True)
    return subprocess.run(case.row["run"], shell=True, cwd=clone, env=environment, check=False, capture_output=True, text=True)


async def clone(running: Product, run_id: str, place: Path) -> Path:
    """Clone the branch of a finished run with a short-lived token, as a person would."""
    commit = (await running.run(run_id))["commit"]
    async with asyncio.timeout(60):
        while (answer := await running.client.post(f"/api/repos/{commit['repository']}/token", json={"scope": "read"})).status_code == 503:
            await asyncio.sleep(0.5)  # the artifact service was killed a moment ago
    assert answer.status_code in (200, 201), answer.text
    address = commit["clone_url"].replace("://", f"://x:{answer.json()['token']}@", 1)
    command = ["git", "clone", "-q", "--branch", commit["branch"], address, str(place)]
    await asyncio.to_thread(subprocess.run, command, check=True, capture_output=True)
    return place


async def assert_solved(running: Product, case: Case, run_id: str, place: Path) -> None:
    """The run is finished, its branch holds one commit more than the base, and the hidden tests pass on a clone of it."""
    shown = await running.run(run_id)
    assert shown["status"] == "finished", f"{shown['why']}\n{running.log()}"
    issue = case.row["issue"]
    assert shown["commit"]["branch"] == f"fix/issue-{issue['id']}"
    await clone(running, run_id, place)
    log = ["git", "log", "--format=%s", f"{shown['base_commit']}..HEAD"]
    subjects = await asyncio.to_thread(subprocess.run, log, cwd=place, capture_output=True, text=True, check=True)
    assert subjects.stdout.splitlines() == [f"fix({issue['id']}): {issue['title']}"]
    checked = await asyncio.to_thread(hidden_tests, case, place)
    assert checked.returncode == 0, checked.stdout + checked.stderr
