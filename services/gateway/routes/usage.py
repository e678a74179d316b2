"""What was used, and for operators a provider's own words."""

from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import Field

from libs.contracts.inference import ChatMessage, Day, DebugCompletion, DebugReply, Dimension, ReadUsage, UsageReport
from services.gateway import models
from services.gateway.context import Here
from services.gateway.identity.caller import LocalOperator, Who
from services.gateway.models import Line, Text
from services.gateway.problems import documented

router = APIRouter(tags=["usage"])


class DebugRequest(models.Request):
    """A question to one model."""

    message: Text = Field(default="Say hello.", min_length=1, max_length=20_000)
    model: Line | None = Field(default=None, max_length=200)
    max_output_tokens: int = Field(default=64, ge=1, le=4096)


_HELLO = DebugRequest()


@router.get("/api/usage", responses=documented(), summary="Tokens and money by day, user, run or turn, and model")
async def usage(
    who: Who,
    here: Here,
    by: Annotated[list[Dimension], Query(max_length=5, description="what the rows are split by")] = ["day", "model"],  # noqa: B006 - FastAPI copies it
    first_day: Annotated[Day | None, Query()] = None,
    last_day: Annotated[Day | None, Query()] = None,
    account: Annotated[Line | None, Query(max_length=200, description="`run:<id>` or `turn:<id>`")] = None,
    model: Annotated[Line | None, Query(max_length=200)] = None,
    everybody: Annotated[bool, Query(description="for operators: all users of the tenant")] = False,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 1000,
) -> UsageReport:
    """The caller's own; operators may see the whole tenant's."""
    all_users = everybody and who.may("operator")
    question = ReadUsage(
        tenant=who.tenant,
        user=None if all_users else who.user,
        first_day=first_day,
        last_day=last_day,
        account=account,
        model=model,
        by=tuple(by),
        limit=limit,
    )
    return await here.bus.ask(question)


@router.post("/api/debug/model", responses=documented(402, 403, 415, 502), summary="Ask one model and see what its provider says")
async def debug_model(who: LocalOperator, here: Here, body: DebugRequest = _HELLO) -> DebugReply:
    """Word for word but for secrets: no retry, no fallback, no cache. It is paid for."""
    question = DebugCompletion(
        model=body.model,
        messages=(ChatMessage(role="user", content=body.message),),
        max_output_tokens=body.max_output_tokens,
        **who.owned,
    )
    return await here.bus.ask(question)
