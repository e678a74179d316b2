"""Agents by name: `/agents/{agent}/{name}` over WebSocket (the frames of the npm package `agents`) and over HTTP."""

from typing import Annotated, Any

from fastapi import APIRouter, Path, Request, Response, WebSocket
from pydantic import BaseModel, Field
from starlette.responses import StreamingResponse

from libs.bus import Refusal
from libs.contracts.conversation import ReadHistory
from libs.contracts.envelope import JsonObject
from services.gateway import problems
from services.gateway.chat.frames import ui_message
from services.gateway.chat.names import session_id_of
from services.gateway.chat.replies import reply
from services.gateway.chat.requests import ChatRequest
from services.gateway.chat.socket import Connection
from services.gateway.context import Gateway, Here
from services.gateway.identity.caller import Who, caller_of
from services.gateway.problems import documented, not_found

router = APIRouter(tags=["agents"])
AgentPath = Annotated[str, Path(min_length=1, max_length=64, examples=["assistant"])]
NamePath = Annotated[str, Path(min_length=1, max_length=256, description="the conversation's name", examples=["default"])]
_STREAM: dict[int | str, dict[str, Any]] = {
    200: {"description": "As of POST /api/chat", "content": {"text/event-stream": {}, "text/plain": {}}}
}


class AgentView(BaseModel):
    """One kind of agent."""

    name: str
    description: str = ""
    tools: list[str] = Field(default=[], description="what it may call; those that read, write and run need an attached repository")


class AgentList(BaseModel):
    """The kinds of agents, the default one first."""

    agents: list[AgentView]


@router.get("/api/agents", responses=documented(), summary="The kinds of agents")
async def list_agents(here: Here) -> AgentList:
    """Each can be talked to at `/agents/{agent}/{name}`."""
    found = (await here.agents.all()).agents
    return AgentList(agents=[AgentView(name=a.name, description=a.description, tools=list(a.tools)) for a in found])


@router.get("/agents/{agent}/{name}/get-messages", responses=documented(404), summary="The messages of a conversation")
async def get_messages(agent: AgentPath, name: NamePath, who: Who, here: Here) -> list[JsonObject]:
    """The active branch as UI messages, the last 500; empty for a conversation that has not begun."""
    session_id = session_id_of(name, await here.agents.name_of(agent))
    try:
        found = await here.bus.ask(ReadHistory(**who.owned, session_id=session_id, limit=500))
    except Refusal as refusal:
        if refusal.code != "not_found":
            raise
        return []
    return [ui_message(m) for m in found.messages]


@router.post(
    "/agents/{agent}/{name}",
    response_class=StreamingResponse,
    responses=documented(402, 403, 404, 409, 415, 429, 502) | _STREAM,
    summary="Say something to an agent",
)
async def chat_with_agent(agent: AgentPath, name: NamePath, body: ChatRequest, request: Request, who: Who, here: Here) -> Response:
    """As POST /api/chat, in the conversation of this name."""
    own = await here.agents.name_of(agent)
    await here.models.require(body.model)
    async with here.streams.room(who) as room:
        asked = await here.turns.ask(who, body.model_copy(update={"agent": own}), name)
        return await reply(here, who, asked, room, plain="text/plain" in request.headers.get("accept", ""))


@router.websocket("/agents/{agent}/{name}")
async def connect(socket: WebSocket, agent: str, name: str) -> None:
    """A connection to a conversation. `?readonly=1` or a reading token only watches; `?protocol=off` leaves the agent's own frames out."""
    here = socket.app.state.gateway
    assert isinstance(here, Gateway)
    who = caller_of(socket)
    try:
        own = await here.agents.name_of(agent)
    except Exception as error:  # noqa: BLE001 - outside of the framework's handlers, an error must still become a problem
        await socket.send_denial_response(problems.response(problems.of_error(error), socket.url.path))
        return
    if len(name) > 256:
        await socket.send_denial_response(problems.response(not_found("the name is longer than 256 characters", ""), socket.url.path))
        return
    await socket.accept()
    readonly = not who.may("write") or socket.query_params.get("readonly") in ("1", "true")
    protocol = socket.query_params.get("protocol") != "off"
    await Connection(socket, here, who, own, name, readonly=readonly, protocol=protocol).serve()
