"""Questions about memory."""

from libs.contracts.envelope import Done
from libs.contracts.memory import Forget, Ingested, ListMemory, MarkIngested, MemoryItem, MemoryPage, Recall, Recalled, Remember
from services.session_store.handlers.refusing import refusing
from services.session_store.memory.memories import Memories


async def remember(memories: Memories, question: Remember) -> MemoryItem:
    """The item, new or not."""
    return await memories.remember(question)


async def recall(memories: Memories, question: Recall) -> Recalled:
    """What bears on the query."""
    return await memories.recall(question)


async def list_memory(memories: Memories, question: ListMemory) -> MemoryPage:
    """Raises Refusal("bad_cursor")."""
    with refusing():
        return await memories.page(question)


async def forget(memories: Memories, question: Forget) -> Done:
    """Raises Refusal("not_found")."""
    with refusing():
        await memories.forget(question)
    return Done()


async def mark_ingested(memories: Memories, question: MarkIngested) -> Ingested:
    """The digests that are new."""
    return await memories.mark_ingested(question)
