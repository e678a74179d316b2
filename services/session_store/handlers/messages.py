"""Questions about the messages of a conversation, and about finding them."""

from libs.contracts.conversation import (
    Appended,
    AppendMessages,
    Branches,
    Compacted,
    CompactionPlan,
    History,
    PlanCompaction,
    ReadBranches,
    ReadHistory,
    ReadTree,
    SearchMessages,
    SearchResult,
    SessionTree,
    StoreCompaction,
)
from services.session_store.conversations.find import Finder
from services.session_store.conversations.history import Histories
from services.session_store.conversations.messages import Messages
from services.session_store.conversations.summaries import Summaries
from services.session_store.handlers.refusing import refusing


async def append_messages(messages: Messages, question: AppendMessages) -> Appended:
    """Raises Refusal("conflict", "bad_parent", "too_large" or "not_found")."""
    with refusing():
        return await messages.append(question)


async def read_history(histories: Histories, question: ReadHistory) -> History:
    """Raises Refusal("not_found" or "over_limit")."""
    with refusing():
        return await histories.read(question)


async def read_branches(messages: Messages, question: ReadBranches) -> Branches:
    """Raises Refusal("not_found")."""
    with refusing():
        return await messages.branches(question)


async def read_tree(messages: Messages, question: ReadTree) -> SessionTree:
    """Raises Refusal("not_found")."""
    with refusing():
        return await messages.tree(question)


async def plan_compaction(summaries: Summaries, question: PlanCompaction) -> CompactionPlan:
    """Raises Refusal("not_found")."""
    with refusing():
        return await summaries.plan(question)


async def store_compaction(summaries: Summaries, question: StoreCompaction) -> Compacted:
    """Raises Refusal("not_found" or "bad_range")."""
    with refusing():
        return await summaries.store(question)


async def search_messages(finder: Finder, question: SearchMessages) -> SearchResult:
    """Raises Refusal("bad_query" or "not_found")."""
    with refusing():
        return await finder.messages(question)
