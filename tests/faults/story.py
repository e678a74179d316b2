"""A small issue that is solved end to end in seconds, and what must be true of it afterwards, whatever died on the way."""

import json
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

from libs.testkit.product import Product

PLAN = {"summary": "Add properly.", "steps": [{"title": "Fix add and test it", "files": ["adder.py", "test_adder.py"]}]}
TEST = """import unittest

from adder import add


class AddTest(unittest.TestCase):
    def test_nothing(self):
        self.assertEqual(add(0, 0), 0)
"""
MORE = f"""{TEST}
    def test_more(self):
        self.assertEqual(add(1, 2), 3)
"""
RESULTS = ("run.opened", "run.planned", "run.edited", "run.verified", "run.committed", "run.finished")


def repository(place: Path) -> Path:
    """A git repository with a bug and one test that passes."""
    place.mkdir(parents=True)
    (place / "adder.py").write_text("def add(a, b):\n    return a - b\n")
    (place / "test_adder.py").write_text(TEST)
    for command in (["init", "-q", "-b", "main"], ["add", "-A"], ["commit", "-q", "-m", "A bug"]):
        subprocess.run(["git", "-c", "user.name=t", "-c", "user.email=t@example.org", *command], cwd=place, check=True)
    return place


def script(place: Path) -> Path:
    """A scripted model that reads, thinks, edits, writes a test, runs it, and is done."""
    calls = [
        [("read", {"path": "adder.py"}), ("think", {"topic": "minus", "reasoning": "It subtracts."})],
        [("edit", {"path": "adder.py", "old": "a - b", "new": "a + b"})],
        [("write", {"path": "test_adder.py", "content": MORE})],
        [("exec", {"command": "echo run >> $HOME/ran; python3 -m unittest 2>&1 | tail -3; wc -l < $HOME/ran"})],
        [("done", {"summary": "add adds."})],
    ]
    replies = [{"tool_calls": [{"name": n, "arguments": a} for n, a in turn]} for turn in calls]
    rules = [
        {"when": {"purpose": "plan"}, "replies": [{"content": json.dumps(PLAN)}]},
        {"when": {"purpose": "edit"}, "replies": replies},
    ]
    path = place / "model.json"
    path.write_text(json.dumps({"name": "adder", "rules": rules, "price": {"input_usd": 1.0, "output_usd": 1.0}}))
    return path


def request(repo: Path, **policy: Any) -> dict[str, Any]:
    """The body that asks for it."""
    return {"title": "add subtracts", "body": "add(1, 2) is -1.", "repo": str(repo), "policy": policy}


async def assert_solved_once(running: Product, run_id: str, source: Path) -> list[dict[str, Any]]:
    """One result of each kind, one commit, each model call recorded once, each effect made once. Returns the events."""
    shown = await running.run(run_id)
    assert shown["status"] == "finished", f"{shown['why']}\n{running.log()}"
    events = await running.events(run_id)
    kinds = Counter(e["type"] for e in events)
    assert {k: kinds[k] for k in RESULTS} == dict.fromkeys(RESULTS, 1), kinds
    replies = Counter((e["data"]["step"], e["data"]["of"], e["data"]["call"]) for e in events if e["type"] == "run.model_replied")
    assert set(replies.values()) == {1}
    assert sorted(call for step, _, call in replies if step == "edit") == [1, 2, 3, 4, 5]
    ran = [e["data"]["result"] for e in events if e["type"] == "run.tool_returned" and e["data"]["tool"] == "exec"]
    assert len(ran) == 1
    assert "unknown" in ran[0] or "OK" in ran[0]
    repository, branch = shown["commit"]["repository"], shown["commit"]["branch"]
    assert git(running, repository, "log", "--format=%s", branch) == ["fix(7): add subtracts", "A bug"]
    assert git(running, repository, "show", f"{branch}:adder.py") == ["def add(a, b):", "    return a + b"]
    spent = (await running.client.get(f"/api/runs/{run_id}")).json()
    assert spent["usage"]["calls"] == len(replies)
    return events


def git(running: Product, repository: str, *arguments: str) -> list[str]:
    """The lines that git prints about a repository of the artifact store."""
    found = next((running.home / "artifact").rglob(f"{repository}.git"))
    return subprocess.run(["git", "--git-dir", str(found), *arguments], capture_output=True, text=True, check=True).stdout.splitlines()
