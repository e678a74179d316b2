"""Hostile and clumsy cases for one running server: each is a repository, a scripted model and a policy, told apart by the issue's title."""

import json
import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from libs.testkit.product import Product
from tests.faults.story import MORE, PLAN, TEST

ADDER = {"adder.py": "def add(a, b):\n    return a - b\n", "test_adder.py": TEST}
PATIENT_SECONDS = 120.0
DONE = [("done", {"summary": "Done."})]
FIX = [("edit", {"path": "adder.py", "old": "a - b", "new": "a + b"}), ("write", {"path": "test_adder.py", "content": MORE})]
_TOOLS = frozenset({"read", "ls", "glob", "grep", "write", "edit", "patch", "exec", "think", "frobnicate"})
WAITING = frozenset({"waiting"})
_GIT = ("git", "-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "init.defaultBranch=main", "-c", "protocol.file.allow=always")
Turn = Sequence[tuple[str, Any]] | Mapping[str, Any]


@dataclass(frozen=True)
class Link:
    """A symbolic link."""

    target: str


Content = str | bytes | Link


@dataclass(frozen=True)
class Case:
    """What the repository holds, what the model plans and does turn by turn, and what the request says besides."""

    files: Mapping[str, Content] = field(default_factory=lambda: ADDER)
    turns: Sequence[Turn] = (FIX, DONE)
    plan: Sequence[Mapping[str, Any]] = ({"content": json.dumps(PLAN)},)
    policy: Mapping[str, Any] = field(default_factory=dict)
    request: Mapping[str, Any] = field(default_factory=dict)
    prepare: Callable[[Path], str | None] | None = None


def git(place: Path, *arguments: str, check: bool = True) -> str:
    """Run git there; its output without the last newline."""
    done = subprocess.run([*_GIT, *arguments], cwd=place, capture_output=True, check=False)
    assert not check or done.returncode == 0, done.stderr.decode(errors="replace")
    return done.stdout.decode("utf-8", "surrogateescape").removesuffix("\n")


def lay(place: Path, files: Mapping[str, Content]) -> None:
    """Write the files."""
    for name, content in files.items():
        path = place / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, Link):
            path.symlink_to(content.target)
        else:
            path.write_bytes(content.encode() if isinstance(content, str) else content)


def repository(place: Path, files: Mapping[str, Content], branch: str = "main") -> Path:
    """A git repository with one commit of exactly these bytes."""
    place.mkdir(parents=True)
    git(place, "init", "-q", "-b", branch)
    git(place, "config", "core.autocrlf", "false")
    lay(place, files)
    git(place, "add", "-A")
    git(place, "commit", "-q", "--allow-empty", "-m", "Start")
    return place


def script(place: Path, cases: Mapping[str, Case]) -> Path:
    """A scripted model that knows every case, and for any other title fixes the adder; whatever else it is asked, it greets."""
    rules: list[dict[str, Any]] = []
    for name, case in [*cases.items(), ("", Case())]:
        rules.append({"when": {"purpose": "plan", "contains": _mark(name)}, "replies": list(case.plan)})
        rules.append({"when": {"purpose": "edit", "contains": _mark(name)}, "replies": [_reply(turn) for turn in case.turns]})
    rules.append({"replies": [{"content": "Hello."}]})
    path = place / "model.json"
    path.write_text(json.dumps({"name": "hostile", "rules": rules, "price": {"input_usd": 1.0, "output_usd": 1.0}}))
    return path


def _mark(name: str) -> str:
    return f"case {name};" if name else ""


def _reply(turn: Turn) -> Mapping[str, Any]:
    return turn if isinstance(turn, Mapping) else {"tool_calls": [{"name": n, "arguments": a} for n, a in turn]}


class Hostile:
    """A server on which all cases were opened at once."""

    def __init__(self, running: Product, place: Path) -> None:
        self.running = running
        self.place = place
        self.runs: dict[str, str] = {}

    async def open(self, name: str, case: Case) -> str:
        """Lay the case's repository out and ask for it to be solved."""
        source = self.place / "repos" / name
        if case.prepare is None:
            repository(source, case.files)
        wanted = (case.prepare(source) if case.prepare else None) or str(source)
        body = {"title": f"case {name};", "body": "Fix it.", "repo": wanted, "policy": {"max_attempts": 1, **case.policy}, **case.request}
        self.runs[name] = await self.running.solve(name, body)
        return self.runs[name]

    async def ended(self, name: str, **how: Any) -> dict[str, Any]:
        """The run of a case, once it has ended (or reached `statuses`)."""
        return await self.running.wait(self.runs[name], **{"seconds": PATIENT_SECONDS, **how})

    async def finished(self, name: str) -> dict[str, Any]:
        """The run of a case, which must have come to a commit."""
        shown = await self.ended(name)
        assert shown["status"] == "finished", f"{shown['status']}: {shown['why']} {shown['failures']}"
        return shown

    async def failed(self, name: str, *words: str) -> dict[str, Any]:
        """The run of a case, which must have failed with a reason that says `words`."""
        shown = await self.ended(name)
        assert shown["status"] == "failed", f"{shown['status']}: {shown['why']}"
        for word in words:
            assert word.lower() in shown["why"].lower(), shown["why"]
        return shown

    async def results(self, name: str) -> list[tuple[str, bool, str]]:
        """What the tools told the model: name, ok, text."""
        events = await self.running.events(self.runs[name])
        found = [e["data"] for e in events if e["type"] == "run.tool_returned"]
        return [(d["tool"], d.get("ok", True), d.get("result", "")) for d in found if d["tool"] in _TOOLS]

    def artifact(self, shown: Mapping[str, Any]) -> Path:
        """The bare repository that holds a run's commit."""
        return next((self.running.home / "artifact").rglob(f"{shown['commit']['repository']}.git"))

    def blob(self, shown: Mapping[str, Any], path: str) -> bytes:
        """The bytes of a file in a run's commit."""
        command = [*_GIT, "cat-file", "blob", f"{shown['commit']['sha']}:{path}"]
        return subprocess.run(command, cwd=self.artifact(shown), capture_output=True, check=True).stdout

    def changed(self, shown: Mapping[str, Any]) -> list[str]:
        """The paths that a run's commit changes."""
        sha = shown["commit"]["sha"]
        return git(self.artifact(shown), "diff", "--name-only", "--no-renames", "-z", f"{sha}^", sha).split("\0")[:-1]


async def assert_in_order(running: Product, place: Path) -> None:
    """After everything: a good issue is solved, and the log holds no traceback."""
    source = repository(place / "good", ADDER)
    run_id = await running.solve("good", {"title": "add subtracts", "body": "add(1, 2) is -1.", "repo": str(source)})
    shown = await running.wait(run_id, seconds=PATIENT_SECONDS)
    assert shown["status"] == "finished", shown["why"]
    assert running.process.returncode is None
    log = (running.home / "up.log").read_text(errors="replace")
    position = log.find("Traceback")
    assert position < 0, log[max(0, position - 3000) : position + 4000]


def git_errors(place: Path, *arguments: str) -> str:
    """What git says on standard error, without asking anybody for a password."""
    environment = {**os.environ, "GIT_TERMINAL_PROMPT": "0", "GIT_ASKPASS": "true"}
    done = subprocess.run([*_GIT, *arguments], cwd=place, capture_output=True, check=False, env=environment)
    return done.stderr.decode(errors="replace")
