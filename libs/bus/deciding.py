"""Appending from outside of a step: what a person or another system says, made of the run's newest state, behind the fence."""

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from libs.bus.errors import Fenced, NoJournal, Retryable
from libs.contracts.fold import Recorded, RunState, fold
from libs.contracts.run import RunEvent

Decide = Callable[[RunState, Sequence[Recorded]], RunEvent | None]
_TRIES = 20


class Journals(Protocol):
    """What deciding needs of the journals of runs."""

    async def append(self, event: RunEvent, *, follows: int, causation: int | None = None) -> int: ...
    async def read_to_end(self, work_id: str, after: int = 0) -> tuple[list[Recorded], int]: ...


async def append_decided(
    journal: Journals, run_id: str, decide: Decide, sending: Callable[[RunEvent], AbstractAsyncContextManager[object]]
) -> tuple[int, RunEvent] | None:
    """Append what `decide` makes of the run's newest state; read and decide again when something came in between.

    `sending` is the span around each append. Returns the sequence and the event, None when `decide` gave none.

    Raises:
        NoJournal: there is no such run, or its journal is gone.
        Retryable: others kept appending.
    """
    for _ in range(_TRIES):
        history, last = await journal.read_to_end(run_id)
        if not history:
            raise NoJournal(run_id)
        event = decide(fold(history, run_id), history)
        if event is None:
            return None
        try:
            async with sending(event):
                return await journal.append(event, follows=last), event
        except Fenced:
            continue
    raise Retryable(f"run {run_id} is too busy to be decided about")
