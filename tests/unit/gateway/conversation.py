"""A store of conversations and an assistant in memory, as far as the gateway sees them."""

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from libs.bus import Refusal
from libs.bus.subjects import conversation_key
from libs.contracts.conversation import (
    Appended,
    AppendMessages,
    Branches,
    ContextBlock,
    ContextBlocks,
    ContextEntry,
    CreateSession,
    DeleteSession,
    ForkSession,
    History,
    ListSessions,
    LoadContext,
    ReadBranches,
    ReadContexts,
    ReadHistory,
    ReadSession,
    ReadTree,
    SearchContext,
    SearchMessages,
    SearchResult,
    SessionDescription,
    SessionPage,
    SessionTree,
    SetContext,
    StoredMessage,
    TreeNode,
    UpdateSession,
)
from libs.contracts.envelope import Done
from libs.contracts.inference import Complete, Completion, DebugCompletion, DebugReply, ReadUsage, UsageReport
from libs.contracts.memory import Forget, ListMemory, MemoryItem, MemoryPage, Recall, Recalled, Remember
from libs.contracts.turn import (
    AgentDescription,
    Agents,
    AwaitStable,
    DescribeAgents,
    ForgetConversation,
    Stability,
    TurnAdmitted,
    TurnEvent,
    TurnFinished,
    TurnOpened,
)
from libs.contracts.turn_fold import fold_turn
from libs.contracts.work import WorkEvent
from tests.unit.gateway.fake_bus import FakeBus, _recorded

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)


class Conversations:
    """One tree per tenant, user and session; the turn that is active is the newest one that has not ended."""

    def __init__(self, bus: FakeBus) -> None:
        self.bus = bus
        self.messages: dict[tuple[str, str, str], dict[str, StoredMessage]] = {}
        self.leaf: dict[tuple[str, str, str], str] = {}
        self.tokens = 0
        for question, answer in (
            (AppendMessages, self.append),
            (ReadHistory, self.history),
            (ReadSession, self.session),
            (ReadTree, self.tree),
            (DeleteSession, self.delete),
            (AwaitStable, self.stable),
            (ForgetConversation, lambda _: Done()),
        ):
            bus.answer(question, _plain(answer))
        bus.answer(DescribeAgents, Agents(agents=(AgentDescription(name="assistant"), AgentDescription(name="code-helper"))))
        bus.listeners.append(self._tell)

    def _tell(self, event: WorkEvent) -> None:
        """The assistant's record of the conversation, as it would be put into its bucket."""
        opened = next((o for m in self.bus.messages["TURN"] if (o := self._opened(m)) and o.turn_id == event.work_id), None)
        if opened is not None:
            stable = self.stable(AwaitStable(tenant=opened.tenant, user=opened.user, session_id=opened.session_id))
            key = conversation_key(opened.tenant, opened.user, opened.session_id)
            self.bus.store("KV_CONVERSATIONS", f"$KV.CONVERSATIONS.{key}", json.dumps({"active": stable.active}).encode())

    @staticmethod
    def _opened(message: Any) -> TurnOpened | None:
        return TurnOpened.model_validate_json(message.payload) if message.subject.endswith(".opened") else None

    def append(self, q: AppendMessages) -> Appended:
        key = (q.tenant, q.user, q.session_id)
        tree = self.messages.setdefault(key, {})
        for message in q.messages:
            known = tree.get(message.id)
            if known is not None and known.parts != message.parts and not q.replace:
                raise Refusal("conflict", f"message {message.id} is there with other content")
            parent = message.parent_id if message.parent_id is not None else self.leaf.get(key)
            tree.setdefault(message.id, message.model_copy(update={"parent_id": parent or None, "created_at": NOW}))
            self.leaf[key] = message.id
        return Appended(messages=tuple(tree[m.id] for m in q.messages), leaf_id=self.leaf[key])

    def history(self, q: ReadHistory) -> History:
        key = (q.tenant, q.user, q.session_id)
        tree = self._tree(key)
        place = q.leaf_id or self.leaf.get(key)
        if place is not None and place not in tree:
            raise Refusal("not_found", "no such message")
        path: list[StoredMessage] = []
        while place is not None:
            path.insert(0, tree[place])
            place = tree[place].parent_id
        if q.before_id:
            path = path[: [m.id for m in path].index(q.before_id)]
        kept = path[-q.limit :] if q.limit else path
        return History(messages=tuple(kept), leaf_id=q.leaf_id, more=len(kept) < len(path))

    def _tree(self, key: tuple[str, str, str]) -> dict[str, StoredMessage]:
        if key not in self.messages:
            raise Refusal("not_found", "there is no such conversation")
        return self.messages[key]

    def session(self, q: Any) -> SessionDescription:
        key = (q.tenant, q.user, q.session_id)
        count = len(self._tree(key))
        return SessionDescription(
            session_id=q.session_id, name="a name", leaf_id=self.leaf.get(key), created_at=NOW, updated_at=NOW, messages=count
        )

    def tree(self, q: ReadTree) -> SessionTree:
        key = (q.tenant, q.user, q.session_id)
        nodes = tuple(TreeNode(id=m.id, parent_id=m.parent_id, role=m.role) for m in self._tree(key).values())
        return SessionTree(nodes=nodes, leaf_id=self.leaf.get(key))

    def delete(self, q: DeleteSession) -> Done:
        self._tree((q.tenant, q.user, q.session_id))
        del self.messages[(q.tenant, q.user, q.session_id)]
        return Done()

    def stable(self, q: AwaitStable) -> Stability:
        active = None
        for turn_id in dict.fromkeys(m.subject.split(".")[1] for m in self.bus.messages["TURN"]):
            own = [_recorded(m) for m in self.bus.messages["TURN"] if m.subject.split(".")[1] == turn_id]
            state = fold_turn([r for r in own if r], turn_id)
            o = state.opened
            if o and not state.ended and (o.tenant, o.user, o.session_id) == (q.tenant, q.user, q.session_id):
                active = turn_id
        return Stability(stable=active is None, active=active)

    def delivery(self, turn_id: str) -> Callable[..., None]:
        """A new delivery of a turn: what it is given at once goes out as one live frame."""
        self.tokens = self.bus.store("TURN", f"turn.{turn_id}.step_started", b"{}")
        number, token = 0, self.tokens

        def send(*chunks: dict[str, Any]) -> None:
            nonlocal number
            frame = {"n": number + 1, "token": token, "chunks": chunks}
            number += len(chunks)
            self.bus.store("LIVE", f"live.{turn_id}.part", json.dumps(frame).encode())

        return send

    def answer_with(self, *pieces: str) -> None:
        """From now on every turn that is opened is answered at once."""
        plain = self.bus.turns.append

        async def append(event: TurnEvent, *, follows: int, causation: int | None = None) -> int:
            sequence = await plain(event, follows=follows, causation=causation)
            if isinstance(event, TurnOpened):
                self.complete(event, *pieces)
            return sequence

        self.bus.turns.append = append  # type: ignore[method-assign,assignment]  # the assistant listens

    def complete(self, opened: TurnOpened, *pieces: str) -> None:
        """Answer a turn."""
        self.bus.add(TurnAdmitted(turn_id=opened.turn_id, parent_id=opened.parent_id))
        send = self.delivery(opened.turn_id)
        send(*text_chunks(opened.turn_id, *pieces))
        self.keep(opened, "".join(pieces))
        send({"type": "finish", "finishReason": "stop"})
        self.bus.add(TurnFinished(turn_id=opened.turn_id, message_id=f"answer-{opened.turn_id}"))

    def keep(self, opened: TurnOpened, text: str) -> None:
        """Store the answer of a turn."""
        parts = ({"type": "step-start"}, {"type": "text", "text": text, "state": "done"})
        message = StoredMessage(id=f"answer-{opened.turn_id}", role="assistant", parts=parts)
        self.append(AppendMessages(tenant=opened.tenant, user=opened.user, session_id=opened.session_id, messages=(message,), replace=True))


