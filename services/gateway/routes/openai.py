"""`/v1`: what OpenAI's clients ask for. Errors have OpenAI's shape here."""

import secrets
import time
from typing import Annotated, Any

from fastapi import APIRouter, Path, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from pydantic import BaseModel

from libs.contracts.inference import Complete, DescribeModels
from services.gateway.context import Here
from services.gateway.feed import EventStream
from services.gateway.identity.caller import Who
from services.gateway.openai.answering import Answering
from services.gateway.openai.wire import ChunkWriter, CompletionRequest, completion, fields_of
from services.gateway.problems import documented_openai, not_found

router = APIRouter(prefix="/v1", tags=["openai"])
_ANSWER: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "OpenAI's `chat.completion`, or with `stream` its chunks",
        "content": {"application/json": {}, "text/event-stream": {}},
    }
}


class ModelView(BaseModel):
    """One model."""

    id: str
    object: str = "model"
    created: int = 0
    owned_by: str = "agent-coder"


class ModelList(BaseModel):
    """The models in the order of fallback."""

    object: str = "list"
    data: list[ModelView]


@router.post(
    "/chat/completions",
    response_class=StreamingResponse,
    responses=documented_openai(402, 403, 415, 429, 502) | _ANSWER,
    summary="A chat completion",
)
async def chat_completion(body: CompletionRequest, request: Request, who: Who, here: Here) -> Response:
    """Stateless: nothing is stored, the tools are the client's. Counted on the caller like everything else."""
    request_id, created = f"chatcmpl-{secrets.token_hex(12)}", int(time.time())
    fields = fields_of(body)
    with here.bus.span("POST /v1/chat/completions", request.headers):
        owner = {"tenant": who.tenant, "user": who.user, "plan": who.plan}
        question = Complete(request_id=request_id, account=request_id, purpose="v1", recorded=False, **owner, **fields)
        answering = Answering(here.bus, question)
        if not body.stream:
            return JSONResponse(completion(request_id, created, await answering.whole()))
        await answering.begin()
    options = body.stream_options
    writer = ChunkWriter(request_id, created, body.model, include_usage=options is not None and options.include_usage)
    return EventStream(answering.chunks(writer), here.settings.send_timeout_seconds)


@router.get("/models", responses=documented_openai(), summary="The models")
async def list_models(who: Who, here: Here) -> ModelList:
    """Those of the caller's plan."""
    found = await here.bus.ask(DescribeModels(plan=who.plan))
    return ModelList(data=[ModelView(id=model.name) for model in found.models])


@router.get("/models/{model:path}", responses=documented_openai(404), summary="One model")
async def show_model(model: Annotated[str, Path(min_length=1, max_length=200)], who: Who, here: Here) -> ModelView:
    """Whether it can be asked for."""
    found = await here.bus.ask(DescribeModels(plan=who.plan))
    if not any(known.name == model for known in found.models):
        raise not_found(f"there is no model {model}", "GET /v1/models lists them")
    return ModelView(id=model)
