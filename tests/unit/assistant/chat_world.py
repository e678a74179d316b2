"""The services that the assistant asks, in memory: a message tree, context blocks, memory, and a scripted model that streams."""

import asyncio
from datetime import UTC, datetime

from libs.bus import Refusal
from libs.contracts import conversation as c
from libs.contracts import inference, memory
from libs.contracts.envelope import Done, Usage
from libs.contracts.turn import TurnOpened
from libs.contracts.work import ToolCall

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
STORE = (
    c.AppendMessages,
    c.ReadHistory,
    c.ReadContexts,
    c.SetContext,
    c.SearchContext,
    c.SearchMessages,
    c.PlanCompaction,
    c.StoreCompaction,
    memory.Remember,
    memory.Recall,
    memory.MarkIngested,
)
MODELS = (inference.DescribeModels, inference.Complete)


def opened(turn_id="t1", parent_id="m1", **fields):
    return TurnOpened(turn_id=turn_id, session_id="s1", parent_id=parent_id, opened_at=EPOCH, **fields)


def user(text, ident="m1", **fields):
    return c.StoredMessage(id=ident, role="user", parts=({"type": "text", "text": text},), **fields)


def says(text="", *calls, reasoning="", finish="stop"):
    """A reply; a call is `(name, arguments as JSON)`."""
    made = tuple(ToolCall(id=f"c{i}", name=name, arguments=arguments) for i, (name, arguments) in enumerate(calls))
    usage = Usage(input_tokens=10, output_tokens=5, cost_usd=0.01, calls=1)
    return inference.Completion(model="scripted", content=text, reasoning=reasoning, tool_calls=made, finish_reason=finish, usage=usage)


