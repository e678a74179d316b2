"""A stream that is joined is whole from its start, is paid for once, and stops when nobody listens."""

import asyncio

import pytest

from libs.bus.errors import Refusal
from libs.contracts.inference import Completion
from libs.contracts.work import ToolCall
from services.inference.domain import Delta
from services.inference.streams import FRAME_CHARACTERS, Streams


class Stream:
    """Work that passes on a piece each time it is told to."""

    def __init__(self, error=None):
        self.calls, self.cancelled = 0, asyncio.Event()
        self.pieces, self.error = asyncio.Queue(), error

    async def __call__(self, on_delta):
        self.calls += 1
        text = ""
        try:
            while (piece := await self.pieces.get()) is not None:
                text += piece
                await on_delta(Delta(text=piece))
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        if self.error:
            raise self.error
        return Completion(model="m", content=text)


class Listener:
    def __init__(self):
        self.frames, self.heard = [], asyncio.Event()

    async def __call__(self, frame):
        self.frames.append(frame)
        self.heard.set()

    async def until(self, count):
        async with asyncio.timeout(5):
            while len(self.frames) < count:
                self.heard.clear()
                await self.heard.wait()

    @property
    def text(self):
        return "".join(frame.text for frame in self.frames)


@pytest.fixture
def streams():
    return Streams()


async def test_a_second_asker_gets_everything_from_the_start_and_pays_nothing(streams):
    stream, one, two = Stream(), Listener(), Listener()
    first = asyncio.create_task(streams.join("r", "r", stream, one))
    stream.pieces.put_nowait("hel")
    await one.until(1)
    second = asyncio.create_task(streams.join("r", "r", stream, two))
    await two.until(1)
    stream.pieces.put_nowait("lo")
    stream.pieces.put_nowait(None)
    answers = await asyncio.gather(first, second)
    assert one.frames == two.frames
    assert [(f.request_id, f.index, f.offset, f.text) for f in two.frames] == [("r", 0, 0, "hel"), ("r", 1, 3, "lo")]
    assert [a.replayed for a in answers] == [False, True]
    assert stream.calls == 1


async def test_pieces_that_come_faster_than_they_are_taken_become_one_frame(streams):
    stream, one, free = Stream(), Listener(), asyncio.Event()

    async def slow(frame):
        await one(frame)
        await free.wait()

    asking = asyncio.create_task(streams.join("r", "r", stream, slow))
    stream.pieces.put_nowait("a")
    await one.until(1)
    for piece in ("b", "c", None):
        stream.pieces.put_nowait(piece)
    await asyncio.wait({streams._running["r"].task}, timeout=5)
    free.set()
    assert (await asking).content == "abc"
    assert [(f.index, f.offset, f.text) for f in one.frames] == [(0, 0, "a"), (1, 1, "bc")]


async def test_the_stream_goes_on_when_its_first_asker_leaves_and_another_listens(streams):
    stream, one, two = Stream(), Listener(), Listener()
    first = asyncio.create_task(streams.join("r", "r", stream, one))
    second = asyncio.create_task(streams.join("r", "r", stream, two))
    stream.pieces.put_nowait("a")
    await asyncio.gather(one.until(1), two.until(1))
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    stream.pieces.put_nowait("b")
    stream.pieces.put_nowait(None)
    assert (await second).content == two.text == "ab"
    assert not stream.cancelled.is_set()


async def test_the_last_asker_that_leaves_stops_it_and_the_next_one_begins_anew(streams):
    stream, one = Stream(), Listener()
    first = asyncio.create_task(streams.join("r", "r", stream, one))
    stream.pieces.put_nowait("a")
    await one.until(1)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    assert stream.cancelled.is_set()
    stream.pieces.put_nowait(None)
    assert (await streams.join("r", "r", stream, None)).replayed is False
    assert stream.calls == 2


async def test_a_listener_that_stops_reading_holds_nobody_back(streams):
    stream, one = Stream(), Listener()
    blocked = asyncio.Event()

    async def slow(_):
        await blocked.wait()

    stuck = asyncio.create_task(streams.join("r", "r", stream, slow))
    quick = asyncio.create_task(streams.join("r", "r", stream, one))
    for piece in ("a", "b", "c", None):
        stream.pieces.put_nowait(piece)
    assert (await asyncio.wait_for(quick, 5)).content == "abc"
    blocked.set()
    assert (await stuck).content == "abc"


async def test_a_failure_reaches_everybody(streams):
    stream = Stream(Refusal("upstream", "500"))
    askers = [asyncio.create_task(streams.join("r", "r", stream, Listener())) for _ in range(3)]
    stream.pieces.put_nowait(None)
    outcomes = await asyncio.gather(*askers, return_exceptions=True)
    assert [type(o) for o in outcomes] == [Refusal] * 3


async def test_a_reply_that_came_without_pieces_is_told_as_some(streams):
    reply = Completion(
        model="m", reasoning="hm", content="x" * (FRAME_CHARACTERS + 1), tool_calls=(ToolCall(id="c", name="read", arguments="{}"),)
    )

    async def recorded(_):
        return reply

    one = Listener()
    await streams.join("r", "r", recorded, one)
    assert [f.reasoning for f in one.frames] == ["hm", None, None, None]
    assert one.text == reply.content
    last = one.frames[-1]
    assert (last.tool_index, last.tool_call_id, last.tool_name, last.arguments_delta) == (0, "c", "read", "{}")
    assert [f.index for f in one.frames] == [0, 1, 2, 3]


async def test_many_requests_are_kept_apart_and_forgotten(streams):
    async def work(on_delta):
        await on_delta(Delta(text="x"))
        return Completion(model="m", content="x")

    listeners = [Listener() for _ in range(200)]
    await asyncio.gather(*(streams.join(f"r{n}", f"r{n}", work, listener) for n, listener in enumerate(listeners)))
    assert [listener.frames[0].request_id for listener in listeners] == [f"r{n}" for n in range(200)]
    assert streams._running == {}
