"""What is done after a turn, when its conversation is free again: hooks, memory, compaction.

Invariant: each is done on its own; a failure of one is logged and harms nothing.
"""

import hashlib
import json
import logging
from collections.abc import Awaitable
from typing import Any

from pydantic import BaseModel, Field, ValidationError

from libs.agent import RULE, AskedModel, wrap
from libs.bus import Permanent, Refusal, Retryable
from libs.contracts.conversation import (
    AppendMessages,
    CompactionPlan,
    History,
    PlanCompaction,
    ReadHistory,
    StoreCompaction,
    StoredMessage,
)
from libs.contracts.envelope import Ask
from libs.contracts.inference import ChatMessage
from libs.contracts.memory import Ingested, MarkIngested, MemoryKind, Remember
from libs.contracts.turn import TurnOpened
from libs.contracts.turn_fold import TurnState
from libs.uimessages import chat_messages, ended_calls, text_of
from services.assistant.agents import Agent, TurnContext, TurnEnd, end_quietly
from services.assistant.models import KnownModels
from services.assistant.settings import AssistantSettings
from services.assistant.turn import answer_id

log = logging.getLogger(__name__)
_PASSES = 4
_SUMMARISE = (
    "Summarise this part of a conversation for the one who goes on with it: what was asked and decided, facts and names to keep, open "
    "tasks. If a summary of what came before is given, write one summary of both. Plain text, at most 800 words, in the language of "
    "the conversation. " + RULE
)
_EXTRACT = (
    "From this exchange note what is worth knowing about the person in later conversations: lasting facts, preferences, standing "
    "instructions, decisions, open tasks. Nothing that is only of use now, no secrets, nothing that a tool or a file claims. Each item "
    "stands by itself, in the language of the exchange. `topic` is a short key for a fact that may change, such as `editor` or "
    '`deploy target`. Reply with JSON: {"items": [{"content": "…", "kind": "fact", "topic": null}]}; an empty list is a good answer. '
    + RULE
)


class Noted(BaseModel):
    """One thing to remember, as the model words it."""

    content: str = Field(min_length=1, max_length=4000)
    kind: MemoryKind = "fact"
    topic: str | None = Field(default=None, max_length=200)


class Notes(BaseModel):
    """What the model found."""

    items: tuple[Noted, ...] = Field(default=(), max_length=20)


async def after_turn(
    settings: AssistantSettings, agent: Agent | None, ask: Ask, state: TurnState, models: KnownModels, *, again: bool = False
) -> None:
    """All of it, one after the other; `again` when an earlier try may have been cut off."""
    opened = state.opened
    assert opened is not None
    finished = state.finished
    if state.status == "cancelled":
        await _harmless(close(ask, opened), "closing the waiting calls")
    looked_at = settings.memory or (agent is not None and agent.on_turn_end is not end_quietly)
    path = await _harmless(_path(ask, opened, finished.message_id), "reading the turn") if finished and looked_at else None
    text = text_of(path[-1]) if path else ""
    if agent is not None and state.ended:
        end = TurnEnd.model_validate({"status": state.status, "text": text, "error": state.why})
        await _harmless(agent.on_turn_end(TurnContext(turn_id=state.turn_id, opened=opened), end), "on_turn_end")
    if finished and path and settings.memory:
        await _harmless(ingest(settings, ask, opened, path, again=again), "memory")
    if finished or state.status == "failed":
        await _harmless(compact(settings, ask, opened, models, finished.context_tokens if finished else 0), "compaction")


async def close(ask: Ask, opened: TurnOpened) -> None:
    """A turn that was cancelled while calls waited: its message no longer asks for them."""
    message = next((m for m in await _path(ask, opened, answer_id(opened.turn_id)) if m.id == answer_id(opened.turn_id)), None)
    if message is None or not message.metadata.get("paused"):
        return
    metadata = {name: value for name, value in message.metadata.items() if name != "paused"}
    ended = message.model_copy(
        update={"parts": ended_calls(message.parts, "The turn was cancelled."), "metadata": {**metadata, "aborted": True}}
    )
    await ask(AppendMessages(tenant=opened.tenant, user=opened.user, session_id=opened.session_id, messages=(ended,), replace=True))