def text_chunks(turn_id: str, *pieces: str) -> list[dict[str, Any]]:
    """A step with one text."""
    deltas = [{"type": "text-delta", "id": "text-1", "delta": piece} for piece in pieces]
    start = [{"type": "start", "messageId": f"answer-{turn_id}"}, {"type": "start-step"}, {"type": "text-start", "id": "text-1"}]
    return [*start, *deltas, {"type": "text-end", "id": "text-1"}, {"type": "finish-step"}]


def _plain(answer: Callable[[Any], Any]) -> Any:
    async def called(question: Any, _: Any) -> Any:
        return answer(question)

    return called


def everything(bus: FakeBus) -> Conversations:
    """Answers to every question that the gateway asks about conversations and memory; turns are answered at once."""
    session = SessionDescription(session_id="s1", created_at=NOW, updated_at=NOW)
    block = ContextBlock(label="notes")
    item = MemoryItem(id="i1", content="prefers tabs", created_at=NOW)
    fixed: dict[Any, Any] = {
        CreateSession: session,
        ListSessions: SessionPage(sessions=(session,)),
        UpdateSession: session,
        ForkSession: session,
        ReadBranches: Branches(children=(), leaves=()),
        SearchMessages: SearchResult(hits=()),
        ReadContexts: ContextBlocks(blocks=(block,)),
        SetContext: block,
        SearchContext: SearchResult(hits=()),
        LoadContext: ContextEntry(label="notes", key="k", content="x"),
        Remember: item,
        ListMemory: MemoryPage(items=(item,)),
        Recall: Recalled(items=()),
        Forget: Done(),
        ReadUsage: UsageReport(),
        DebugCompletion: DebugReply(model="m", wire="m", outcome="ok"),
        Complete: Completion(model="m", content="Hello"),
    }
    for question, answer in fixed.items():
        bus.answer(question, answer)
    made = Conversations(bus)
    made.answer_with("Hello")
    return made
