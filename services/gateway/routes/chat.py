"""Chat: a message in, a stream out; come back to it, stop it, answer what it asks."""

from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request, Response
from pydantic import Field
from starlette.responses import StreamingResponse

from libs.contracts.envelope import Identifier
from services.gateway import models
from services.gateway.chat.names import session_id_of
from services.gateway.chat.replies import reply
from services.gateway.chat.requests import Answer, ChatRequest, output_text
from services.gateway.context import Here
from services.gateway.identity.caller import Who
from services.gateway.models import Text
from services.gateway.problems import Problem, documented, not_found

router = APIRouter(tags=["chat"])
ChatId = Annotated[str, Path(min_length=1, max_length=256, description="the conversation's id, as the client calls it")]
AgentName = Annotated[Identifier, Query(description="of an agent other than the default one")]
_STREAM: dict[str, Any] = {
    "description": "`data: {chunk}` for each UI-message chunk of AI SDK 6, then `data: [DONE]`; with `Accept: text/plain` the text alone",
    "content": {"text/event-stream": {}, "text/plain": {"schema": {"type": "string"}}},
}
_STREAMED: dict[int | str, dict[str, Any]] = {200: _STREAM}


class CallAnswer(models.Request):
    """What is said about a call that waits: `output` or `error` of a client's tool, `approved` for consent."""

    call_id: str = Field(min_length=1, max_length=200)
    output: Any = None
    error: Text | None = Field(default=None, max_length=4000, description="why the tool failed, or why consent is denied")
    approved: bool | None = None
    turn: Identifier | None = Field(default=None, description="by default the one that the conversation works on")


class Answered(models.Request):
    """The answer is on the journal."""

    turn: str
    unanswered: list[str] = Field(description="the calls that still wait; when there are none the turn goes on")


class CancelRequest(models.Request):
    """Why, and which turn."""

    reason: Text = Field(default="", max_length=4000)
    turn: Identifier | None = None


class Cancelled(models.Request):
    """The turn that was stopped; none when nothing was at work."""

    turn: str | None = None


_NO_REASON = CancelRequest()


@router.post(
    "/api/chat",
    response_class=StreamingResponse,
    responses=documented(402, 403, 404, 409, 415, 429, 502) | _STREAMED,
    summary="Say something and get an answer",
    openapi_extra={"x-event": "turn.opened"},
)
async def chat(body: ChatRequest, request: Request, who: Who, here: Here) -> Response:
    """The answer streams while it is written, with or without a reader. The headers `x-session-id` and `x-turn-id` say where it is kept."""
    await here.models.require(body.model)
    body = body.model_copy(update={"agent": await here.agents.name_of(body.agent)})
    async with here.streams.room(who) as room:
        with here.bus.span("POST /api/chat", request.headers):
            asked = await here.turns.ask(who, body, body.conversation)
        return await reply(here, who, asked, room, plain=_wants_text(request))


@router.get(
    "/api/chat/{chat_id}/stream",
    response_class=StreamingResponse,
    responses=documented(404, 429) | _STREAMED | {204: {"description": "Nothing is at work"}},
    summary="Come back to the answer that is being written",
)
async def resume(
    chat_id: ChatId,
    request: Request,
    who: Who,
    here: Here,
    agent: AgentName = "assistant",
    turn: Annotated[Identifier | None, Query(description="this one, also when it has ended meanwhile or waits")] = None,
) -> Response:
    """What was written so far, since the last answer to a call, and what follows, each once. A turn that waits is not at work."""
    session_id = session_id_of(chat_id, agent)
    turn_id = turn or (await here.turns.active(who, session_id)).active
    asked = await here.turns.follow(who, turn_id, whole=turn is not None) if turn_id else None
    if asked is not None and turn and asked.session_id != session_id:
        raise not_found("there is no such turn in this conversation", "POST …/answers and the header x-turn-id name turns")
    if asked is None or asked.unanswered or (asked.ended and turn is None):
        return Response(status_code=204)
    async with here.streams.room(who) as room:
        return await reply(here, who, asked, room, plain=_wants_text(request))


@router.post("/api/chat/{chat_id}/cancel", responses=documented(404, 415), summary="Stop the answer")
async def cancel_turn(chat_id: ChatId, who: Who, here: Here, body: CancelRequest = _NO_REASON, agent: AgentName = "assistant") -> Cancelled:
    """The model's stream is stopped too; what was written is kept."""
    turn = body.turn or (await here.turns.active(who, session_id_of(chat_id, agent))).active
    stopped = turn is not None and await here.turns.cancel(who, turn, body.reason)
    return Cancelled(turn=turn if stopped else None)


@router.post("/api/chat/{chat_id}/answers", responses=documented(404, 409, 415), summary="Answer a call that waits")
async def answer_call(chat_id: ChatId, body: CallAnswer, who: Who, here: Here, agent: AgentName = "assistant") -> Answered:
    """A tool's output, or consent. Answered twice, the first answer counts. Follow what comes with GET …/stream?turn=…"""
    turn = body.turn or (await here.turns.active(who, session_id_of(chat_id, agent))).active
    if turn is None:
        raise Problem(409, "no-such-call", "nothing is at work in this conversation", "GET the session's messages shows what waits")
    given = [body.approved is not None, body.output is not None, body.approved is None and body.error is not None]
    if sum(given) != 1:
        raise Problem(
            422, "invalid-request", "send one of output, error and approved", "an error beside approved is the reason of a denial"
        )
    output = None if body.output is None else output_text(body.output)
    asked = await here.turns.answer(who, turn, [Answer(call_id=body.call_id, approved=body.approved, output=output, error=body.error)])
    return Answered(turn=turn, unanswered=[call.call_id for call in asked.unanswered])


def _wants_text(request: Request) -> bool:
    accepted = request.headers.get("accept", "")
    return "text/plain" in accepted and "text/event-stream" not in accepted
