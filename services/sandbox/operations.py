"""Remembers which operations a workspace has begun and how they ended, so that asking twice does once.

The start is on disk before the work begins and the end before it is told. A start without an end that nobody works on is an unknown
outcome: it is said, never guessed and never repeated.
"""

import asyncio
import hashlib
import json
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from pydantic import BaseModel

from services.sandbox.errors import OperationConflict, OutcomeUnknown, SandboxError

AnswerT = TypeVar("AnswerT", bound=BaseModel)
ABANDONED_SECONDS = 30.0


@dataclass(frozen=True)
class Once(Generic[AnswerT]):
    """An operation's answer; `replayed` when it was given before."""

    answer: AnswerT
    replayed: bool


@dataclass
class _Record:
    fingerprint: str
    answer: dict[str, Any] | None = None


class _Running:
    """Work that askers wait for."""

    def __init__(self, operation_id: str, task: "asyncio.Task[Any]") -> None:
        self._operation_id = operation_id
        self._askers = 0
        self.task = task

    async def join(self) -> BaseModel:
        """The task's result; a cancelled task is an unknown outcome, a cancelled asker leaves the task to the others."""
        self._askers += 1
        try:
            await asyncio.wait({self.task})
        finally:
            self._askers -= 1
            if not self._askers and not self.task.done():
                asyncio.get_running_loop().call_later(ABANDONED_SECONDS, self._abandon)
        if self.task.cancelled():
            raise OutcomeUnknown(f"operation {self._operation_id} was interrupted: the workspace was taken over or closed meanwhile")
        result: BaseModel = self.task.result()
        return result

    def _abandon(self) -> None:
        if not self._askers:
            self.task.cancel()


class Operations:
    """The operations of one workspace. A SandboxError raised by the work means that nothing was done: it may be asked again."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "operations.jsonl"
        self._running: dict[str, _Running] = {}
        self._records = _load(self._path)

    @property
    def busy(self) -> bool:
        """Whether an operation is being worked on."""
        return bool(self._running)

    async def once(
        self,
        operation_id: str,
        request: BaseModel,
        answer: type[AnswerT],
        work: Callable[[], Awaitable[AnswerT]],
        *,
        idempotent: bool = False,
        kept: Callable[[AnswerT], bool] = lambda _: True,
    ) -> Once[AnswerT]:
        """Do the work, or join it, or give its recorded answer. An answer that is not to be `kept` is given once and then forgotten.

        The work goes on for ABANDONED_SECONDS after the last asker went away, so that one who lost the connection finds it again.

        Raises OperationConflict when the id was used for another request, OutcomeUnknown when the work was interrupted; what is
        `idempotent` is then done again instead.
        """
        fingerprint = hashlib.sha256(request.model_dump_json().encode()).hexdigest()
        record = self._records.get(operation_id)
        if record is not None and record.fingerprint != fingerprint:
            raise OperationConflict(f"operation {operation_id} was asked before with another request; use a new id")
        if record is not None and record.answer is not None:
            return Once(answer.model_validate(record.answer), replayed=True)
        if (running := self._running.get(operation_id)) is not None:
            return Once(answer.model_validate((await running.join()).model_dump()), replayed=True)
        if record is not None and not idempotent:
            raise OutcomeUnknown(f"operation {operation_id} was begun and interrupted; look at the workspace before doing it again")
        self._records[operation_id] = _Record(fingerprint)
        begun = _Running(operation_id, asyncio.create_task(self._work(operation_id, fingerprint, work, kept)))
        self._running[operation_id] = begun
        begun.task.add_done_callback(lambda _: self._running.pop(operation_id, None))
        return Once(answer.model_validate((await begun.join()).model_dump()), replayed=False)

    async def interrupt(self) -> None:
        """End what is being worked on; its outcome is unknown from then on."""
        tasks = [running.task for running in self._running.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _work(
        self, operation_id: str, fingerprint: str, work: Callable[[], Awaitable[AnswerT]], kept: Callable[[AnswerT], bool]
    ) -> AnswerT:
        await self._write({"id": operation_id, "state": "started", "fingerprint": fingerprint})
        try:
            result = await work()
        except SandboxError:
            await self._forget(operation_id)
            raise
        if not kept(result):
            await self._forget(operation_id)
            return result
        answer = result.model_dump(mode="json")
        await self._write({"id": operation_id, "state": "finished", "answer": answer})
        self._records[operation_id].answer = answer
        return result

    async def _forget(self, operation_id: str) -> None:
        await self._write({"id": operation_id, "state": "refused"})
        del self._records[operation_id]

    async def _write(self, record: dict[str, Any]) -> None:
        await asyncio.to_thread(_append, self._path, json.dumps(record))


def _append(path: Path, line: str) -> None:
    """A line of its own, also after one that a crash cut off."""
    with path.open("ab+") as file:
        if file.tell() > 0:
            file.seek(-1, os.SEEK_END)
            torn = file.read(1) != b"\n"
            file.write(b"\n" if torn else b"")
        file.write(line.encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())


def _load(path: Path) -> dict[str, _Record]:
    """What the file says; a last line that a crash cut off counts as not written."""
    records: dict[str, _Record] = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        match entry["state"]:
            case "started":
                records[entry["id"]] = _Record(entry["fingerprint"])
            case "refused":
                records.pop(entry["id"], None)
            case "finished":
                records[entry["id"]].answer = entry["answer"]
    return records
