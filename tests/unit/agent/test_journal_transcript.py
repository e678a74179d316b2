import json
from datetime import timedelta

import pytest

from libs.agent import JournalTranscript, ToolResult
from libs.agent.journal_transcript import seconds_used
from libs.contracts.artifact import Chunk
from libs.contracts.fold import Recorded
from libs.contracts.run import ModelReplied, RunEdited, RunRetried, StepStarted, ToolReturned
from libs.contracts.work import ToolCall
from tests.unit.agent.fake_step import EPOCH, FakeStep
from tests.unit.agent.scripted import says

SHA = "a" * 40


class Numbered(FakeStep):
    """A step that handles event 7, with later events and their causes."""

    def __init__(self, events=()):
        super().__init__(None, ())
        self.sequence = 7
        for event, causation in events:
            self.append(event, causation)

    def append(self, event, causation):
        number = len(self.events) + 8
        self.events.append(Recorded(sequence=number, at=EPOCH + timedelta(seconds=number), causation=causation, event=event))
        return number


async def reopened(step):
    return await JournalTranscript.open(step, "edit")


async def test_what_is_recorded_is_what_a_later_delivery_reads():
    step = Numbered()
    transcript = await reopened(step)
    reply = says(ToolCall(id="c1", name="read", arguments="{}"), text="看一下")
    await transcript.record_reply(reply)
    await transcript.record_tool_start("run-1-7-1.1", "read")
    await transcript.interject("lost")
    await transcript.record_tool_result(ToolResult(call_id="run-1-7-1.1", tool="read", text="内容", seconds=0.5))
    again = await reopened(step)
    assert (again.record.replies, again.record.started, again.record.results) == (
        transcript.record.replies,
        transcript.record.started,
        transcript.record.results,
    )
    assert again.record.interjections == transcript.record.interjections
    assert again.prefix == "run-1-7"


@pytest.mark.parametrize("size", [20_000, 60_000, 700_000])
async def test_large_payloads_go_to_a_blob_and_come_back_whole(size):
    step = Numbered()
    transcript = await reopened(step)
    reply = says(ToolCall(id="c1", name="write", arguments=json.dumps({"content": "雪" * size})))
    await transcript.record_reply(reply)
    await transcript.record_tool_result(ToolResult(call_id="x", tool="writes", text="y" * size))
    assert all(len(recorded.event.model_dump_json()) < 50_000 for recorded in step.events)
    again = await reopened(step)
    assert again.record.replies == [reply]
    assert again.record.results["x"].text == "y" * size


async def test_another_step_and_another_event_are_not_mixed_in():
    common = {"run_id": "run-1", "call": 1, "model": "m"}
    step = Numbered([(ModelReplied(step="plan", of=7, **common), 7), (ModelReplied(step="edit", of=3, **common), 3)])
    assert (await reopened(step)).record.replies == []


async def test_a_retry_of_a_stopped_step_goes_on_with_a_fresh_allowance():
    reply = ModelReplied(run_id="run-1", step="edit", of=7, call=1, model="m")
    step = Numbered([(reply, 7), (RunRetried(run_id="run-1", step="edit", of=7, by="someone"), None)])
    transcript = await reopened(step)
    assert (len(transcript.record.replies), transcript.record.allowance_from, transcript.prefix) == (1, 1, "run-1-7")
    assert transcript.record.interjections[1][0].fresh_allowance


async def test_a_retry_of_a_finished_step_begins_anew_under_other_ids():
    reply = ModelReplied(run_id="run-1", step="edit", of=7, call=1, model="m")
    edited = RunEdited(run_id="run-1", attempt=1, commit=SHA, tree=SHA, changed_files=())
    retried = RunRetried(run_id="run-1", step="edit", of=7, by="someone")
    step = Numbered([(reply, 7), (edited, 7), (retried, None)])
    transcript = await reopened(step)
    assert transcript.record.replies == []
    assert transcript.prefix == "run-1-7-r10"


def test_seconds_are_counted_while_somebody_works_and_not_in_between():
    started = StepStarted(run_id="r", step="edit", of=7, delivery=1, worker="w")
    returned = ToolReturned(run_id="r", step="edit", of=7, call_id="c", tool="read")
    at = [(0, started), (10, returned), (500, started), (520, returned)]
    recorded = [Recorded(sequence=i, at=EPOCH + timedelta(seconds=s), event=event) for i, (s, event) in enumerate(at)]
    assert seconds_used(recorded) == 30.0
    assert seconds_used([]) == 0.0


def test_a_chunk_frame_survives_its_json():
    assert Chunk.model_validate_json(Chunk(data=b"\x00\xff").model_dump_json()).data == b"\x00\xff"
