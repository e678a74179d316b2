"""A step over a list of events, whose questions are answered by a world in memory. It can die before or after any record."""

import base64
import hashlib
import json
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

from libs.contracts.artifact import BlobPut, GetBlob, PutChunk
from libs.contracts.envelope import BlobRef
from libs.contracts.fold import Recorded, fold
from libs.contracts.run import RUN, StepStarted
from tests.unit.agent.scripted import Crash

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)


class FakeStep:
    """`sequence` is that of the last event of `events`, the one that is handled."""

    def __init__(self, world, events, step="edit", run_id="run-1"):
        self.run_id, self.world, self.name = run_id, world, step
        self.events, self.blobs, self.uploads, self.shown = [], {}, {}, []
        for event in events:
            self.append(event, None)
        self.sequence = len(self.events)
        self.token, self.delivery = self.sequence, 0
        self.die_in, self.die_after = 0, False
        self.bus = SimpleNamespace(telemetry=SimpleNamespace(span=lambda *_, **__: nullcontext()))

    def append(self, event, causation):
        number = len(self.events) + 1
        self.events.append(Recorded(sequence=number, at=EPOCH + timedelta(seconds=number), causation=causation, event=event))
        return number

    def deliver(self, die_in=0, die_after=False):
        """A new delivery of the same event, which dies at its `die_in`-th record."""
        self.delivery += 1
        self.die_in, self.die_after = die_in, die_after
        started = StepStarted(run_id=self.run_id, step=self.name, of=self.sequence, delivery=self.delivery, worker="w")
        self.token = self.append(started, self.sequence)
        return self

    def make(self, base, **fields):
        return RUN.make(base, self.run_id, step=self.name, of=self.sequence, **fields)

    async def history(self):
        return list(self.events)

    async def state(self):
        return fold(self.events, self.run_id)

    async def record(self, event):
        self.die_in -= 1
        if self.die_in == 0 and not self.die_after:
            raise Crash
        number = self.append(event, self.sequence)
        if self.die_in == 0:
            raise Crash
        return number

    async def progress(self, kind, text):
        self.shown.append((kind, text))

    async def ask(self, question, on_frame=None):
        if isinstance(question, PutChunk):
            return self._put(question)
        if isinstance(question, GetBlob):
            await on_frame(json.dumps({"data": base64.urlsafe_b64encode(self.blobs[question.sha256]).decode()}).encode())
            return None
        return await self.world.ask(question, on_frame)

    def _put(self, question):
        data = self.uploads[question.upload_id] = self.uploads.get(question.upload_id, b"")[: question.offset] + question.data
        if not question.last:
            return BlobPut(received=len(data))
        digest = hashlib.sha256(data).hexdigest()
        self.blobs[digest] = data
        return BlobPut(received=len(data), blob=BlobRef(sha256=digest, size=len(data)))

    def recorded(self, kind):
        return [recorded.event for recorded in self.events if isinstance(recorded.event, kind)]
