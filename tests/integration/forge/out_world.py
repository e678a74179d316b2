"""A broker, the artifact service, the forge, a GitHub, and runs whose earlier steps a test writes down itself."""

import asyncio
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from libs.bus import Service
from libs.bus.connection import Connection
from libs.bus.journal import Journal
from libs.bus.kv import Kv
from libs.bus.topology import ADMIN
from libs.contracts import run as events
from libs.contracts import team
from libs.contracts.artifact import ImportRepository
from libs.contracts.fold import RunState
from libs.settings import BusSettings
from libs.testkit.broker import broker
from services.artifact.__main__ import build as build_artifact
from services.artifact.settings import ArtifactSettings
from services.forge import outgoing
from services.forge.app import GitHubApp
from services.forge.settings import ForgeSettings
from tests.integration.forge.github_out import GitHubOut, Repo, serving

FULL = "octo/app"
AUTHOR = ("-c", "user.name=t", "-c", "user.email=t@example.org")


@dataclass
class World:
    """Everything at hand. `repository` is the name in the artifact store."""

    home: Path
    settings: BusSettings
    github: GitHubOut
    repo: Repo
    app: GitHubApp
    planner: Service
    gateway: Service
    admin: Connection
    repository: str
    base: str

    @property
    def journal(self) -> Journal:
        return Journal(self.admin)

    @property
    def bucket(self) -> Kv:
        return Kv(self.admin, "GITHUB")

    async def state(self, run_id: str) -> RunState:
        return await self.journal.state(run_id)

    async def append(self, run_id: str, *after: Any) -> None:
        """Put events on a journal, as the other services would."""
        for event in after:
            state = await self.state(run_id)
            await self.journal.append(event, follows=state.sequence)

    async def until(self, run_id: str, *kinds: str, seconds: float = 60) -> RunState:
        """The state once the newest result or question of the run is of one of these kinds."""
        try:
            async with asyncio.timeout(seconds):
                while True:
                    if any(r.event.type in [f"run.{k}" for k in kinds] for r in (await self.journal.read(run_id))[-1:]):
                        return await self.state(run_id)
                    await asyncio.sleep(0.02)
        except TimeoutError:
            raise AssertionError([(r.event.type, r.event) for r in await self.journal.read(run_id)][-4:]) from None

    async def quiet(self, *consumers: str) -> None:
        """Wait until every message of these consumers of the forge is settled."""
        async with asyncio.timeout(60):
            for name in consumers:
                while True:
                    info = await self.admin.api(f"CONSUMER.INFO.RUN.forge-{name}", {})
                    if info["num_pending"] == info["num_ack_pending"] == 0:
                        break
                    await asyncio.sleep(0.02)

    def commit(self, branch: str, files: dict[str, str], parent: str = "", message: str = "fix(7): add subtracts") -> str:
        """A commit on a branch of the artifact's repository."""
        place = self.home / "artifact" / "git" / f"{self.repository}.git"
        work = self.home / "work"
        subprocess.run(["rm", "-rf", str(work)], check=True)
        _git(self.home, "clone", "-q", str(place), str(work))
        _git(work, "checkout", "-q", "-B", branch, parent or self.base)
        for name, text in files.items():
            (work / name).parent.mkdir(parents=True, exist_ok=True)
            (work / name).write_text(text)
        _git(work, "add", "-A")
        _git(work, *AUTHOR, "commit", "-q", "-m", message)
        _git(work, "push", "-q", "-f", "origin", branch)
        return _git(work, "rev-parse", "HEAD")

    async def committed(self, run_id: str, files: dict[str, str] | None = None, branch: str = "fix/issue-7", **fields: Any) -> str:
        """A run up to its commit, whose sha is returned; the forge goes on from there."""
        changed = files or {"adder.py": "def add(a, b):\n    return a + b\n"}
        sha = self.commit(branch, changed)
        await self.append(run_id, opened(run_id, self.repo, **fields), *self.made(run_id, sha, changed, branch))
        return sha

    def made(self, run_id: str, sha: str, changed: Any = (), branch: str = "fix/issue-7", attempt: int = 1, base: str = "") -> list[Any]:
        """Plan, edit, verification and commit of an attempt."""
        step = events.PlanStep(title="Add", why="It subtracts, @everybody. Fixes #99")
        files = tuple(events.ChangedFile(path=path, status="modified", added_lines=1, deleted_lines=1) for path in changed)
        ran = events.CommandRun(command="pytest -q", phase="test", outcome="exited", exit_code=0, duration_seconds=1.5, passed=3, failed=0)
        verdict = events.Verdict(ok=True, outcome="passed")
        return [
            events.RunPlanned(
                run_id=run_id,
                attempt=attempt,
                plan=events.Plan(steps=(step,)),
                repository=self.repository,
                base_branch="main",
                base_commit=base or self.base,
            ),
            events.RunEdited(
                run_id=run_id, attempt=attempt, commit=sha, tree=sha, changed_files=files, summary="add adds. <!-- agent-coder:run=x -->"
            ),
            events.RunVerified(run_id=run_id, attempt=attempt, commit=sha, verdict=verdict, commands=(ran,), changed_files=files),
            events.RunCommitted(
                run_id=run_id, attempt=attempt, repository=self.repository, branch=branch, sha=sha, message="fix(7): add subtracts\n\nmore"
            ),
        ]

    def comments(self, number: int, marker: str = "") -> list[str]:
        return [c["body"] for c in self.repo.comments.get(number, []) if marker in c["body"]]

    def pulls(self) -> list[dict[str, Any]]:
        return list(self.repo.pulls.values())


