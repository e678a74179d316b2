"""The assistant's messages, in the order of the story: a turn comes, is answered, ends; and two questions about it."""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from pydantic import ValidationError

from libs.agent.skills import Skill, merged
from libs.bus import Asker, Bus, Delivery, Permanent, Step
from libs.bus.journal import BrokenEvent, decode
from libs.bus.subjects import conversation_key
from libs.contracts.conversation import SessionCall
from libs.contracts.envelope import Done
from libs.contracts.live import TimerDue
from libs.contracts.sources import may_name
from libs.contracts.turn import (
    AgentDescription,
    Agents,
    AwaitStable,
    DescribeAgents,
    ForgetConversation,
    Stability,
    TurnAdmitted,
    TurnEvent,
    TurnOpened,
)
from libs.contracts.turn_fold import fold_turn
from libs.contracts.work import WorkEvent
from services.assistant import order as rules
from services.assistant.after import after_turn
from services.assistant.agents import Agent
from services.assistant.conversations import Conversations, departure, turn_state
from services.assistant.models import KnownModels
from services.assistant.order import Order
from services.assistant.prompt import Prompt
from services.assistant.settings import AssistantSettings
from services.assistant.skills import Library
from services.assistant.tools import NOT_ATTACHED, OWN_TOOLS, WITH_REPOSITORY, OwnTools
from services.assistant.turn import Turn, answer_id
from services.assistant.workspace import ConversationWorkspace, attach, repository_skills

_AT_ONCE = 32
_LOOK_SECONDS = 0.1
_EARLY = timedelta(milliseconds=500)


@dataclass(frozen=True)
class Kit:
    """What the handlers work with. Turns read and store in the `room`: a question that waits at the store has a deadline."""

    settings: AssistantSettings
    library: Library
    agents: Mapping[str, Agent]
    models: KnownModels = field(default_factory=KnownModels)
    room: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_AT_ONCE))

    def agent(self, opened: TurnOpened) -> Agent:
        """The agent of a turn. Raises Permanent for one that does not exist."""
        if opened.agent not in self.agents:
            raise Permanent(f"There is no agent {opened.agent!r}. The agents are: {', '.join(self.agents)}.")
        return self.agents[opened.agent]


async def admit(bus: Bus, delivery: Delivery) -> None:
    """A turn comes: it is admitted, waits, or another one answers for it."""
    opened = await _event(bus, delivery)
    if isinstance(opened, TurnOpened):
        await Conversations.on(bus).arrive(_key(opened), opened, delivery.sequence)
        await delivery.ack()


async def due(bus: Bus, delivery: Delivery) -> None:
    """The quiet window of a waiting turn is over."""
    try:
        timer = TimerDue.model_validate_json(delivery.payload)
    except ValidationError as error:
        await bus.dead_letters.bury(delivery, f"not a timer: {error.error_count()} faults", "schema", "timer")
        await delivery.ack()
        return
    opened = (await turn_state(bus.journals["turn"], timer.id)).opened
    if opened is not None:
        now = datetime.now(UTC) + _EARLY
        await Conversations.on(bus).change(_key(opened), lambda order: rules.due(order, now))
    await delivery.ack()


async def answer(kit: Kit, event: TurnAdmitted, step: Step) -> WorkEvent | None:
    """Answer an admitted turn; while calls wait for somebody there is nothing to do. Raises Permanent when another turn is active."""
    history = await step.history()
    state = fold_turn(history, step.run_id)
    if state.opened is None or state.ended or state.unanswered:
        return None
    agent, key = kit.agent(state.opened), _key(state.opened)
    taking_up = Conversations.on(step.bus).take_up(key, event.turn_id)
    order, own_skills = await asyncio.gather(taking_up, asyncio.to_thread(kit.library.of, state.opened))
    if order is None:
        raise Permanent("The conversation works on another turn. Try this one again when that has ended.")
    turn = await Turn.begin(kit.settings, kit.models, agent, event, step, history)
    return await _converse(kit, turn, key, order, own_skills)


async def _converse(kit: Kit, turn: Turn, key: str, order: Order, own_skills: Mapping[str, Skill]) -> WorkEvent:
    """Give a turn its tools and its prompt, and run it."""
    step, opened, why = turn.step, turn.opened, NOT_ATTACHED
    if order.repository is None or may_name(opened.tenant, order.repository):
        order, why = await attach(step.ask, Conversations.on(step.bus), key, order)
    skills = merged(own_skills.values(), await repository_skills(step.ask, order))
    workspace = ConversationWorkspace(step, key, order, turn.transcript)
    turn.save, turn.room = workspace.save, kit.room
    prompt = Prompt(step.ask, turn.agent, opened, turn.event, answer_id(opened.turn_id), order.repository, why, skills, kit.settings.memory)
    own = OwnTools(step.ask, step.bus.journal, opened, order.repository, skills)
    return await turn.answer((*workspace.tools(), *own.all()), prompt)


async def move_on(kit: Kit, bus: Bus, delivery: Delivery) -> None:
    """A turn has ended: the next one is admitted; then what is done after a turn, none of which may do harm."""
    ended = await _event(bus, delivery)
    if ended is None:
        return
    state = await turn_state(bus.journals["turn"], ended.work_id)
    opened = state.opened
    if opened is not None:
        await Conversations.on(bus).change(_key(opened), departure(opened.turn_id))
        await after_turn(kit.settings, kit.agents.get(opened.agent), bus.ask, state, kit.models, again=delivery.number > 1)
    await delivery.ack()


async def stable(bus: Bus, question: AwaitStable, asker: Asker) -> Stability:
    """Wait until nothing is under way in a conversation, or the time is over."""
    conversations, key = Conversations.on(bus), _key(question)
    until = time.monotonic() + question.timeout_seconds
    while True:
        order = await conversations.read(key)
        if order.idle or time.monotonic() >= until:
            return Stability(stable=order.idle, active=order.active, waiting=len(order.waiting), repository=order.repository)
        await asyncio.sleep(_LOOK_SECONDS)


async def describe_agents(kit: Kit, question: DescribeAgents, asker: Asker) -> Agents:
    """The kinds of agents."""
    tools = (*OWN_TOOLS, *WITH_REPOSITORY)
    return Agents(agents=tuple(AgentDescription(name=a.name, description=a.description, tools=tools) for a in kit.agents.values()))


async def forget(bus: Bus, question: ForgetConversation, asker: Asker) -> Done:
    """The record of a conversation that was deleted goes; one in which something is under way again stays."""
    await Conversations.on(bus).forget(_key(question))
    return Done()


def _key(of: TurnOpened | SessionCall) -> str:
    return conversation_key(of.tenant, of.user, of.session_id)


async def _event(bus: Bus, delivery: Delivery) -> Any:
    """The delivered event; None when it is none of ours or is broken, and then it is settled."""
    try:
        event = decode(delivery.subject, delivery.payload)
    except BrokenEvent as error:
        await bus.dead_letters.bury(delivery, str(error), "schema", delivery.subject.split(".")[1])
        await delivery.term()
        return None
    if not isinstance(event, TurnEvent):
        await delivery.ack()
        return None
    return event
