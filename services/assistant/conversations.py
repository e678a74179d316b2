"""Where the order of every conversation is kept: a compare-and-set record in a bucket, and the tasks that a change of it leaves.

Invariant: a change is stored before it is acted on, and each act looks at the turn's journal first, so that repeating it does nothing.
"""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime

from libs.bus import Fenced, Retryable
from libs.bus.journal import Journal
from libs.bus.kv import Kv
from libs.bus.service import Bus
from libs.bus.timers import Timers
from libs.contracts.turn import TurnAdmitted, TurnEvent, TurnOpened, TurnSuperseded
from libs.contracts.turn_fold import TurnState, fold_turn
from services.assistant import order as rules
from services.assistant.order import Order, Task

_TRIES = 50
_NONE: Mapping[str, int] = {}
Change = Callable[[Order], Order | None]
Known = tuple[Order, int]


async def turn_state(journal: Journal, turn_id: str) -> TurnState:
    """The fold of a turn; `sequence` is what an append must follow, 0 when there is no such turn."""
    found, last = await journal.read_to_end(turn_id)
    return fold_turn(found, turn_id).model_copy(update={"sequence": last})


class Conversations:
    """The orders of all conversations."""

    def __init__(self, bucket: Kv, journal: Journal, timers: Timers) -> None:
        self._bucket = bucket
        self._journal = journal
        self._timers = timers

    @classmethod
    def on(cls, bus: Bus) -> "Conversations":
        """Those on a running bus."""
        return cls(Kv(bus.connection, "CONVERSATIONS"), bus.journals["turn"], bus.timers)

    async def read(self, key: str) -> Order:
        """The order of a conversation; an empty one when nothing was ever said in it."""
        return (await self._get(key))[0]

    async def change(self, key: str, change: Change, known: Known | None = None, opened: Mapping[str, int] = _NONE) -> Order | None:
        """Store what `change` makes of the order and do what it asks for. None when `change` gives None, and nothing is stored.

        `known` saves reading the order where that was done just now, `opened` reading the turns that were opened at a place.

        Raises:
            Retryable: the record is too busy, or the server did not acknowledge.
        """
        for _ in range(_TRIES):
            before, revision = known or await self._get(key)
            known, after = None, change(before)
            if after is None:
                return None
            try:
                if after != before:
                    await self._bucket.put(key, after.model_dump_json(exclude_none=True).encode(), revision)
            except Fenced:
                continue
            return await self._settle(key, after, opened)
        raise Retryable(f"conversation {key} is too busy")

    async def forget(self, key: str) -> None:
        """Drop the record of a conversation, unless something is under way in it."""
        order, revision = await self._get(key)
        if revision and order.idle and not order.tasks:
            await self._bucket.delete(key, revision)

    async def arrive(self, key: str, opened: TurnOpened, opened_at: int = 0) -> None:
        """A turn comes, opened at that place of its journal. One that has ended and was not taken off yet is in nobody's way."""
        known: Known | None = await self._get(key)
        active = known[0].active if known else None
        if active is not None and active != opened.turn_id and (await turn_state(self._journal, active)).ended:
            await self.change(key, departure(active))
            known = None
        await self.change(key, arrival(opened), known, {opened.turn_id: opened_at})

    async def take_up(self, key: str, turn_id: str) -> Order | None:
        """The order with this turn active; None while another one is."""
        known = await self._get(key)
        if known[0].active == turn_id:
            return known[0]
        return await self.change(key, lambda order: rules.take_up(order, turn_id), known)

    async def _get(self, key: str) -> Known:
        found = await self._bucket.get(key)
        return (Order.model_validate_json(found[0]), found[1]) if found else (Order(), 0)

    async def _settle(self, key: str, order: Order, opened: Mapping[str, int]) -> Order:
        """Carry out what is still to be done, one task after the other. An admission stays noted until its turn leaves, which saves a put:
        to carry it out again does nothing.
        """
        for task in order.tasks:
            ended = await self._carry_out(task, opened.get(task.turn_id, 0))
            if task.do == "admit" and not ended:
                continue

            def without(now: Order, task: Task = task, ended: bool = ended) -> Order:
                now = rules.done(now, task)
                return rules.leave(now, task.turn_id, datetime.now(UTC)) if ended else now

            return await self.change(key, without) or order
        return order

    async def _carry_out(self, task: Task, opened_at: int) -> bool:
        """Do it; whether the turn turns out to have ended already."""
        if task.do == "admit" and opened_at and await self._admitted(task, opened_at):
            return False
        if task.do == "timer":
            assert task.at is not None
            await self._timers.set(task.turn_id, "debounce", task.at, {})
            return False
        while True:
            state = await turn_state(self._journal, task.turn_id)
            if state.ended or (task.do == "admit" and state.admitted is not None):
                return state.ended
            try:
                await self._journal.append(_event(task), follows=state.sequence, causation=state.sequence)
            except Fenced:
                continue
            return False

    async def _admitted(self, task: Task, opened_at: int) -> bool:
        """Admit a turn whose opening is its last event, as it mostly is; False when something came after that."""
        try:
            await self._journal.append(_event(task), follows=opened_at, causation=opened_at)
        except Fenced:
            return False
        return True


def _event(task: Task) -> TurnEvent:
    if task.do == "admit":
        return TurnAdmitted(turn_id=task.turn_id, parent_id=task.parent_id)
    return TurnSuperseded(turn_id=task.turn_id, policy=task.policy, by=task.by)


def arrival(opened: TurnOpened) -> Change:
    """The change that a new turn makes."""
    return lambda order: rules.arrive(order, opened, datetime.now(UTC))


def departure(turn_id: str) -> Change:
    """The change that an ended turn makes."""
    return lambda order: rules.leave(order, turn_id, datetime.now(UTC))
