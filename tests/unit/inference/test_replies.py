"""One request, one call: whoever asks again gets the record."""

import asyncio
import hashlib

import pytest

from libs.bus.errors import NoAnswer, Refusal
from libs.contracts.inference import Completion
from services.inference.replies import Record, Replies
from services.inference.store import MemoryRecords


class Work:
    """A call that waits until it may end."""

    def __init__(self, text="hello", error=None):
        self.calls = 0
        self.begun = asyncio.Event()
        self.may_end = asyncio.Event()
        self.text, self.error = text, error

    async def __call__(self):
        self.calls += 1
        self.begun.set()
        await self.may_end.wait()
        if self.error:
            raise self.error
        return Completion(model="m", content=self.text)


@pytest.fixture
def records():
    return MemoryRecords()


def replies(records):
    return Replies(records, beat_seconds=0.01, lost_seconds=0.5, poll_seconds=0.005)


async def test_the_same_request_is_answered_from_the_record(records):
    work = Work()
    work.may_end.set()
    first = await replies(records).once("r", work)
    second = await replies(records).once("r", work)
    assert (first.replayed, second.replayed, work.calls) == (False, True, 1)
    assert second.content == first.content


async def test_requests_at_the_same_time_share_one_call_also_over_replicas(records):
    work = Work()
    askers = [asyncio.create_task(replies(records).once("r", work)) for _ in range(4)]
    await work.begun.wait()
    work.may_end.set()
    answers = await asyncio.gather(*askers)
    assert work.calls == 1
    assert sorted(a.replayed for a in answers) == [False, True, True, True]


async def test_a_call_that_outlives_the_patience_of_others_is_not_run_twice(records):
    work = Work()
    first = asyncio.create_task(replies(records).once("r", work))
    await work.begun.wait()
    second = asyncio.create_task(Replies(records, beat_seconds=0.01, lost_seconds=0.5, poll_seconds=0.005).once("r", work))
    done, _ = await asyncio.wait({first, second}, timeout=0.7)
    assert not done
    work.may_end.set()
    await asyncio.gather(first, second)
    assert work.calls == 1


async def test_a_failure_is_not_recorded(records):
    bad, good = Work(error=Refusal("upstream", "500")), Work()
    bad.may_end.set()
    good.may_end.set()
    with pytest.raises(Refusal):
        await replies(records).once("r", bad)
    assert (await replies(records).once("r", good)).replayed is False


async def test_a_cancelled_call_leaves_the_request_free_for_the_next(records):
    held, next_one = Work(), Work("second")
    next_one.may_end.set()
    task = asyncio.create_task(replies(records).once("r", held))
    await held.begun.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert (await replies(records).once("r", next_one)).content == "second"


async def test_a_request_whose_holder_died_is_taken_over(records):
    await records.put(hashlib.sha256(b"r").hexdigest(), Record(state="running", holder="dead").model_dump_json().encode())
    work = Work()
    work.may_end.set()
    assert (await replies(records).once("r", work)).content == "hello"


class Flaky(MemoryRecords):
    """Loses the acknowledgement of chosen puts: the value is stored, the asker hears nothing."""

    def __init__(self, lost):
        super().__init__()
        self.lost, self.puts = lost, 0

    async def put(self, key, value, expected_revision=None):
        self.puts += 1
        revision = await super().put(key, value, expected_revision)
        if self.puts in self.lost:
            raise NoAnswer("no acknowledgement")
        return revision


async def test_a_reply_whose_acknowledgement_was_lost_is_stored_all_the_same():
    records = Flaky(lost={2, 3})
    work = Work()
    work.may_end.set()
    first = await Replies(records, beat_seconds=60, poll_seconds=0.001).once("r", work)
    second = await Replies(records, poll_seconds=0.001).once("r", work)
    assert (first.content, second.replayed, work.calls) == ("hello", True, 1)
