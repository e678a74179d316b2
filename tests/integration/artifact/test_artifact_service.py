"""The artifact service on a real broker: its questions, its refusals, and its step of a run, which the forge ends."""

import asyncio
import hashlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from libs.bus import Refusal, Service
from libs.bus.connection import Connection
from libs.bus.journal import Journal
from libs.bus.service import Bus
from libs.contracts import artifact as ask
from libs.contracts import run as events
from libs.contracts.fold import RunState
from libs.settings import BusSettings
from libs.testkit.broker import broker
from services.artifact.__main__ import build
from services.artifact.settings import ArtifactSettings
from services.forge.__main__ import build as build_forge
from services.forge.settings import ForgeSettings
from tests.unit.artifact.sample import Sample, run_git

FIXED = "def add(a, b):\n    return a + b\n"


@dataclass
class World:
    """The running service, and the users that ask it."""

    home: Path
    gateway: Bus
    sandbox: Bus
    planner: Bus
    settings: BusSettings

    def git(self, repository: str, *arguments: str) -> str:
        return run_git(self.home / "artifact" / "git" / f"{repository}.git", *arguments).stdout.strip()

    async def frames(self, bus: Bus, question: Any, kind: type[Any]) -> list[Any]:
        got: list[Any] = []

        async def take(payload: bytes) -> None:
            got.append(kind.model_validate_json(payload))

        await bus.ask(question, on_frame=take)
        return got

    async def put(self, bus: Bus, data: bytes, upload: str = "u1", step: int = 100_000) -> ask.BlobPut:
        answer = ask.BlobPut(received=0)
        for offset in range(0, max(len(data), 1), step):
            part = data[offset : offset + step]
            last = offset + step >= len(data)
            answer = await bus.ask(ask.PutChunk(upload_id=upload, owner="run-1", offset=offset, data=part, last=last))
        return answer


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    home = tmp_path / "home"
    async with broker(home) as (_, settings):
        users = {name: Service(name) for name in ("gateway", "sandbox", "planner")}
        service = build(ArtifactSettings(home=home, max_file_bytes=5000))
        async with (
            service.running(settings),
            build_forge(ForgeSettings(home=home)).running(settings),
            users["gateway"].running(settings),
            users["sandbox"].running(settings),
            users["planner"].running(settings),
        ):
            yield World(home, users["gateway"].bus, users["sandbox"].bus, users["planner"].bus, settings)


@pytest.fixture
def source(tmp_path: Path) -> Sample:
    sample = Sample(tmp_path / "calculator", branch="trunk")
    sample.commit({"README.md": "# Calculator\n", "calc.py": "def add(a, b):\n    return a - b\n", "nämé ☃.py": "x\r\n"}, "first")
    return sample


async def test_a_repository_is_imported_and_read(world: World, source: Sample) -> None:
    base = source.head
    head = source.commit({"calc.py": FIXED})
    imported = await world.planner.ask(ask.ImportRepository(source=str(source.path)))
    assert (imported.base_branch, imported.base_commit, imported.default_branch) == ("trunk", head, "trunk")
    name = imported.repository
    tree = await world.planner.ask(ask.ListTree(repository=name, commit=head, limit=2))
    assert ([entry.path for entry in tree.entries], tree.truncated) == (["README.md", "calc.py"], True)
    read = await world.planner.ask(ask.ReadCommitted(repository=name, commit=head, paths=("nämé ☃.py", "none")))
    assert [(file.path, file.content) for file in read.files] == [("nämé ☃.py", b"x\r\n")]
    diff = await world.gateway.ask(ask.Diff(repository=name, base=base, head=head))
    assert "+    return a + b\n" in diff.diff
    assert [(file.path, file.status) for file in diff.changed_files] == [("calc.py", "modified")]
    detached = await world.planner.ask(ask.ImportRepository(source=str(source.path), base=base))
    assert (detached.base_branch, detached.base_commit) == (base, base)


@pytest.mark.parametrize(
    ("question", "code"),
    [
        (ask.ImportRepository(source="/nowhere/at/all"), "repository_not_found"),
        (ask.ImportRepository(source="nowhere"), "repository_not_found"),
        (ask.ImportRepository(source="ext::sh -c true"), "source_refused"),
        (ask.ImportRepository(source="--upload-pack=true"), "source_refused"),
        (ask.ImportRepository(source="http://127.0.0.1:9/x.git"), "unreachable"),
        (ask.ImportRepository(source="Bad Name"), "bad_name"),
        (ask.CreateRepository(name="../x"), "bad_name"),
        (ask.IssueGitToken(repository="nowhere"), "repository_not_found"),
        (ask.ListTree(repository="nowhere", commit="0" * 40), "repository_not_found"),
        (ask.GetBlob(sha256="0" * 64), "not_found"),
    ],
)
async def test_what_cannot_be_is_refused_with_its_code(question: Any, code: str, world: World) -> None:
    with pytest.raises(Refusal) as refused:
        await world.gateway.ask(question)
    assert refused.value.code == code
    assert refused.value.retryable is (code == "unreachable")


