"""Conversations over REST: list, make, show, rename, switch, fork, clear, delete, read, search, export."""

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query, Request, Response
from fastapi.responses import StreamingResponse
from pydantic import AfterValidator, Field

from libs.contracts.conversation import (
    Branches,
    CreateSession,
    DeleteSession,
    ForkSession,
    History,
    ListSessions,
    MessageId,
    ReadBranches,
    ReadHistory,
    ReadSession,
    ReadTree,
    SearchMessages,
    SearchResult,
    SessionDescription,
    SessionPage,
    SessionTree,
    UpdateSession,
)
from libs.contracts.envelope import Identifier
from libs.contracts.turn import ForgetConversation
from services.gateway import models
from services.gateway.chat import export
from services.gateway.chat.names import new_id
from services.gateway.chat.rooms import Room
from services.gateway.context import Here
from services.gateway.identity.caller import Who
from services.gateway.models import Line, Words
from services.gateway.problems import Problem, documented, not_found

router = APIRouter(tags=["sessions"])


def _session_id(text: str) -> str:
    if not 1 <= len(text) <= 64 or not text.isascii() or not all(c.isalnum() or c in "_-" for c in text):
        raise not_found("there is no such session", "GET /api/sessions lists your sessions")
    return text


SessionId = Annotated[str, Path(description="the session's id", examples=["holiday-plans"]), AfterValidator(_session_id)]
Message = Annotated[MessageId, Query(description="a message of the session")]


class SessionRequest(models.Request):
    """A session to make."""

    id: Identifier | None = Field(default=None, description="absent: a fresh one")
    agent: Identifier = "assistant"
    name: Line = Field(default="", max_length=200)


class SessionChange(models.Request):
    """What to change of a session."""

    name: Line | None = Field(default=None, max_length=200)
    leaf_id: MessageId | None = Field(default=None, description="the active branch becomes the one that ends at or below this message")


class ForkRequest(models.Request):
    """Where to fork, and what the copy is called."""

    at_message_id: MessageId
    new_session_id: Identifier | None = None
    name: Line = Field(default="", max_length=200)


@router.get("/api/sessions", responses=documented(), summary="List your sessions, the last changed first")
async def list_sessions(
    who: Who,
    here: Here,
    cursor: Annotated[Line | None, Query(max_length=200, description="`next_cursor` of the page before")] = None,
    limit: Annotated[int, Query(ge=1, le=100)] = 50,
) -> SessionPage:
    """A page of sessions."""
    return await here.bus.ask(ListSessions(**who.owned, cursor=cursor, limit=limit))


@router.post("/api/sessions", status_code=201, responses=documented(409, 415), summary="Make a session")
async def create_session(body: SessionRequest, who: Who, here: Here, response: Response) -> SessionDescription:
    """One that exists is the answer too. A first message makes its session by itself, so this is seldom needed."""
    session_id = body.id or new_id()
    made = await here.bus.ask(CreateSession(**who.owned, session_id=session_id, agent=body.agent, name=body.name))
    response.headers["Location"] = f"/api/sessions/{made.session_id}"
    return made


@router.get("/api/sessions/{session_id}", responses=documented(404), summary="Show a session")
async def show_session(session_id: SessionId, who: Who, here: Here) -> SessionDescription:
    """Its name, its active branch, its size and what it has used."""
    return await here.bus.ask(ReadSession(**who.owned, session_id=session_id))


@router.patch("/api/sessions/{session_id}", responses=documented(404, 415), summary="Rename a session, or switch its branch")
async def change_session(session_id: SessionId, body: SessionChange, who: Who, here: Here) -> SessionDescription:
    """Messages of other branches stay."""
    if body.name is None and body.leaf_id is None:
        raise Problem(422, "invalid-request", "nothing to change", "send name or leaf_id")
    return await here.bus.ask(UpdateSession(**who.owned, session_id=session_id, name=body.name, leaf_id=body.leaf_id))


@router.delete("/api/sessions/{session_id}", status_code=204, responses=documented(404), summary="Delete a session for good")
async def delete_session(session_id: SessionId, who: Who, here: Here) -> None:
    """Its messages, contexts and search entries, what its clients shared and what is attached to it go with it."""
    await here.turns.stop_all(who, session_id, "the session was deleted")
    await here.bus.ask(DeleteSession(**who.owned, session_id=session_id))
    await here.bus.ask(ForgetConversation(**who.owned, session_id=session_id))
    await Room(here.bus, who, session_id).forget()


