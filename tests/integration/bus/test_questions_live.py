"""Questions on a real broker: answers, refusals, streams that are held back, cancelled, or break off."""

import asyncio

import pytest

from libs.bus import NoAnswer, Refusal, Service
from libs.contracts import artifact, sandbox
from libs.contracts.envelope import Done
from libs.testkit.broker import broker, until


@pytest.fixture
async def settings(tmp_path):
    async with broker(tmp_path / "home") as (_, found):
        yield found


def execute(command: str = "true") -> sandbox.Execute:
    return sandbox.Execute(workspace_id="w", token=1, operation_id="o", command=command, stream=True)


async def test_an_answer_comes_back(settings):
    server, asker = Service("artifact"), Service("planner")

    @server.answer(artifact.ListTree)
    async def tree(question: artifact.ListTree, _) -> artifact.Tree:
        entry = artifact.TreeEntry(path="nämé ☃.py", mode="100644", size=1, object_id=question.commit)
        return artifact.Tree(entries=(entry,))

    async with server.running(settings), asker.running(settings):
        answer = await asker.bus.ask(artifact.ListTree(repository="r", commit="b" * 40))
    assert answer.entries[0].path == "nämé ☃.py"


async def test_a_refusal_keeps_its_code_and_words(settings):
    server, asker = Service("artifact"), Service("planner")

    @server.answer(artifact.ListTree)
    async def tree(question, _):
        raise Refusal("not_found", "没有这个提交")

    async with server.running(settings), asker.running(settings):
        with pytest.raises(Refusal) as caught:
            await asker.bus.ask(artifact.ListTree(repository="r", commit="b" * 40))
    assert (caught.value.code, caught.value.detail, caught.value.retryable) == ("not_found", "没有这个提交", False)


async def test_nobody_answering_is_said_at_once(settings):
    asker = Service("planner")
    async with asker.running(settings):
        with pytest.raises(NoAnswer, match="nobody answers"):
            await asyncio.wait_for(asker.bus.ask(artifact.ListTree(repository="r", commit="b" * 40)), 5)


async def test_a_stream_is_whole_and_the_sender_waits_for_a_slow_reader(settings):
    server, asker = Service("sandbox"), Service("editor")
    sent = 0

    @server.answer(sandbox.Execute)
    async def run(question, end):
        nonlocal sent
        for i in range(200):
            await end.frame(sandbox.OutputChunk(stream="stdout", data=str(i).encode()))
            sent = i + 1
        return sandbox.Executed(outcome="exited", exit_code=0)

    got: list[bytes] = []
    gate = asyncio.Event()

    async def on_frame(payload: bytes) -> None:
        got.append(sandbox.OutputChunk.model_validate_json(payload).data)
        await gate.wait()

    async with server.running(settings), asker.running(settings):
        task = asyncio.create_task(asker.bus.ask(execute(), on_frame))
        await until(lambda: got)
        await until(lambda: sent >= 32)
        for _ in range(50):
            await asyncio.sleep(0)
        assert sent <= 33
        gate.set()
        answer = await asyncio.wait_for(task, 20)
    assert answer.exit_code == 0
    assert got == [str(i).encode() for i in range(200)]


async def test_an_asker_that_goes_away_cancels_the_work(settings):
    server, asker = Service("sandbox"), Service("editor")
    begun, stopped = asyncio.Event(), asyncio.Event()

    @server.answer(sandbox.Execute)
    async def run(question, _):
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()
        return Done()

    async with server.running(settings), asker.running(settings):
        task = asyncio.create_task(asker.bus.ask(execute()))
        await asyncio.wait_for(begun.wait(), 10)
        task.cancel()
        await asyncio.wait_for(stopped.wait(), 10)


async def test_a_responder_that_dies_in_the_middle_is_no_answer(settings):
    server, asker = Service("sandbox"), Service("editor")
    got = asyncio.Event()

    @server.answer(sandbox.Execute)
    async def run(question, end):
        await end.frame(sandbox.OutputChunk(stream="stdout", data=b"half"))
        await asyncio.Event().wait()
        return Done()

    async def on_frame(_: bytes) -> None:
        got.set()

    async with asker.running(settings.model_copy(update={"silence_seconds": 1.0})):
        async with server.running(settings):
            task = asyncio.create_task(asker.bus.ask(execute(), on_frame))
            await asyncio.wait_for(got.wait(), 10)
        with pytest.raises(NoAnswer, match="no sign of life"):
            await task
