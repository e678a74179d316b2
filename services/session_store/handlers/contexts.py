"""Questions about context blocks."""

from libs.contracts.conversation import (
    ContextBlock,
    ContextBlocks,
    ContextEntry,
    LoadContext,
    ReadContexts,
    SearchContext,
    SearchResult,
    SetContext,
)
from services.session_store.conversations.contexts import Contexts
from services.session_store.handlers.refusing import refusing


async def read_contexts(contexts: Contexts, question: ReadContexts) -> ContextBlocks:
    """Raises Refusal("not_found" or "over_limit")."""
    with refusing():
        return await contexts.read(question)


async def set_context(contexts: Contexts, question: SetContext) -> ContextBlock:
    """Raises Refusal("not_found", "readonly", "over_limit" or "wrong_kind")."""
    with refusing():
        return await contexts.set(question)


async def search_context(contexts: Contexts, question: SearchContext) -> SearchResult:
    """Raises Refusal("not_found", "bad_query" or "wrong_kind")."""
    with refusing():
        return await contexts.search(question)


async def load_context(contexts: Contexts, question: LoadContext) -> ContextEntry:
    """Raises Refusal("not_found")."""
    with refusing():
        return await contexts.load(question)
