"""The loop's journal: what was said and done, so that a loop which dies at call 37 resumes at call 38.

Invariant: a reply is recorded before it is acted on, a call with effects before it runs, a result before the model sees it.
"""

from typing import Protocol

from libs.agent.record import Entry, Interjection, Record, Started, ToolResult
from libs.contracts.inference import Completion


class Transcript(Protocol):
    """Where a loop is recorded. `prefix` begins the ids of all of its calls and requests."""

    @property
    def prefix(self) -> str: ...

    @property
    def record(self) -> Record:
        """All that is recorded, by earlier tries as well."""

    async def record_reply(self, reply: Completion) -> None:
        """Keep a model's reply."""

    async def record_tool_start(self, call_id: str, tool: str) -> None:
        """Keep that a call with effects is about to run."""

    async def record_tool_result(self, result: ToolResult) -> None:
        """Keep what a call gave."""

    async def interject(self, text: str) -> None:
        """Keep something that the model is told before its next reply."""


class MemoryTranscript:
    """A transcript in memory, for tests and for loops that nobody resumes."""

    def __init__(self, prefix: str = "loop", entries: tuple[Entry, ...] = ()) -> None:
        self.prefix = prefix
        self.entries = list(entries)
        self.record = Record()
        for entry in entries:
            self.record.add(entry)

    async def record_reply(self, reply: Completion) -> None:
        self._add(reply)

    async def record_tool_start(self, call_id: str, tool: str) -> None:
        self._add(Started(call_id=call_id, tool=tool))

    async def record_tool_result(self, result: ToolResult) -> None:
        self._add(result)

    async def interject(self, text: str) -> None:
        self._add(Interjection(text=text))

    def _add(self, entry: Entry) -> None:
        self.entries.append(entry)
        self.record.add(entry)
