"""The sandbox service on a real broker, with the real artifact service behind it."""

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from libs.bus import NoAnswer, Refusal, Service
from libs.contracts import artifact, sandbox
from libs.settings import BusSettings
from libs.testkit.broker import broker, until
from services.artifact.__main__ import build as build_artifact
from services.artifact.settings import ArtifactSettings
from services.sandbox.__main__ import build
from services.sandbox.settings import SandboxSettings


@dataclass
class World:
    """The running services, the editor that asks, and a repository that was imported."""

    home: Path
    settings: BusSettings
    editor: Service
    repository: str
    base: str

    async def ask(self, kind: type[Any], on_frame: Any = None, token: int = 1, **fields: Any) -> Any:
        return await self.editor.bus.ask(kind(workspace_id="run-1", token=token, **fields), on_frame)

    async def open(self, token: int = 1, commit: str | None = None, reset: bool = False) -> sandbox.Workspace:
        return await self.ask(sandbox.OpenWorkspace, token=token, repository=self.repository, commit=commit or self.base, reset=reset)

    async def execute(self, operation_id: str, command: str, **fields: Any) -> sandbox.Executed:
        return await self.ask(sandbox.Execute, operation_id=operation_id, command=command, **fields)

    def store(self, *arguments: str) -> str:
        folder = self.home / "artifact" / "git" / f"{self.repository}.git"
        return subprocess.run(["git", "-C", folder, *arguments], check=True, capture_output=True, text=True).stdout.strip()


def source_repository(folder: Path) -> Path:
    folder.mkdir()
    (folder / "calc.py").write_text("def add(a, b):\n    return a - b\n")
    (folder / "nämé ☃.py").write_text("# 你好\n")
    for arguments in (
        ["init", "-q", "-b", "trunk"],
        ["add", "-A"],
        ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "-m", "first"],
    ):
        subprocess.run(["git", *arguments], cwd=folder, check=True)
    return folder


@asynccontextmanager
async def asked(home: Path) -> AsyncIterator[World]:
    """Everything but the sandbox service itself."""
    planner, editor = Service("planner"), Service("editor")
    async with (
        broker(home) as (_, settings),
        build_artifact(ArtifactSettings(home=home)).running(settings),
        planner.running(settings),
        editor.running(settings),
    ):
        source = source_repository(home.parent / "source")
        imported = await planner.bus.ask(artifact.ImportRepository(source=str(source)))
        yield World(home, settings, editor, imported.repository, imported.base_commit)


async def answering(world: World) -> None:
    """Wait until a sandbox service answers."""
    async with asyncio.timeout(30):
        while True:
            try:
                await world.editor.bus.ask(sandbox.CloseWorkspace(workspace_id="nobodys", token=1))
            except NoAnswer:
                await asyncio.sleep(0.05)
            else:
                return


def marked(mark: str) -> list[int]:
    """Processes of this machine whose command line carries the mark."""
    return [process.pid for process in psutil.process_iter(["cmdline"]) if mark in " ".join(process.info["cmdline"] or ())]


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    home = tmp_path / "home"
    async with asked(home) as world, build(SandboxSettings(home=home, registries="registry.invalid")).running(world.settings):
        await answering(world)
        yield world


async def test_change_is_made_run_and_saved_in_the_store(world):
    opened = await world.open()
    assert opened.commit == world.base
    found = await world.ask(sandbox.ReadFile, path="calc.py")
    write = sandbox.FileWrite(path="calc.py", content=found.content.replace(b"-", b"+"), expected_sha256=found.sha256)
    await world.ask(sandbox.WriteFiles, operation_id="w1", files=(write,))
    ran = await world.execute("x1", "python -c 'import calc; print(calc.add(2, 3))'")
    assert (ran.outcome, ran.exit_code, ran.stdout) == ("exited", 0, "5\n")
    snapshot = await world.ask(sandbox.TakeSnapshot, run_id="run-1", sequence=7, message="fix(1): add")
    assert [(change.path, change.status) for change in snapshot.changed_files] == [("calc.py", "modified")]
    assert world.store("rev-parse", "refs/runs/run-1/7") == snapshot.commit
    assert world.store("show", f"{snapshot.commit}:calc.py").endswith("return a + b")
    assert world.store("rev-parse", f"{snapshot.commit}^") == world.base