@router.post("/api/sessions/{session_id}/clear", status_code=204, responses=documented(404), summary="Empty a session")
async def clear_session(session_id: SessionId, who: Who, here: Here) -> None:
    """All messages go, the session stays. A turn that is under way is cancelled."""
    await here.turns.stop_all(who, session_id, "the session was cleared")
    await here.bus.ask(DeleteSession(**who.owned, session_id=session_id, messages_only=True))


@router.post("/api/sessions/{session_id}/fork", status_code=201, responses=documented(404, 409, 415), summary="Fork a session")
async def fork_session(session_id: SessionId, body: ForkRequest, who: Who, here: Here, response: Response) -> SessionDescription:
    """The path up to a message becomes a session of its own; the original stays as it is."""
    question = ForkSession(
        **who.owned,
        session_id=session_id,
        at_message_id=body.at_message_id,
        new_session_id=body.new_session_id or new_id(),
        name=body.name,
    )
    made = await here.bus.ask(question)
    response.headers["Location"] = f"/api/sessions/{made.session_id}"
    return made


@router.get(
    "/api/sessions/{session_id}/messages",
    responses=documented(404),
    response_model_exclude={"system_prompt"},  # nobody asks for it here
    summary="Read a branch",
)
async def read_messages(
    session_id: SessionId,
    who: Who,
    here: Here,
    leaf: Annotated[MessageId | None, Query(description="the message that the branch ends with; by default the active one")] = None,
    before: Annotated[MessageId | None, Query(description="only what comes before this message: the first of the page before")] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    compacted: Annotated[bool, Query(description="as a model gets it: summaries in place of what they cover")] = False,
) -> History:
    """The last `limit` messages in order; `more` when there are earlier ones."""
    question = ReadHistory(**who.owned, session_id=session_id, leaf_id=leaf, before_id=before, limit=limit, compacted=compacted)
    return await here.bus.ask(question)


@router.get("/api/sessions/{session_id}/tree", responses=documented(404), summary="The shape of a session")
async def read_tree(session_id: SessionId, who: Who, here: Here) -> SessionTree:
    """Every message without its content, in order of creation."""
    return await here.bus.ask(ReadTree(**who.owned, session_id=session_id))


@router.get("/api/sessions/{session_id}/branches", responses=documented(404), summary="The branches that begin at a message")
async def read_branches(
    session_id: SessionId,
    who: Who,
    here: Here,
    message_id: Annotated[MessageId | None, Query(description="absent: the branches that begin at the root")] = None,
) -> Branches:
    """Its children, each with the message that its branch ends with."""
    return await here.bus.ask(ReadBranches(**who.owned, session_id=session_id, message_id=message_id))


_EXPORTS: dict[str, Any] = {
    "description": "The document, streamed",
    "content": {"application/json": {"schema": {"type": "object"}}, "text/markdown": {"schema": {"type": "string"}}},
}


@router.get(
    "/api/sessions/{session_id}/export",
    response_class=StreamingResponse,
    responses=documented(404) | {200: _EXPORTS},
    summary="A session as one document",
)
async def export_session(
    session_id: SessionId,
    who: Who,
    here: Here,
    request: Request,
    kind: Annotated[
        Literal["json", "markdown"] | None, Query(alias="format", description="by default what `Accept` asks for, else JSON")
    ] = None,
    leaf: Annotated[MessageId | None, Query(description="for Markdown: the branch; by default the active one")] = None,
) -> StreamingResponse:
    """JSON holds every branch, Markdown one of them."""
    session = await here.bus.ask(ReadSession(**who.owned, session_id=session_id))
    chosen = kind or ("markdown" if "text/markdown" in request.headers.get("accept", "") else "json")
    suffix = "md" if chosen == "markdown" else "json"
    headers = {"Content-Disposition": f'attachment; filename="{session_id}.{suffix}"'}
    if chosen == "markdown":
        await here.bus.ask(ReadHistory(**who.owned, session_id=session_id, leaf_id=leaf, limit=1))  # refused now, not in the middle
        pieces = export.as_markdown(here.bus, who.owned, session, leaf)
        return StreamingResponse(pieces, headers=headers, media_type="text/markdown; charset=utf-8")
    return StreamingResponse(export.as_json(here.bus, who.owned, session), headers=headers, media_type="application/json")


@router.get("/api/search", responses=documented(404), summary="Search your sessions")
async def search(
    who: Who,
    here: Here,
    q: Annotated[Words, Query(min_length=1, max_length=500, description="words, in English or Chinese")],
    session: Annotated[Identifier | None, Query(description="in this one alone")] = None,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
) -> SearchResult:
    """Best first; excerpts mark the words with U+2068 and U+2069."""
    return await here.bus.ask(SearchMessages(**who.owned, query=q, session_id=session, limit=limit))