def opened(
    run_id: str, repo: Repo, by: str = "github:maintainer", github: bool = True, base: str | None = None, **policy: Any
) -> events.RunOpened:
    target = events.GitHubTarget(repository=repo.full_name, repository_id=repo.id, installation_id=5, number=7)
    return events.RunOpened(
        run_id=run_id,
        issue=events.Issue(id="7", title="add subtracts, says @somebody"),
        repo="/somewhere/else",
        base=base,
        requested_by=by,
        origin="github",
        github=target if github else None,
        policy=events.Policy(**policy),
        opened_at=datetime.now(UTC),
    )


def commented(run_id: str, text: str, key: str = "comment:1") -> team.RunCommented:
    return team.RunCommented(run_id=run_id, by="github:lead", source="comment", text=text, key=key)


def _git(place: Path, *arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=place, check=True, capture_output=True, text=True).stdout.strip()


def source(place: Path) -> Path:
    """A small repository."""
    place.mkdir(parents=True)
    (place / "adder.py").write_text("def add(a, b):\n    return a - b\n")
    for command in (["init", "-q", "-b", "main"], ["add", "-A"], [*AUTHOR, "commit", "-q", "-m", "A bug"]):
        _git(place, *command)
    return place


def key_pair(home: Path) -> Any:
    """The App's private key, in the home folder; the public half."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    path = home / "forge" / "private-key.pem"
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    path.touch(mode=0o600)
    form = serialization.PrivateFormat.TraditionalOpenSSL
    path.write_bytes(key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()))
    return key.public_key()


@asynccontextmanager
async def out_world(tmp_path: Path, **more: Any) -> AsyncIterator[World]:
    """Everything, running."""
    home = tmp_path / "home"
    public = key_pair(home)
    place = source(tmp_path / "source")
    async with serving(lambda: GitHubOut(tmp_path, public)) as github, broker(home) as (_, settings):
        repo = github.create(FULL, place)
        forge = ForgeSettings(home=home, github_base_url=github.url, github_app_id=77, public_url="https://coder.example", **more)
        planner, gateway, service = Service("planner"), Service("gateway"), Service("forge")
        app = GitHubApp(forge)
        outgoing.register(service, forge, app)
        admin = await Connection.open(settings, ADMIN)
        artifact = build_artifact(ArtifactSettings(home=home))
        artifact._steps.clear()  # commits are made by the tests
        async with service.running(settings), artifact.running(settings), planner.running(settings), gateway.running(settings):
            imported = await planner.bus.ask(ImportRepository(source=str(place)))
            yield World(home, settings, github, repo, app, planner, gateway, admin, imported.repository, imported.base_commit)
        await admin.close()
