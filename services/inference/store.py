"""Where ledgers, usage and replies live: keys with compare-and-set. The real one is over `libs.bus.kv.Kv`; the fake is beside it.

`Merged` makes one put of all changes to a key that come while the last put is under way, so that a busy key costs no more than a quiet one.
"""

import asyncio
import random
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from libs.bus.errors import Fenced, Retryable
from libs.bus.subjects import matches
from libs.contracts.envelope import Message

StateT = TypeVar("StateT", bound=Message)
_ROUNDS = 40
_LOST_ACKS = 2
_REMEMBERED = 1024


class Records(Protocol):
    """A bucket. A key is one or more subject tokens."""

    async def get(self, key: str) -> tuple[bytes, int] | None:
        """The value and its revision."""
        ...

    async def put(self, key: str, value: bytes, expected_revision: int | None = None) -> int:
        """Store and return the revision; raises Fenced when `expected_revision` (0: a new key) is not the last one."""
        ...

    async def scan(self, pattern: str) -> list[tuple[str, bytes]]:
        """All keys under a subject pattern with their values."""
        ...


class MemoryRecords:
    """The fake: the same rules in memory."""

    def __init__(self) -> None:
        self._values: dict[str, tuple[bytes, int]] = {}
        self._sequence = 0

    async def get(self, key: str) -> tuple[bytes, int] | None:
        """The value and its revision."""
        return self._values.get(key)

    async def put(self, key: str, value: bytes, expected_revision: int | None = None) -> int:
        """Store behind the fence."""
        last = self._values[key][1] if key in self._values else 0
        if expected_revision is not None and expected_revision != last:
            raise Fenced(f"{key} is at revision {last}, not {expected_revision}")
        self._sequence += 1
        self._values[key] = (value, self._sequence)
        return self._sequence

    async def scan(self, pattern: str) -> list[tuple[str, bytes]]:
        """All keys under a pattern."""
        return [(key, value) for key, (value, _) in self._values.items() if matches(pattern, key)]


class Merged(Generic[StateT]):
    """States of one kind under keys. A change applied a second time must change nothing: an acknowledgement may be lost."""

    def __init__(self, records: Records, empty: StateT) -> None:
        self._records = records
        self._empty = empty
        self._waiting: dict[str, list[tuple[Callable[[StateT], StateT], asyncio.Future[None]]]] = {}
        self._workers: dict[str, asyncio.Task[None]] = {}
        self._known: OrderedDict[str, tuple[StateT, int]] = OrderedDict()

    async def read(self, key: str) -> StateT:
        """The state as it is stored, what is under way from here included."""
        if worker := self._workers.get(key):
            await asyncio.wait([worker])
        return (await self._load(key))[0]

    async def apply(self, key: str, change: Callable[[StateT], StateT]) -> None:
        """Store the changed state. What `change` raises is raised and stores nothing; a cancelled caller's change may still be stored.

        Raises:
            Retryable: the bucket did not take it, as far as is known.
        """
        await self.begin(key, change)

    def begin(self, key: str, change: Callable[[StateT], StateT]) -> asyncio.Future[None]:
        """`apply` that is not waited for; later changes of the key come after it."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(key, []).append((change, done))
        if key not in self._workers:
            self._workers[key] = asyncio.create_task(self._work(key))
        return done

    async def _work(self, key: str) -> None:
        while batch := self._waiting.pop(key, []):
            try:
                outcomes = await self._put(key, [change for change, _ in batch])
            except Exception as error:  # noqa: BLE001 - every waiting caller is told, whatever it is
                outcomes = [error] * len(batch)
            for (_, done), outcome in zip(batch, outcomes, strict=True):
                if done.cancelled():
                    continue
                if outcome is None:
                    done.set_result(None)
                else:
                    done.set_exception(outcome)
        del self._workers[key]

    async def _put(self, key: str, changes: list[Callable[[StateT], StateT]]) -> list[Exception | None]:
        """What came of each change. A key that is not known is first taken for a new one, which saves a question where it is."""
        lost, guess = 0, key not in self._known
        for _ in range(_ROUNDS):
            try:
                before, revision = self._known.get(key) or ((self._empty, 0) if guess else await self._load(key))
                state, outcomes = _changed(before, changes)
                if guess and (state == before or any(outcomes)):
                    guess = False
                    continue
                if state != before:
                    revision = await self._records.put(key, state.model_dump_json(exclude_defaults=True).encode(), revision)
                self._remember(key, state, revision)
            except Fenced:
                self._known.pop(key, None)
                if not guess:
                    await asyncio.sleep(random.uniform(0, 0.02))
                guess = False
            except Retryable:
                self._known.pop(key, None)
                lost += 1
                if lost > _LOST_ACKS:
                    raise
            else:
                return outcomes
        raise Retryable(f"the record {key} is too busy")

    async def _load(self, key: str) -> tuple[StateT, int]:
        found = await self._records.get(key)
        return (type(self._empty).model_validate_json(found[0]), found[1]) if found else (self._empty, 0)

    def _remember(self, key: str, state: StateT, revision: int) -> None:
        self._known[key] = (state, revision)
        self._known.move_to_end(key)
        if len(self._known) > _REMEMBERED:
            self._known.popitem(last=False)


def _changed(state: StateT, changes: list[Callable[[StateT], StateT]]) -> tuple[StateT, list[Exception | None]]:
    outcomes: list[Exception | None] = []
    for change in changes:
        try:
            state = change(state)
            outcomes.append(None)
        except Exception as error:  # noqa: BLE001 - a refused change is its own caller's matter
            outcomes.append(error)
    return state, outcomes