async def test_empty_repositories_and_unknown_bases_have_codes_of_their_own(world: World, source: Sample) -> None:
    made = [await world.gateway.ask(ask.CreateRepository(name="team/fresh")) for _ in range(2)]
    assert made[0] == made[1] == ask.RepositoryDescription(name="team/fresh")
    for place, base, code in (("team/fresh", None, "empty_repository"), (str(source.path), "none", "unknown_base")):
        with pytest.raises(Refusal) as refused:
            await world.planner.ask(ask.ImportRepository(source=place, base=base))
        assert refused.value.code == code


async def test_repositories_are_listed_page_by_page(world: World, source: Sample) -> None:
    imported = await world.gateway.ask(ask.ImportRepository(source=str(source.path)))
    for name in ("a", "b/c"):
        await world.gateway.ask(ask.CreateRepository(name=name))
    first = await world.gateway.ask(ask.ListRepositories(limit=2))
    assert ([found.name for found in first.repositories], first.next_cursor) == (["a", "b/c"], "b/c")
    rest = await world.gateway.ask(ask.ListRepositories(cursor=first.next_cursor))
    assert rest == ask.Repositories(
        repositories=(
            ask.RepositoryDescription(name=imported.repository, source=str(source.path), default_branch="trunk", branches=("trunk",)),
        )
    )


async def test_commits_travel_to_a_sandbox_and_back(world: World, source: Sample, tmp_path: Path) -> None:
    imported = await world.planner.ask(ask.ImportRepository(source=str(source.path)))
    chunks = await world.frames(world.sandbox, ask.FetchBundle(repository=imported.repository, commit=source.head), ask.Chunk)
    (tmp_path / "out").write_bytes(b"".join(chunk.data for chunk in chunks))
    run_git(tmp_path, "clone", "-q", str(tmp_path / "out"), "clone")
    base = source.head
    head = source.commit({"calc.py": FIXED})
    put = await world.put(world.sandbox, source.bundle(tmp_path / "in", head, f"^{base}").read_bytes(), step=100)
    assert put.blob
    store = ask.StoreBundle(repository=imported.repository, run_id="run-1", sequence=7, commit=head, bundle=put.blob)
    assert await world.sandbox.ask(store) == await world.sandbox.ask(store)
    assert world.git(imported.repository, "rev-parse", "refs/runs/run-1/7") == head


async def test_a_file_over_the_limit_does_not_get_in(world: World, source: Sample, tmp_path: Path) -> None:
    imported = await world.planner.ask(ask.ImportRepository(source=str(source.path)))
    base = source.head
    head = source.commit({"big.bin": "x" * 5001})
    put = await world.put(world.sandbox, source.bundle(tmp_path / "in", head, f"^{base}").read_bytes())
    assert put.blob
    with pytest.raises(Refusal, match=r"'big.bin' has 5,001 bytes, over the limit of 5,000") as refused:
        await world.sandbox.ask(ask.StoreBundle(repository=imported.repository, run_id="run-1", sequence=7, commit=head, bundle=put.blob))
    assert refused.value.code == "too_large"


async def test_blobs_come_back_from_any_offset(world: World) -> None:
    data = bytes(range(256)) * 3000
    put = await world.put(world.planner, data)
    assert put.blob
    assert put.blob.sha256 == hashlib.sha256(data).hexdigest()
    chunks = await world.frames(world.gateway, ask.GetBlob(sha256=put.blob.sha256, offset=5), ask.Chunk)
    assert b"".join(chunk.data for chunk in chunks) == data[5:]


async def test_git_is_served_to_the_one_with_a_token(world: World, source: Sample) -> None:
    imported = await world.gateway.ask(ask.ImportRepository(source=str(source.path)))
    token = await world.gateway.ask(ask.IssueGitToken(repository=imported.repository, scope="read"))
    question = ask.ServeGit(
        repository=imported.repository, method="GET", service_path="info/refs", query="service=git-upload-pack", token=token.token
    )
    head, *rest = await world.frames(world.gateway, question, ask.GitFrame)
    assert head.head.status == 200
    assert source.head.encode() in b"".join(frame.data for frame in rest)
    refused = await world.frames(world.gateway, question.model_copy(update={"token": "act_x"}), ask.GitFrame)
    assert refused[0].head.status == 401
    push = question.model_copy(update={"query": "service=git-receive-pack"})
    assert (await world.frames(world.gateway, push, ask.GitFrame))[0].head.status == 403
    trusted = push.model_copy(update={"token": None, "trusted": True})
    assert (await world.frames(world.gateway, trusted, ask.GitFrame))[0].head.status == 200


async def test_the_body_of_a_large_request_is_a_blob_that_is_let_go_afterwards(world: World, source: Sample) -> None:
    imported = await world.gateway.ask(ask.ImportRepository(source=str(source.path)))
    body = f"0032want {source.head}\n00000009done\n".encode()
    put = await world.gateway.ask(ask.PutChunk(upload_id="g1", owner="git", offset=0, data=body, last=True))
    question = ask.ServeGit(
        repository=imported.repository,
        method="POST",
        service_path="git-upload-pack",
        headers={"content-type": "application/x-git-upload-pack-request"},
        trusted=True,
        body_blob=put.blob,
    )
    frames = await world.frames(world.gateway, question, ask.GitFrame)
    assert b"PACK" in b"".join(frame.data for frame in frames)
    with pytest.raises(Refusal):
        await world.gateway.ask(ask.GetBlob(sha256=put.blob.sha256))