class Store:
    """One user's sessions. Each session is a tree; appending without a parent goes to the active leaf."""

    def __init__(self):
        self.messages, self.leaves, self.blocks = {}, {}, {}
        self.remembered, self.ingested, self.stored, self.plans = [], set(), [], []
        self.usage = Usage()

    def put(self, *messages, session="s1"):
        self.on_AppendMessages(c.AppendMessages(session_id=session, messages=messages))

    def message(self, ident, session="s1"):
        return self.messages[session][ident]

    def on_AppendMessages(self, q):
        tree = self.messages.setdefault(q.session_id, {})
        changed = False
        for message in q.messages:
            if message.id in tree:
                if q.replace and tree[message.id].parts != message.parts:
                    tree[message.id] = tree[message.id].model_copy(update={"parts": message.parts, "metadata": message.metadata})
                    changed = True
                continue
            leaf = self.leaves.get(q.session_id)
            held = q.on_branch_of is None or any(m.id == q.on_branch_of for m in self.path(q.session_id, leaf))
            parent = message.parent_id if message.parent_id is not None else leaf if held else q.on_branch_of
            if parent and parent not in tree:
                raise Refusal("bad_parent", f"there is no message {parent}")
            tree[message.id] = message.model_copy(update={"parent_id": parent or None})
            self.leaves[q.session_id] = message.id
            changed = True
        if changed and q.usage:
            self.usage += q.usage
        return c.Appended(messages=q.messages, leaf_id=self.leaves[q.session_id])

    def path(self, session, leaf):
        tree, found = self.messages.get(session, {}), []
        while leaf:
            found.insert(0, tree[leaf])
            leaf = tree[leaf].parent_id
        return tuple(found)

    def on_ReadHistory(self, q):
        leaf = q.leaf_id or self.leaves.get(q.session_id)
        if leaf not in self.messages.get(q.session_id, {}):
            raise Refusal("not_found", f"there is no message {leaf}")
        prompt = None
        if q.define is not None:
            prompt = self.on_ReadContexts(c.ReadContexts(session_id=q.session_id, define=q.define)).system_prompt
        return c.History(messages=self.path(q.session_id, leaf)[-(q.limit or 10_000) :], leaf_id=leaf, system_prompt=prompt)

    def on_ReadContexts(self, q):
        blocks = self.blocks.setdefault(q.session_id, {})
        for block in q.define:
            blocks.setdefault(block.label, block)
        text = "\n".join(f"{b.label}: {b.content}" for b in blocks.values())
        return c.ContextBlocks(blocks=tuple(blocks.values()), system_prompt=text)

    def on_SetContext(self, q):
        block = self.blocks.get(q.session_id, {}).get(q.label)
        if block is None:
            raise Refusal("not_found", f"there is no block {q.label}")
        if block.kind == "readonly":
            raise Refusal("readonly", f"{q.label} can only be read")
        content = block.content + q.content if q.action == "append" else q.content
        block = block.model_copy(update={"content": content, "tokens": len(content) // 4})
        self.blocks[q.session_id][q.label] = block
        return block

    def on_SearchContext(self, q):
        return c.SearchResult(hits=())

    def on_SearchMessages(self, q):
        hits = [
            c.SearchHit(session_id=session, message_id=m.id, role=m.role, excerpt=str(m.parts[0].get("text")), score=1.0)
            for session, tree in self.messages.items()
            for m in tree.values()
            if q.session_id in (None, session) and m.parts and q.query in str(m.parts[0].get("text"))
        ]
        return c.SearchResult(hits=tuple(hits))

    def on_Remember(self, q):
        self.remembered.append(q)
        return memory.MemoryItem(id=f"f{len(self.remembered)}", kind=q.kind, topic=q.topic, content=q.content, created_at=EPOCH)

    def on_Recall(self, q):
        text = "\n".join(item.content for item in self.remembered if item.project == q.project and item.user == q.user)
        return memory.Recalled(items=(), text=text)

    def on_MarkIngested(self, q):
        fresh = tuple(d for d in q.digests if d not in self.ingested)
        self.ingested.update(fresh)
        return memory.Ingested(fresh=fresh)

    def on_PlanCompaction(self, q):
        return self.plans.pop(0) if self.plans else c.CompactionPlan(needed=False)

    def on_StoreCompaction(self, q):
        self.stored.append(q)
        return c.Compacted(compacted=True, from_id=q.from_id, to_id=q.to_id)


class World(Store):
    """`replies` by purpose; a reply may be an exception, or an event that is waited for. The same request id gets the same reply."""

    def __init__(self, *replies, memory_notes='{"items": []}', models=True):
        super().__init__()
        self.replies = {"chat": list(replies), "memory": [says(memory_notes)], "compact": [says("In short.")]}
        self.models = (inference.ModelDescription(name="scripted"),) if models else ()
        self.answered, self.asked, self.held, self.cancelled = {}, [], asyncio.Event(), asyncio.Event()
        self.go = asyncio.Event()

    def questions(self, purpose="chat"):
        """What was asked, each request once: what is asked again under its id is paid for once."""
        return list({q.request_id: q for q in reversed(self.asked) if q.purpose == purpose}.values())[::-1]

    async def ask(self, question, on_frame=None, timeout_seconds=None):
        answer = getattr(self, f"on_{type(question).__name__}")
        return await answer(question, on_frame) if isinstance(question, inference.Complete) else answer(question)

    def on_DescribeModels(self, q):
        return inference.Models(models=self.models, advice="" if self.models else "Set MODEL.")

    async def on_Complete(self, q, on_frame=None):
        self.asked.append(q)
        if q.request_id not in self.answered:
            queue = self.replies[q.purpose]
            self.answered[q.request_id] = queue.pop(0) if len(queue) > 1 else queue[0]
        reply = self.answered[q.request_id]
        if isinstance(reply, Exception):
            raise reply
        if on_frame is not None:
            await self._stream(q, reply, on_frame)
        return reply

    async def _stream(self, q, reply, on_frame):
        sent = 0
        for piece in reply.content.split(" "):
            text = piece if sent == 0 else f" {piece}"
            await on_frame(inference.TextDelta(text=text, request_id=q.request_id, offset=sent).model_dump_json().encode())
            sent += len(text)
            if piece == "WAIT":
                self.held.set()
                await self.go.wait()
            if piece == "HOLD":
                self.held.set()
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    self.cancelled.set()
                    raise

    def on_CloseWorkspace(self, q):
        return Done()