async def test_snapshot_asked_twice_is_the_same_commit(world):
    await world.open()
    await world.execute("x1", "echo 1 > new")
    first, again = [await world.ask(sandbox.TakeSnapshot, run_id="run-1", sequence=7, message="m") for _ in range(2)]
    assert first == again


async def test_closed_workspace_is_laid_anew_from_its_snapshot(world):
    opened = await world.open()
    await world.execute("x1", "echo 1 > new")
    snapshot = await world.ask(sandbox.TakeSnapshot, run_id="run-1", sequence=7, message="m")
    await world.ask(sandbox.CloseWorkspace)
    await world.ask(sandbox.CloseWorkspace)
    with pytest.raises(Refusal) as refused:
        await world.ask(sandbox.ReadFile, path="new")
    assert refused.value.code == "no_workspace"
    again = await world.open(commit=snapshot.commit)
    assert again.generation != opened.generation
    assert (await world.ask(sandbox.ReadFile, path="new")).content == b"1\n"


async def test_looking_around(world):
    await world.open()
    assert [entry.name for entry in (await world.ask(sandbox.ListDirectory)).entries] == ["calc.py", "nämé ☃.py"]
    assert (await world.ask(sandbox.Glob, pattern="*.py")).paths == ("calc.py", "nämé ☃.py")
    assert (await world.ask(sandbox.Grep, pattern="你")).matches == (sandbox.GrepMatch(path="nämé ☃.py", line=1, text="# 你好"),)


@pytest.mark.parametrize(
    ("kind", "fields", "code"),
    [
        (sandbox.ReadFile, {"path": "../x"}, "bad_path"),
        (sandbox.ReadFile, {"path": "none"}, "not_found"),
        (sandbox.ListDirectory, {"path": "calc.py"}, "bad_path"),
        (sandbox.Grep, {"pattern": "("}, "bad_pattern"),
        (
            sandbox.WriteFiles,
            {"operation_id": "w", "files": (sandbox.FileWrite(path="calc.py", content=b"", expected_sha256="0" * 64),)},
            "conflict",
        ),
        (sandbox.OpenWorkspace, {"repository": "another", "commit": "a" * 40}, "conflict"),
        (sandbox.ReadFile, {"path": "calc.py", "token": 0}, "stale_lease"),
    ],
)
async def test_refusals_carry_their_code(world, kind, fields, code):
    await world.open()
    with pytest.raises(Refusal) as refused:
        await world.ask(kind, **fields)
    assert (refused.value.code, refused.value.retryable) == (code, False)


async def test_file_over_the_limit_is_refused_by_name(world):
    await world.open()
    await world.execute("x1", "head -c 10000001 /dev/zero > big.bin")
    with pytest.raises(Refusal, match=r"big\.bin") as refused:
        await world.ask(sandbox.TakeSnapshot, run_id="run-1", sequence=7, message="m")
    assert refused.value.code == "too_large"


async def test_output_is_streamed_while_the_command_runs(world):
    await world.open()
    tree = world.home / "sandbox" / "workspaces" / "run-1" / "tree"
    seen: list[bytes] = []

    async def on_frame(payload: bytes) -> None:
        seen.append(sandbox.OutputChunk.model_validate_json(payload).data)
        (tree / "go").touch()

    ran = await world.execute("x1", "echo one; until [ -e go ]; do sleep 0.01; done; echo two", stream=True, on_frame=on_frame)
    assert (ran.exit_code, seen) == (0, [b"one\n", b"two\n"])


async def test_command_survives_an_asker_that_comes_back(world):
    """The first asker is cancelled in mid-stream; the second one, with the same operation, gets the one result."""
    await world.open()
    tree = world.home / "sandbox" / "workspaces" / "run-1" / "tree"
    begun = asyncio.Event()

    async def on_frame(_payload: bytes) -> None:
        begun.set()
        await asyncio.Event().wait()

    command = "echo begun >> count; yes | head -c 9000000; until [ -e go ]; do sleep 0.01; done; cat count"
    first = asyncio.create_task(world.execute("x1", command, stream=True, on_frame=on_frame, tail_characters=200))
    await asyncio.wait_for(begun.wait(), 20)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    second = asyncio.create_task(world.execute("x1", command, tail_characters=200))
    (tree / "go").touch()
    ran = await second
    assert (ran.outcome, ran.exit_code, ran.replayed) == ("exited", 0, True)
    assert (tree / "count").read_text() == "begun\n"


