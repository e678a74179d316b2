"""Operations are done once, leases only grow."""

import asyncio

import pytest
from pydantic import BaseModel

from services.sandbox.errors import BadRequest, OperationConflict, OutcomeUnknown, StaleLease
from services.sandbox.lease import Lease
from services.sandbox.operations import Operations


class Request(BaseModel):
    what: str


class Answer(BaseModel):
    value: int


class Work:
    """Counts how often it is done; can be held back."""

    def __init__(self, error: Exception | None = None) -> None:
        self.done = 0
        self.begun = asyncio.Event()
        self.go = asyncio.Event()
        self.error = error

    async def __call__(self) -> Answer:
        self.begun.set()
        await self.go.wait()
        if self.error:
            raise self.error
        self.done += 1
        return Answer(value=self.done)


@pytest.fixture
def work() -> Work:
    work = Work()
    work.go.set()
    return work


async def test_same_id_is_answered_from_the_record_also_after_a_restart(tmp_path, work):
    first = await Operations(tmp_path).once("op-1", Request(what="x"), Answer, work)
    again = await Operations(tmp_path).once("op-1", Request(what="x"), Answer, work)
    assert (first.replayed, again.replayed) == (False, True)
    assert first.answer == again.answer == Answer(value=1)
    assert work.done == 1


async def test_same_id_with_another_request_is_refused(tmp_path, work):
    operations = Operations(tmp_path)
    await operations.once("op-1", Request(what="x"), Answer, work)
    with pytest.raises(OperationConflict):
        await operations.once("op-1", Request(what="y"), Answer, work)


async def test_second_asker_joins_the_first(tmp_path):
    operations, work = Operations(tmp_path), Work()
    askers = [asyncio.create_task(operations.once("op-1", Request(what="x"), Answer, work)) for _ in range(3)]
    await work.begun.wait()
    work.go.set()
    assert {(await asker).answer.value for asker in askers} == {1}
    assert work.done == 1


async def test_work_goes_on_when_its_asker_leaves(tmp_path):
    operations, work = Operations(tmp_path), Work()
    asker = asyncio.create_task(operations.once("op-1", Request(what="x"), Answer, work))
    await work.begun.wait()
    asker.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asker
    work.go.set()
    assert (await operations.once("op-1", Request(what="x"), Answer, work)).answer.value == 1
    assert work.done == 1


async def test_work_that_everybody_left_is_ended_after_a_while(tmp_path, monkeypatch):
    monkeypatch.setattr("services.sandbox.operations.ABANDONED_SECONDS", 0.01)
    operations, work = Operations(tmp_path), Work()
    asker = asyncio.create_task(operations.once("op-1", Request(what="x"), Answer, work))
    await work.begun.wait()
    asker.cancel()
    async with asyncio.timeout(20):
        while operations.busy:
            await asyncio.sleep(0.01)
    with pytest.raises(OutcomeUnknown):
        await operations.once("op-1", Request(what="x"), Answer, work)


async def test_answer_that_is_not_kept_is_given_once(tmp_path, work):
    operations = Operations(tmp_path)
    for value in (1, 2):
        once = await operations.once("op-1", Request(what="x"), Answer, work, kept=lambda _: False)
        assert (once.answer.value, once.replayed) == (value, False)


async def test_start_without_end_is_unknown_after_a_restart(tmp_path, work):
    interrupted = Operations(tmp_path)
    held = Work()
    asker = asyncio.create_task(interrupted.once("op-1", Request(what="x"), Answer, held))
    await held.begun.wait()
    with pytest.raises(OutcomeUnknown):
        await Operations(tmp_path).once("op-1", Request(what="x"), Answer, work)
    assert work.done == 0
    await interrupted.interrupt()
    with pytest.raises(OutcomeUnknown):
        await asker


async def test_interrupted_work_is_unknown_and_idempotent_work_is_done_again(tmp_path, work):
    operations, held = Operations(tmp_path), Work()
    asker = asyncio.create_task(operations.once("op-1", Request(what="x"), Answer, held))
    await held.begun.wait()
    await operations.interrupt()
    with pytest.raises(OutcomeUnknown):
        await asker
    with pytest.raises(OutcomeUnknown):
        await operations.once("op-1", Request(what="x"), Answer, work)
    assert (await operations.once("op-1", Request(what="x"), Answer, work, idempotent=True)).answer.value == 1
    assert not operations.busy


async def test_refused_work_may_be_asked_again(tmp_path, work):
    operations, refused = Operations(tmp_path), Work(BadRequest("no"))
    refused.go.set()
    for _ in range(2):
        with pytest.raises(BadRequest):
            await operations.once("op-1", Request(what="x"), Answer, refused)
    assert (await Operations(tmp_path).once("op-1", Request(what="x"), Answer, work)).answer.value == 1


async def test_line_that_a_crash_cut_off_counts_as_not_written(tmp_path, work):
    await Operations(tmp_path).once("op-1", Request(what="x"), Answer, work)
    with (tmp_path / "operations.jsonl").open("a") as file:
        file.write('{"id": "op-2", "sta')
    operations = Operations(tmp_path)
    assert (await operations.once("op-2", Request(what="x"), Answer, work)).answer.value == 2
    assert (await Operations(tmp_path).once("op-2", Request(what="x"), Answer, work)).replayed


def test_token_never_decreases_also_after_a_restart(tmp_path):
    lease = Lease(tmp_path)
    assert [lease.accept(token) for token in (0, 0, 7, 7)] == [True, False, True, False]
    with pytest.raises(StaleLease, match="older than 7"):
        Lease(tmp_path).accept(6)
    assert lease.current() == 7
