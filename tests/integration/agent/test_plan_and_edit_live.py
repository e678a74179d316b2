"""The planner and the editor on a real broker, with their own users; the services that they ask answer from memory."""

import asyncio
from contextlib import AsyncExitStack
from functools import partial

import pytest

from libs.bus import Service
from libs.bus.connection import Connection
from libs.bus.journal import Journal
from libs.contracts import artifact, inference, sandbox
from libs.contracts.run import ModelReplied, RunEdited, ToolReturned
from libs.testkit.broker import broker
from services.editor.__main__ import build as build_editor
from services.planner.__main__ import build as build_planner
from tests.unit.agent.fake_step import FakeStep
from tests.unit.agent.scripted import call, says
from tests.unit.editor.world import BASE, World, opened

SANDBOX = (
    sandbox.OpenWorkspace,
    sandbox.SetUp,
    sandbox.ReadFile,
    sandbox.WriteFiles,
    sandbox.ListDirectory,
    sandbox.Glob,
    sandbox.Grep,
    sandbox.Execute,
    sandbox.TakeSnapshot,
)
ARTIFACT = (artifact.ImportRepository, artifact.ListTree, artifact.ReadCommitted, artifact.Diff, artifact.PutChunk)
INFERENCE = (inference.DescribeModels, inference.Complete)
STORY = (
    says(text='{"summary": "s", "steps": [{"title": "Change x", "files": ["a.py"]}]}'),
    says(call("read", path="a.py"), call("ls"), call("glob", pattern="**"), call("grep", pattern="x")),
    says(call("edit", path="a.py", old="x = 1", new="x = 2"), call("exec", command="pytest")),
    says(call("write", path="big.txt", content="雪" * 40_000), call("patch", diff="--- a/old.py\n+++ /dev/null\n@@ -1 +0,0 @@\n-gone\n")),
    says(call("done", summary="done")),
)


class Store(World):
    def on_ImportRepository(self, question):
        return artifact.Imported(repository="demo", base_branch="main", base_commit=BASE, default_branch="main")


def answering(name, questions, ask):
    async def answer(question, asker):
        return await ask(question)

    service = Service(name)
    for question in questions:
        service.answer(question)(partial(answer))
    return service


@pytest.fixture
async def bus(tmp_path):
    async with broker(tmp_path / "home") as (_, settings):
        gateway = await Connection.open(settings, "gateway")
        yield settings, Journal(gateway)
        await gateway.close()


async def test_an_opened_run_is_planned_and_edited_with_every_call_on_the_journal(bus):
    settings, journal = bus
    world = Store({"a.py": b"x = 1\n", "old.py": b"gone\n"}, STORY)
    blobs = FakeStep(world, ())
    helpers = (
        answering("sandbox", SANDBOX, world.ask),
        answering("artifact", ARTIFACT, blobs.ask),
        answering("inference", INFERENCE, world.ask),
    )
    async with AsyncExitStack() as running:
        for service in (*helpers, build_planner(), build_editor()):
            await running.enter_async_context(service.running(settings))
        await journal.append(opened(), follows=0)
        async with asyncio.timeout(30):
            while (state := await journal.state("run-1")).status not in {"verifying", "failed"}:
                await asyncio.sleep(0.02)
    assert state.status == "verifying", state.why
    assert isinstance(state.edited, RunEdited)
    assert [file.path for file in state.edited.changed_files] == ["a.py", "big.txt", "old.py"]
    assert (world.files["a.py"], "old.py" in world.files) == (b"x = 2\n", False)
    history = await journal.read("run-1")
    assert [recorded.event.step for recorded in history if isinstance(recorded.event, ModelReplied)] == ["plan", *["edit"] * 4]
    overflowing = [r.event for r in history if isinstance(r.event, ModelReplied | ToolReturned) and r.event.overflow]
    assert len(overflowing) == 2
    assert state.usage.calls == 5