async def test_later_step_takes_over_and_ends_the_command_of_the_earlier_one(world):
    await world.open(token=1)
    begun = asyncio.Event()

    async def on_frame(_payload: bytes) -> None:
        begun.set()

    earlier = asyncio.create_task(world.execute("x1", "echo; sleep 600", timeout_seconds=900, stream=True, on_frame=on_frame))
    await asyncio.wait_for(begun.wait(), 20)
    await world.open(token=2)
    assert (await earlier).outcome == "unknown"
    with pytest.raises(Refusal) as refused:
        await world.ask(sandbox.ReadFile, path="calc.py")
    assert refused.value.code == "stale_lease"


async def test_set_up_runs_once_a_key_and_stays_out_of_the_snapshot(world):
    await world.open()
    commands = ("echo built > generated.txt; echo touched >> calc.py; echo x >> ~/count", "cat ~/count")
    first = await world.ask(sandbox.SetUp, operation_id="s1", key="k1", commands=commands)
    assert (first.ok, first.ran, [run.exit_code for run in first.commands]) == (True, True, [0, 0])
    again = await world.ask(sandbox.SetUp, operation_id="s2", key="k1", commands=commands)
    assert (again.ok, again.ran, again.commands) == (True, False, first.commands)
    assert (await world.open(reset=True)).setup_key == "k1"
    assert (await world.ask(sandbox.ReadFile, path="generated.txt")).content == b"built\n"
    snapshot = await world.ask(sandbox.TakeSnapshot, run_id="run-1", sequence=7, message="m")
    assert snapshot.changed_files == ()


async def test_set_up_that_fails_carries_its_output_and_is_run_again(world):
    await world.open()
    commands = ("echo trying; echo no such package >&2; test -e ready", "echo never")
    first = await world.ask(sandbox.SetUp, operation_id="s1", key="k1", commands=commands)
    assert (first.ok, len(first.commands)) == (False, 1)
    assert first.commands[0].output_tail == "trying\n\nno such package\n"
    await world.execute("x1", "touch ready")
    assert (await world.ask(sandbox.SetUp, operation_id="s1", key="k1", commands=commands)).ok


async def test_service_that_is_killed_leaves_nothing_and_says_unknown_when_it_is_back(tmp_path):
    home = tmp_path / "home"
    mark = f"mark-{os.getpid()}-{tmp_path.name}"
    command = f"touch begun; sh -c 'sleep 600; true' {mark}"
    async with asked(home) as world:
        service = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "services.sandbox"),
            env={**os.environ, "AGENT_CODER_HOME": str(home), "AGENT_CODER_NATS_URL": world.settings.nats_url},
        )
        await answering(world)
        await world.open()
        assert (await world.execute("x0", "echo done")).stdout == "done\n"
        running = asyncio.create_task(world.execute("x1", command, timeout_seconds=900))
        await until((home / "sandbox" / "workspaces" / "run-1" / "tree" / "begun").exists)
        service.kill()
        await service.wait()
        await until(lambda: not marked(mark))
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        async with build(SandboxSettings(home=home)).running(world.settings):
            await answering(world)
            again = await world.execute("x1", command, timeout_seconds=900)
            assert (again.outcome, again.exit_code) == ("unknown", None)
            assert (await world.execute("x0", "echo done")).replayed


async def test_stopped_service_leaves_no_process(tmp_path):
    home = tmp_path / "home"
    mark = f"mark-{os.getpid()}-{tmp_path.name}"
    async with asked(home) as world:
        async with build(SandboxSettings(home=home)).running(world.settings):
            await answering(world)
            await world.open()
            running = asyncio.create_task(world.execute("x1", f"touch begun; sh -c 'sleep 600; true' {mark}", timeout_seconds=900))
            await until((home / "sandbox" / "workspaces" / "run-1" / "tree" / "begun").exists)
        assert not marked(mark)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_health_is_told(world):
    gateway = Service("gateway")
    async with gateway.running(world.settings):
        health = await gateway.bus.ask(sandbox.CheckSandbox())
    assert (health.ok, health.backend) == (True, "process")


async def test_store_that_is_down_is_no_answer(tmp_path):
    home = tmp_path / "home"
    editor = Service("editor")
    async with broker(home) as (_, settings), build(SandboxSettings(home=home)).running(settings), editor.running(settings):
        with pytest.raises((Refusal, NoAnswer)) as refused:
            await World(home, settings, editor, "r", "a" * 40).open()
    assert getattr(refused.value, "retryable", True)
