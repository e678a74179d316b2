"""The order of one conversation's turns, pure: one is active, the others wait by their policy.

Invariant: what a change of the order asks for (admit, supersede, set a timer) is kept in it as a task until it is done, so a crash
between deciding and doing loses nothing.
"""

from datetime import datetime, timedelta
from typing import Literal

from libs.contracts.envelope import Message, Time
from libs.contracts.turn import Concurrency, TurnOpened


class Waiting(Message):
    """A turn in the queue. `not_before` is the end of its quiet window."""

    turn_id: str
    parent_id: str
    policy: Concurrency = "queue"
    not_before: Time | None = None


class Task(Message):
    """What has been decided and is still to be done about a turn."""

    do: Literal["admit", "supersede", "timer"]
    turn_id: str
    parent_id: str = ""
    policy: Concurrency = "queue"
    by: str | None = None
    at: Time | None = None


class Order(Message):
    """One conversation: the active turn, the queue in order, what is still to be done, and the repository that is attached.

    `imported` is the repository's name in the artifact store, `commit` what its workspace is laid out from.
    """

    active: str | None = None
    waiting: tuple[Waiting, ...] = ()
    tasks: tuple[Task, ...] = ()
    repository: str | None = None
    imported: str | None = None
    commit: str | None = None

    @property
    def idle(self) -> bool:
        """Whether nothing is under way."""
        return self.active is None and not self.waiting

    def knows(self, turn_id: str) -> bool:
        """Whether a turn is active, waits, or has something to be done about it."""
        return turn_id in (self.active, *(w.turn_id for w in self.waiting), *(t.turn_id for t in self.tasks))


def arrive(order: Order, opened: TurnOpened, now: datetime) -> Order:
    """A turn comes. Policies are for what a person submits and only while another turn is active or waits; the rest queues."""
    if order.knows(opened.turn_id):
        return order
    if opened.repository not in (None, order.repository):
        order = order.model_copy(update={"repository": opened.repository, "imported": None, "commit": None})
    policy: Concurrency = opened.concurrency if opened.trigger == "submit" else "queue"
    waiting = Waiting(turn_id=opened.turn_id, parent_id=opened.parent_id, policy=policy)
    if order.idle or policy == "queue":
        return _advance(_queued(order, waiting), now)
    if policy == "drop":
        return _with(order, Task(do="supersede", turn_id=opened.turn_id, policy="drop"))
    if policy == "debounce":
        due = now + timedelta(milliseconds=opened.debounce_milliseconds)
        order = _with(order, Task(do="timer", turn_id=opened.turn_id, at=due))
        waiting = waiting.model_copy(update={"not_before": due})
    return _advance(_queued(_superseding(order, waiting), waiting), now)


def leave(order: Order, turn_id: str, now: datetime) -> Order:
    """A turn has ended: the conversation is free for the next one."""
    waiting = tuple(w for w in order.waiting if w.turn_id != turn_id)
    active = None if order.active == turn_id else order.active
    tasks = tuple(task for task in order.tasks if task.do != "admit" or task.turn_id != turn_id)
    return _advance(order.model_copy(update={"active": active, "waiting": waiting, "tasks": tasks}), now)


def due(order: Order, now: datetime) -> Order:
    """A quiet window may be over."""
    return _advance(order, now)


def take_up(order: Order, turn_id: str) -> Order | None:
    """An ended turn is to be tried again; None while another one is active."""
    return order.model_copy(update={"active": turn_id}) if order.active in (None, turn_id) else None


def done(order: Order, task: Task) -> Order:
    """A task was carried out."""
    return order.model_copy(update={"tasks": tuple(t for t in order.tasks if t != task)})


def _advance(order: Order, now: datetime) -> Order:
    """Make the first turn active that may be, when none is."""
    if order.active is not None:
        return order
    for waiting in order.waiting:
        if waiting.not_before is None or waiting.not_before <= now:
            rest = tuple(w for w in order.waiting if w is not waiting)
            order = order.model_copy(update={"active": waiting.turn_id, "waiting": rest})
            return _with(order, Task(do="admit", turn_id=waiting.turn_id, parent_id=waiting.parent_id))
    return order


def _superseding(order: Order, newest: Waiting) -> Order:
    """The newest takes the place of what waits under a policy that lets go; queued turns stay."""
    gone = [w for w in order.waiting if w.policy != "queue"]
    order = order.model_copy(update={"waiting": tuple(w for w in order.waiting if w.policy == "queue")})
    return _with(order, *(Task(do="supersede", turn_id=w.turn_id, policy=newest.policy, by=newest.turn_id) for w in gone))


def _queued(order: Order, waiting: Waiting) -> Order:
    return order.model_copy(update={"waiting": (*order.waiting, waiting)})


def _with(order: Order, *tasks: Task) -> Order:
    return order.model_copy(update={"tasks": (*order.tasks, *tasks)})