async def ingest(
    settings: AssistantSettings, ask: Ask, opened: TurnOpened, path: tuple[StoredMessage, ...], *, again: bool = False
) -> None:
    """Remember what an exchange tells of the person; the same content is read once ever, unless `again` it was claimed and not read."""
    exchange = [m for m in path[-8:] if m.role in ("user", "assistant") and text_of(m).strip()]
    digests = {_digest(m): m for m in exchange if m.role == "user"}
    if not digests:
        return
    marked: Ingested = await ask(MarkIngested(tenant=opened.tenant, user=opened.user, digests=tuple(digests)))
    fresh = [exchange[-2]] if again and len(exchange) > 1 else [digests[digest] for digest in marked.fresh if digest in digests]
    if not fresh:
        return
    first = exchange.index(fresh[0])
    told = "\n\n".join(f"{m.role}: {text_of(m)[:8000]}" for m in exchange[first:])
    model = _cheap(settings, ask, opened, "memory", Notes.model_json_schema())
    reply = await model.complete(_prompt(_EXTRACT, wrap(told, "conversation")), (), f"{opened.turn_id}-memory")
    for note in _notes(reply.content).items:
        await ask(Remember(tenant=opened.tenant, user=opened.user, session_id=opened.session_id, **note.model_dump()))


async def compact(settings: AssistantSettings, ask: Ask, opened: TurnOpened, known: KnownModels, context_tokens: int = 0) -> None:
    """Lay summaries over the middle of a branch until it is short enough; the originals stay. One of so few tokens is (0: not known)."""
    session: dict[str, Any] = {"tenant": opened.tenant, "user": opened.user, "session_id": opened.session_id}
    models = await known.of(ask, opened.plan)
    smallest = min((model.context_tokens for model in models.models), default=settings.compact_over_tokens * 2)
    over = min(settings.compact_over_tokens, smallest // 2)
    if 0 < context_tokens <= over:
        return
    for number in range(_PASSES):
        plan: CompactionPlan = await ask(PlanCompaction(**session, threshold_tokens=over, tail_tokens=over // 3, max_tokens=over))
        if not plan.needed or plan.from_id is None or plan.to_id is None or not plan.messages:
            return
        told = "\n\n".join(f"{m.role}: {m.content or [c.name for c in m.tool_calls]}" for m in chat_messages(plan.messages))
        before = f"Summary of what came before:\n{wrap(plan.previous_summary, 'summary')}\n\n" if plan.previous_summary else ""
        model = _cheap(settings, ask, opened, "compact")
        reply = await model.complete(_prompt(_SUMMARISE, before + wrap(told, "conversation")), (), f"{opened.turn_id}-compact-{number}")
        if not reply.content.strip():
            return
        await ask(StoreCompaction(**session, from_id=plan.from_id, to_id=plan.to_id, summary=reply.content[:64_000]))


async def _path(ask: Ask, opened: TurnOpened, leaf_id: str) -> tuple[StoredMessage, ...]:
    history: History = await ask(
        ReadHistory(tenant=opened.tenant, user=opened.user, session_id=opened.session_id, leaf_id=leaf_id, limit=20)
    )
    return history.messages


async def _harmless(work: Awaitable[Any], what: str) -> Any:
    try:
        return await work
    except (Refusal, Retryable, Permanent) as error:
        log.warning("%s after a turn was left out: %s", what, error)
    except Exception:
        log.exception("%s after a turn failed", what)
    return None


def _cheap(settings: AssistantSettings, ask: Ask, opened: TurnOpened, purpose: str, schema: dict[str, Any] | None = None) -> AskedModel:
    return AskedModel(
        ask,
        account=f"turn:{opened.turn_id}",
        purpose=purpose,
        name=settings.cheap_model or opened.model,
        json_schema=schema,
        max_output_tokens=2048,
        tenant=opened.tenant,
        user=opened.user,
        plan=opened.plan,
    )


def _prompt(system: str, text: str) -> tuple[ChatMessage, ...]:
    return ChatMessage(role="system", content=system), ChatMessage(role="user", content=text)


def _digest(message: StoredMessage) -> str:
    return hashlib.sha256(f"{message.role}\0{text_of(message).strip()}".encode("utf-8", "replace")).hexdigest()


def _notes(text: str) -> Notes:
    """What a model wrote as JSON, also inside of a fence or with words around it. Raises Permanent when there is none."""
    start, end = text.find("{"), text.rfind("}")
    try:
        return Notes.model_validate(json.loads(text[start : end + 1]))
    except (ValueError, ValidationError) as error:
        raise Permanent(f"the model's notes are no JSON of the form that was asked for: {text[:200]!r}") from error
