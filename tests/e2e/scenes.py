"""Small issues for scripted models: a scene is what the model says to one issue, and the stage is a server that plays them all.

A scene is told from another by its mark in the issue's title; the rule for a later attempt holds only when the prompt has the feedback.
"""

import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from libs.testkit.product import Product
from tests.faults.story import repository

Call = tuple[str, dict[str, Any] | str]
PLAN = {"summary": "Add properly.", "steps": [{"title": "Fix add", "files": ["adder.py"]}]}
FIX: Call = ("edit", {"path": "adder.py", "old": "a - b", "new": "a + b"})
BREAK: Call = ("edit", {"path": "adder.py", "old": "return a - b", "new": "return 1 / (a - b)"})
DONE: Call = ("done", {"summary": "add adds."})


def say(*calls: Call, content: str = "", **rest: Any) -> dict[str, Any]:
    """One reply of the model."""
    return {"content": content, "tool_calls": [{"name": name, "arguments": arguments} for name, arguments in calls], **rest}


@dataclass(frozen=True)
class Scene:
    """What the model says. `after_feedback` answers once the prompt holds the text `feedback`; `model` names one of `MODELS`."""

    edit: Sequence[dict[str, Any]]
    plan: Mapping[str, Any] = field(default_factory=lambda: PLAN)
    feedback: str = ""
    after_feedback: Sequence[dict[str, Any]] = ()
    plan_after_feedback: Mapping[str, Any] | None = None
    policy: Mapping[str, Any] = field(default_factory=dict)
    model: str = "tools"

    def rules(self, mark: str) -> list[dict[str, Any]]:
        """The rules of the script, the ones for a later attempt first."""
        rules = [({"purpose": "edit", "contains": mark}, self.edit), ({"purpose": "plan", "contains": mark}, [_plan(self.plan)])]
        if self.plan_after_feedback:
            rules.insert(0, ({"purpose": "plan", "contains": [mark, self.feedback]}, [_plan(self.plan_after_feedback)]))
        if self.after_feedback:
            rules.insert(0, ({"purpose": "edit", "contains": [mark, self.feedback]}, self.after_feedback))
        return [{"when": when, "replies": list(replies)} for when, replies in rules]


MODELS: dict[str, dict[str, Any]] = {
    "tools": {},
    "small": {"context_tokens": 8192},
    "whole_file": {"edit_format": "whole_file", "tool_calling": False},
    "search_replace": {"edit_format": "search_replace", "tool_calling": False},
    "unified_diff": {"edit_format": "unified_diff", "tool_calling": False},
}


def _plan(plan: Mapping[str, Any]) -> dict[str, Any]:
    return {"content": json.dumps(plan)}


def mark(name: str) -> str:
    """What the titles of a scene's issues hold."""
    return f"scene {name}."


def set_stage(place: Path, scenes: Mapping[str, Scene]) -> str:
    """Write a script for each model and the list of models into the home folder; the value for MODEL."""
    home = place / "home"
    home.mkdir(parents=True)
    tables = []
    for model, options in MODELS.items():
        rules = [rule for name, scene in scenes.items() if scene.model == model for rule in scene.rules(mark(name))]
        if rules:
            (home / f"{model}.json").write_text(json.dumps({"name": model, "rules": rules, **options}))
            tables.append(f"[[models]]\nname = {json.dumps(f'scripted:{home / model}.json')}\n")
    (home / "models.toml").write_text("\n".join(tables))
    repository(place / "repo")
    return f"scripted:{home / 'tools'}.json"


@dataclass(frozen=True)
class Stage:
    """A running server and its scenes, all on one small repository."""

    running: Product
    place: Path
    scenes: Mapping[str, Scene]

    async def open(self, name: str, issue_id: str | None = None, repo: Path | None = None, **policy: Any) -> str:
        """Open a run of a scene; its id."""
        scene = self.scenes[name]
        chosen = {"model": f"scripted:{scene.model}", **scene.policy, **policy}
        body = {
            "title": f"add subtracts: {mark(name)}",
            "body": "add(1, 2) is -1.",
            "repo": str(repo or self.place / "repo"),
            "policy": chosen,
        }
        return await self.running.solve(issue_id or name, body)

    async def ended(self, name: str, issue_id: str | None = None) -> dict[str, Any]:
        """The end of a new run of a scene."""
        return await self.running.wait(await self.open(name, issue_id))

    async def finished(self, name: str, issue_id: str | None = None) -> dict[str, Any]:
        """The same, and it must be solved: the file of the commit is right."""
        shown = await self.ended(name, issue_id)
        assert shown["status"] == "finished", f"{shown['why']}\n{shown['rejections']}\n{self.running.log()}"
        assert self.git(shown, "show", f"{shown['commit']['sha']}:adder.py") == ["def add(a, b):", "    return a + b"]
        return shown

    async def results(self, shown: Mapping[str, Any]) -> list[tuple[str, bool, str]]:
        """Tool, success and text of every tool call of a run."""
        events = await self.running.events(shown["instanceId"])
        return [(e["data"]["tool"], e["data"]["ok"], e["data"]["result"]) for e in events if e["type"] == "run.tool_returned"]

    async def decide(self, run_id: str, word: str, **query: str) -> Any:
        """A person's word about a run."""
        answer = await self.running.client.post(f"/api/runs/{run_id}/{word}", params=query, json={"comment": "by the suite"})
        assert answer.status_code == 200, answer.text
        return answer.json()

    def git(self, shown: Mapping[str, Any], *arguments: str) -> list[str]:
        """What git says in the artifact repository of a run."""
        found = next((self.running.home / "artifact").rglob(f"{shown['commit']['repository']}.git"))
        command = ["git", "--git-dir", str(found), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