class Run:
    """A run whose earlier steps are written by hand, each by the user who may."""

    def __init__(self, world: World, run_id: str, policy: events.Policy) -> None:
        self.world, self.run_id, self.policy = world, run_id, policy

    async def verified(self, repository: str, base: str, commit: str) -> None:
        issue = events.Issue(id="42", title="add 算错了")
        plan = events.Plan(steps=(events.PlanStep(title="fix it"),))
        changed = (events.ChangedFile(path="calc.py", status="modified", added_lines=1, deleted_lines=1),)
        tests = events.CommandRun(command="pytest", phase="test", outcome="exited", exit_code=0, passed=3, failed=0)
        common: dict[str, Any] = {"run_id": self.run_id}
        story = [
            ("gateway", events.RunOpened(**common, issue=issue, repo=repository, policy=self.policy, opened_at=datetime.now(UTC))),
            (
                "planner",
                events.RunPlanned(**common, attempt=1, plan=plan, repository=repository, base_branch="trunk", base_commit=base),
            ),
            ("editor", events.RunEdited(**common, attempt=1, commit=commit, tree=commit, changed_files=changed)),
            (
                "verifier",
                events.RunVerified(
                    **common, attempt=1, commit=commit, verdict=events.Verdict(ok=True, outcome="passed"), commands=(tests,)
                ),
            ),
        ]
        last = 0
        for user, event in story:
            connection = await Connection.open(self.world.settings, user)
            last = await Journal(connection).append(event, follows=last)
            await connection.close()

    async def ended(self) -> RunState:
        async with asyncio.timeout(30):
            while not (state := await self.world.gateway.journal.state(self.run_id)).ended:
                await asyncio.sleep(0.02)
        return state


async def saved(world: World, source: Sample, base: str, files: dict[str, str | bytes | None]) -> tuple[str, str]:
    """An imported repository and a commit that a run saved in it."""
    imported = await world.planner.ask(ask.ImportRepository(source=str(source.path)))
    source.git("checkout", "-q", "--detach", base)
    commit = source.commit(files)
    source.git("checkout", "-q", "trunk")
    run_git(
        world.home / "artifact" / "git" / f"{imported.repository}.git", "fetch", "-q", str(source.path), f"{commit}:refs/runs/x/{commit}"
    )
    return imported.repository, commit


async def test_a_verified_run_is_committed_and_finished(world: World, source: Sample) -> None:
    repository, commit = await saved(world, source, source.head, {"calc.py": FIXED})
    run = Run(world, "run-1", events.Policy())
    await run.verified(repository, source.head, commit)
    state = await run.ended()
    assert state.status == "finished"
    assert state.finished
    assert state.committed
    assert (state.finished.branch, state.finished.attempts) == ("fix/issue-42", 1)
    assert state.finished.test_summary == "3 passed, 0 failed"
    assert [file.path for file in state.finished.changed_files] == ["calc.py"]
    assert state.committed.message == "fix(42): add 算错了\n\nAgent-Coder-Run: run-1"
    assert world.git(repository, "rev-parse", "fix/issue-42") == state.finished.sha
    assert world.git(repository, "show", "fix/issue-42:calc.py") == FIXED.strip()


@pytest.mark.parametrize(("policy", "branch"), [("continue", "fix/issue-42"), ("suffix", "fix/issue-42-2")])
async def test_the_same_issue_solved_twice_ends_as_the_policy_says(policy: Any, branch: str, world: World, source: Sample) -> None:
    for number in (1, 2):
        repository, commit = await saved(world, source, source.head, {"calc.py": FIXED})
        run = Run(world, f"run-{number}", events.Policy(on_existing_branch=policy))
        await run.verified(repository, source.head, commit)
        state = await run.ended()
        assert state.status == "finished"
    assert state.finished
    assert state.finished.branch == branch


async def test_a_run_without_a_change_fails_with_the_reason(world: World, source: Sample) -> None:
    imported = await world.planner.ask(ask.ImportRepository(source=str(source.path)))
    run = Run(world, "run-1", events.Policy())
    await run.verified(imported.repository, source.head, source.head)
    state = await run.ended()
    assert state.status == "failed"
    assert "changed no file" in state.why


async def test_what_came_in_by_a_webhook_is_let_go(world: World) -> None:
    put = await world.gateway.ask(ask.PutChunk(upload_id="w1", owner=f"webhook-{'a' * 16}", offset=0, data=b"of a stranger", last=True))
    for _ in range(2):
        await world.gateway.ask(ask.ReleaseBlobs(webhook="a" * 16))
    with pytest.raises(Refusal, match="There is no blob"):
        await world.gateway.ask(ask.GetBlob(sha256=put.blob.sha256))
