"""What stays over turns: the context blocks of a session, and what is remembered of a user."""

from typing import Annotated, Literal

from fastapi import APIRouter, Path, Query
from pydantic import Field

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
from libs.contracts.memory import Forget, ListMemory, MemoryItem, MemoryKind, MemoryPage, Recall, Recalled, Remember
from services.gateway import models
from services.gateway.context import Here
from services.gateway.identity.caller import Who
from services.gateway.models import Line, Text, Words
from services.gateway.problems import documented
from services.gateway.routes.sessions import SessionId

router = APIRouter()
Label = Annotated[str, Path(pattern=r"^[a-z][a-z0-9_-]{0,63}$", examples=["notes"])]
EntryKey = Annotated[Words, Path(min_length=1, max_length=200)]
Project = Annotated[Line, Query(max_length=200, description="of this project alone")]


class ContextChange(models.Request):
    """What to write into a block."""

    content: Text = Field(max_length=64_000)
    action: Literal["replace", "append"] = "replace"
    key: Words | None = Field(default=None, max_length=200, description="of an entry, for blocks that hold entries")


class MemoryRequest(models.Request):
    """One thing to remember."""

    content: Text = Field(min_length=1, max_length=4000, examples=["prefers tabs"])
    kind: MemoryKind = "fact"
    topic: Words | None = Field(
        default=None, max_length=200, description="its exact key: a newer item of the topic supersedes the older one"
    )
    project: Line = Field(default="", max_length=200)


@router.get("/api/sessions/{session_id}/contexts", responses=documented(404), tags=["contexts"], summary="The blocks of the system prompt")
async def read_contexts(session_id: SessionId, who: Who, here: Here) -> ContextBlocks:
    """In their fixed order, with the frozen prompt that was made of them."""
    return await here.bus.ask(ReadContexts(**who.owned, session_id=session_id))


@router.post("/api/sessions/{session_id}/prompt", responses=documented(404), tags=["contexts"], summary="Make the system prompt anew")
async def refresh_contexts(session_id: SessionId, who: Who, here: Here) -> ContextBlocks:
    """From the blocks as they are; from the next turn on the models get it."""
    return await here.bus.ask(ReadContexts(**who.owned, session_id=session_id, refresh=True))


@router.put("/api/sessions/{session_id}/contexts/{label}", responses=documented(404, 409, 415), tags=["contexts"], summary="Write a block")
async def set_context(session_id: SessionId, label: Label, body: ContextChange, who: Who, here: Here) -> ContextBlock:
    """Refused, with the numbers, when it would be over the block's limit."""
    question = SetContext(**who.owned, session_id=session_id, label=label, content=body.content, action=body.action, key=body.key)
    return await here.bus.ask(question)


@router.get(
    "/api/sessions/{session_id}/contexts/{label}/search",
    responses=documented(404, 409),
    tags=["contexts"],
    summary="Search the entries of a block",
)
async def search_context(
    session_id: SessionId,
    label: Label,
    who: Who,
    here: Here,
    q: Annotated[Words, Query(min_length=1, max_length=500)],
    limit: Annotated[int, Query(ge=1, le=50)] = 10,
) -> SearchResult:
    """Best first."""
    return await here.bus.ask(SearchContext(**who.owned, session_id=session_id, label=label, query=q, limit=limit))


@router.get(
    "/api/sessions/{session_id}/contexts/{label}/entries/{key}",
    responses=documented(404, 409),
    tags=["contexts"],
    summary="One entry of a block",
)
async def load_context(session_id: SessionId, label: Label, key: EntryKey, who: Who, here: Here) -> ContextEntry:
    """Its whole text."""
    return await here.bus.ask(LoadContext(**who.owned, session_id=session_id, label=label, key=key))


@router.get("/api/memory", responses=documented(), tags=["memory"], summary="What is remembered of you")
async def list_memory(
    who: Who,
    here: Here,
    project: Project = "",
    superseded: Annotated[bool, Query(description="also what a newer item has replaced")] = False,
    cursor: Annotated[Line | None, Query(max_length=200)] = None,
    limit: Annotated[int, Query(ge=1, le=100)] = 50,
) -> MemoryPage:
    """Newest first."""
    return await here.bus.ask(ListMemory(**who.owned, project=project, superseded=superseded, cursor=cursor, limit=limit))


@router.post("/api/memory", status_code=201, responses=documented(415), tags=["memory"], summary="Remember something")
async def remember(body: MemoryRequest, who: Who, here: Here) -> MemoryItem:
    """The same content again is the same item."""
    question = Remember(**who.owned, project=body.project, content=body.content, kind=body.kind, topic=body.topic)
    return await here.bus.ask(question)


@router.get("/api/recall", responses=documented(), tags=["memory"], summary="What is known that bears on a question")
async def recall(
    who: Who,
    here: Here,
    q: Annotated[Words, Query(min_length=1, max_length=4000)],
    project: Project = "",
    limit: Annotated[int, Query(ge=1, le=50)] = 8,
) -> Recalled:
    """The items that fit, best first, as an agent would get them before its turn."""
    return await here.bus.ask(Recall(**who.owned, project=project, query=q, limit=limit))


@router.delete("/api/memory/{item_id}", status_code=204, responses=documented(404), tags=["memory"], summary="Forget an item")
async def forget(item_id: Annotated[Words, Path(min_length=1, max_length=64)], who: Who, here: Here, project: Project = "") -> None:
    """With everything that it superseded."""
    await here.bus.ask(Forget(**who.owned, project=project, id=item_id))
