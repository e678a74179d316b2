"""The use cases of turns: ask for an answer, answer a call that waits, cancel. Each append goes behind the fence of what was read."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from libs.bus import Fenced, Refusal, Retryable
from libs.contracts.conversation import ROOT, AppendMessages, ReadHistory, ReadSession, StoredMessage
from libs.contracts.ids import derived_id
from libs.contracts.turn import AwaitStable, PendingCall, Stability, TurnAnswered, TurnCancelled, TurnEvent, TurnOpened
from libs.contracts.turn_fold import TurnState, fold_turn
from services.gateway.chat.names import session_id_of
from services.gateway.chat.requests import Answer, ChatRequest, answers_of, edited_id
from services.gateway.clients import GatewayBus
from services.gateway.domain import RUN_ID, check_source
from services.gateway.identity.caller import Caller
from services.gateway.problems import Problem, not_found

_TRIES = 20
_AT_ONCE = 32
_STOPPING_TRIES = 100
_STOP_SECONDS = 5.0
_LOOKED_BACK = 200
_ANSWER = "answer-"


@dataclass(frozen=True)
class Asked:
    """A turn to follow: from the journal's sequence `after` on, by a reader that has the parts `known` already, else what it showed before
    the calls `answered` were.
    """

    session_id: str
    turn_id: str
    after: int = 0
    known: tuple[dict[str, object], ...] = ()
    unanswered: tuple[PendingCall, ...] = ()
    answered: frozenset[str] = frozenset()
    ended: bool = False

    @property
    def at_work(self) -> bool:
        """Whether there is more to come: the turn has not ended and waits for nobody."""
        return not self.ended and not self.unanswered


def answer_id(turn_id: str) -> str:
    """The id of the message that answers a turn."""
    return _ANSWER + turn_id


def turn_id_of(*parts: str) -> str:
    """The turn that `parts` ask for: 26 characters of base 32 of a SHA-256, the same for the same request."""
    return derived_id("turn", *parts)


class Turns:
    """Turns of all conversations. Everything is looked up under the caller's own tenant and user."""

    def __init__(self, bus: GatewayBus) -> None:
        self._bus = bus
        self._room = asyncio.Semaphore(_AT_ONCE)

    async def ask(self, who: Caller, request: ChatRequest, name: str) -> Asked:
        """Take a request's newest message, in its order when many come at once: a question that waits at the store has a deadline.

        Raises:
            Problem: see `_ask`.
        """
        async with self._room:
            return await self._ask(who, request, name)

    async def _ask(self, who: Caller, request: ChatRequest, name: str) -> Asked:
        """Take the newest message of a request and see to it that it is answered; a request that comes again is the same turn.

        Raises:
            Problem: 409, 413 or 422 for what cannot be done; Refusal and NoAnswer of the store pass through.
        """
        session_id = session_id_of(name, request.agent)
        bare = request.trigger == "regenerate-message" and request.message is None and not request.messages
        message = await self._question(who, session_id, request) if bare else request.newest()
        if request.repository is not None:
            check_source(request.repository, who.tenant)
        if message.role == "assistant":
            return await self._go_on(who, session_id, message)
        if message.role != "user":
            raise Problem(422, "invalid-message", f"a message of the role {message.role} cannot be answered", "send one of the role user")
        trigger = "regenerate" if request.trigger == "regenerate-message" else "submit"
        stored = message if bare else await self._store(who, session_id, request, message)
        again = await self._newest_of(who, session_id, request) if trigger == "regenerate" else ""
        turn_id = turn_id_of(who.tenant, who.user, session_id, stored.id, trigger, again)
        event = TurnOpened.model_validate(
            {
                **who.owned,
                "turn_id": turn_id,
                "session_id": session_id,
                "agent": request.agent,
                "parent_id": stored.id,
                "trigger": trigger,
                "concurrency": request.concurrency,
                "debounce_milliseconds": request.debounce_milliseconds,
                "model": request.model,
                "plan": who.plan,
                "max_model_calls": request.max_model_calls,
                "client_tools": request.client_tools,
                "inline_tools": request.inline_tools,
                "repository": request.repository,
                "opened_at": datetime.now(UTC),
            }
        )
        try:
            await self._bus.turns.append(event, follows=0)
        except Fenced:
            return await self.follow(who, turn_id)
        return Asked(session_id, turn_id)

    async def _question(self, who: Caller, session_id: str, request: ChatRequest) -> StoredMessage:
        """What a wish for another answer is about that brings no message: the question of `messageId`, else of the newest answer."""
        read = ReadHistory(**who.owned, session_id=session_id, leaf_id=request.messageId, limit=_LOOKED_BACK)
        path = (await self._bus.ask(read)).messages
        answered = path[-1].metadata.get("answers") if path and path[-1].role == "assistant" else None
        found = next((m for m in reversed(path) if m.role == "user" and answered in (None, m.id)), None)
        if found is None:
            raise Problem(422, "no-message", "there is no question to answer anew", "send the question in messages")
        return found

    async def _newest_of(self, who: Caller, session_id: str, request: ChatRequest) -> str:
        """What tells one wish for another answer from the next: the answer that is to be replaced."""
        if request.messageId:
            return request.messageId
        return (await self._bus.ask(ReadSession(**who.owned, session_id=session_id))).leaf_id or ""

    async def _store(self, who: Caller, session_id: str, request: ChatRequest, message: StoredMessage) -> StoredMessage:
        """The message as it is in the tree. One that is there with other words was edited: it goes beside the original."""
        placed = message.model_copy(update={"parent_id": request.parent_id})
        try:
            return await self._append(who, session_id, request.agent, placed)
        except Refusal as refusal:
            if refusal.code != "conflict" or request.trigger == "regenerate-message":
                raise
        path = await self._bus.ask(ReadHistory(**who.owned, session_id=session_id, leaf_id=message.id, limit=2))
        parent = path.messages[-2].id if len(path.messages) > 1 else ROOT
        edited = message.model_copy(update={"id": edited_id(message), "parent_id": parent})
        return await self._append(who, session_id, request.agent, edited)

    async def _append(self, who: Caller, session_id: str, agent: str, message: StoredMessage) -> StoredMessage:
        appended = await self._bus.ask(AppendMessages(**who.owned, session_id=session_id, messages=(message,), agent=agent))
        return appended.messages[-1]

    async def _go_on(self, who: Caller, session_id: str, message: StoredMessage) -> Asked:
        """The client has put its answers into the assistant's message."""
        turn_id = message.id.removeprefix(_ANSWER)
        if not message.id.startswith(_ANSWER) or not RUN_ID.fullmatch(turn_id):
            turn_id = (await self.active(who, session_id)).active or ""
        state = await self.state(who, turn_id)
        pending = {p.call_id for p in state.unanswered}
        given = [a for a in answers_of(message.parts) if a.call_id in pending]
        if pending and not given:
            raise Problem(
                409, "unanswered", f"the turn waits for {', '.join(sorted(pending))[:500]}", "send outputs or approvals for these calls"
            )
        asked = await self.answer(who, turn_id, given) if given else await self.follow(who, turn_id)
        return Asked(asked.session_id, turn_id, asked.after, message.parts, asked.unanswered)

    async def state(self, who: Caller, turn_id: str) -> TurnState:
        """A turn of the caller; `sequence` is what an append must follow. Raises Problem 404."""
        found, last = await self._bus.turns.read_to_end(turn_id) if RUN_ID.fullmatch(turn_id) else ([], 0)
        state = fold_turn(found, turn_id).model_copy(update={"sequence": last})
        opened = state.opened
        if opened is None or (opened.tenant, opened.user) != (who.tenant, who.user):
            raise not_found("there is no such turn", "GET /api/sessions lists your sessions")
        return state

    async def follow(self, who: Caller, turn_id: str, *, whole: bool = False) -> Asked:
        """A turn as it is now, to be followed from where it last went on. Raises Problem 404.

        `whole` is for a reader that may have missed something: up to the pause of one that waits and has no answer yet.
        """
        state = await self.state(who, turn_id)
        assert state.opened is not None
        unanswered = () if whole and state.unanswered == state.pending else state.unanswered
        after = state.sequence if unanswered else await self._went_on(turn_id)
        answered = frozenset(a.call_id for a in state.answers)
        return Asked(state.opened.session_id, turn_id, after, unanswered=unanswered, answered=answered, ended=state.ended)

    async def _went_on(self, turn_id: str) -> int:
        """The place of the last answer or retry of a turn: what deliveries before it said is stored."""
        found, _ = await self._bus.turns.read_to_end(turn_id)
        return max((r.sequence for r in found if r.event.type in ("turn.answered", "turn.retried")), default=0)

    async def answer(self, who: Caller, turn_id: str, answers: Sequence[Answer]) -> Asked:
        """Answer calls that wait; one that is answered already stays as it is. Raises Problem 404 or 409."""
        for answer in answers:
            await self._answer(who, turn_id, answer)
        return await self.follow(who, turn_id)

    async def _answer(self, who: Caller, turn_id: str, answer: Answer) -> None:
        for _ in range(_TRIES):
            state = await self.state(who, turn_id)
            pending = next((p for p in state.pending if p.call_id == answer.call_id), None)
            if any(a.call_id == answer.call_id for a in state.answers):
                return
            if pending is None:
                raise Problem(
                    409, "no-such-call", f"no call {answer.call_id[:100]} waits in this turn", "GET the session's messages shows what waits"
                )
            if (pending.waits_for == "approval") != (answer.approved is not None):
                raise Problem(
                    409, "wrong-answer", f"the call waits for {pending.waits_for}", "send approved for consent, output or error for a tool"
                )
            event = TurnAnswered(
                turn_id=turn_id, step="turn", of=state.admitted_sequence, by=who.user, **answer.model_dump(exclude_none=True)
            )
            if await self._appended(event, state.sequence):
                return
        raise Retryable("the turn is too busy to be answered")

    async def cancel(self, who: Caller, turn_id: str, reason: str = "") -> bool:
        """Stop a turn; False when it has ended already. Raises Problem 404."""
        for _ in range(_TRIES):
            state = await self.state(who, turn_id)
            if state.ended:
                return False
            if await self._appended(TurnCancelled(turn_id=turn_id, by=who.user, reason=reason), state.sequence):
                return True
        raise Retryable("the turn is too busy to be cancelled")

    async def _appended(self, event: TurnEvent, follows: int) -> bool:
        try:
            await self._bus.turns.append(event, follows=follows)
        except Fenced:
            return False
        return True

    async def active(self, who: Caller, session_id: str) -> Stability:
        """Which turn a conversation works on at this moment."""
        return await self._bus.ask(AwaitStable(**who.owned, session_id=session_id, timeout_seconds=0))

    async def stop_all(self, who: Caller, session_id: str, reason: str) -> None:
        """Cancel what a conversation works on, and what waits behind it. Raises Retryable: it does not come to rest."""
        async with asyncio.timeout(_STOP_SECONDS):
            for _ in range(_STOPPING_TRIES):
                found = await self.active(who, session_id)
                if found.active is None:
                    return
                await self.cancel(who, found.active, reason)
                await self._bus.ask(AwaitStable(**who.owned, session_id=session_id, timeout_seconds=0.2))
        raise Retryable("the conversation does not come to rest")
