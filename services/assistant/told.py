"""A run that a conversation asked for has ended: the conversation hears of it in a turn that waits for its place like a person's.

Message and turn are named by the event, so that a second delivery says nothing again. The turn has no tools: no run begets another.
"""

from datetime import UTC, datetime

from libs.bus import Bus, Delivery, Fenced, Refusal
from libs.contracts.conversation import AppendMessages, ReadSession, StoredMessage
from libs.contracts.ids import derived_id
from libs.contracts.run import ChatThread, RunOpened
from libs.contracts.turn import TurnOpened
from services.assistant.tools import shown_run

_NEWS = "This is no message of the person: a run that this conversation asked for has ended. Tell the person how, in a sentence or two.\n\n"


async def run_ended(bus: Bus, delivery: Delivery) -> None:
    """Say how a run ended, and open the turn that tells the person. A conversation that was deleted hears nothing."""
    first = await bus.journal.opened(delivery.subject.split(".")[1])
    opened = first.event if first is not None else None
    if isinstance(opened, RunOpened) and opened.chat is not None:
        await _tell(bus, opened, opened.chat, delivery.sequence)
    await delivery.ack()


async def _tell(bus: Bus, opened: RunOpened, chat: ChatThread, sequence: int) -> None:
    state = await bus.journal.state(opened.run_id)
    owner = {"tenant": opened.tenant, "user": opened.user, "session_id": chat.session_id}
    if not state.ended or not await _is_there(bus, owner):
        return
    message = StoredMessage(
        id=f"run-{opened.run_id}-{sequence}",
        role="system",
        parts=({"type": "text", "text": _NEWS + shown_run(state)},),
        metadata={"run_id": opened.run_id, "status": state.status},
    )
    await bus.ask(AppendMessages.model_validate({**owner, "messages": (message,)}))
    await _open_turn(bus, owner, message.id, chat)


async def _is_there(bus: Bus, owner: dict[str, str]) -> bool:
    try:
        await bus.ask(ReadSession.model_validate(owner))
    except Refusal as refusal:
        if refusal.code != "not_found":
            raise
        return False
    return True


async def _open_turn(bus: Bus, owner: dict[str, str], parent_id: str, chat: ChatThread) -> None:
    event = TurnOpened.model_validate(
        {
            **owner,
            "turn_id": derived_id("run ended", parent_id),
            "agent": chat.agent,
            "parent_id": parent_id,
            "trigger": "server",
            "model": chat.model,
            "plan": chat.plan,
            "inline_tools": False,
            "opened_at": datetime.now(UTC),
        }
    )
    try:
        await bus.journals["turn"].append(event, follows=0)
    except Fenced:
        return  # it was opened before
