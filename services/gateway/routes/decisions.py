"""A person's word about a run: cancel, approve, deny, retry. Each is one event on the journal, behind the fence."""

from datetime import UTC, datetime, timedelta
from typing import Annotated

from fastapi import APIRouter, Query

from libs.bus import Decide
from libs.contracts import decisions
from libs.contracts.fold import RunState
from libs.contracts.run import RunEvent
from libs.contracts.work import StepName
from services.gateway.context import Gateway, Here
from services.gateway.identity.caller import Caller, Who
from services.gateway.models import Decided, DecisionRequest
from services.gateway.problems import documented
from services.gateway.routes.runs import RunId
from services.gateway.runs import append_decided

router = APIRouter(tags=["decisions"], responses=documented(403, 404, 409, 410, 415))
_NOTHING_SAID = DecisionRequest()


def _by(who: Caller, body: DecisionRequest) -> str:
    """Who decides: the caller. At one's own installation people share a token, so they may sign."""
    return body.by if body.by is not None and who.kind == "owner" else who.user


async def _decide(here: Gateway, who: Caller, run_id: str, decide: Decide) -> Decided:
    appended = await append_decided(here.bus, run_id, decide, who)
    assert appended is not None
    sequence, event = appended
    return Decided(instanceId=run_id, sequence=sequence, type=event.type, step=getattr(event, "step", None))


@router.post("/api/runs/{run_id}/cancel", summary="Stop a run")
async def cancel(run_id: RunId, who: Who, here: Here, body: DecisionRequest = _NOTHING_SAID) -> Decided:
    """Works at any moment before the end; what is at work is stopped, 409 when the run has ended."""
    return await _decide(here, who, run_id, lambda state, _: decisions.cancel(state, _by(who, body), body.comment))


@router.post("/api/runs/{run_id}/approve", summary="Say yes to the open question")
async def approve(run_id: RunId, who: Who, here: Here, body: DecisionRequest = _NOTHING_SAID) -> Decided:
    """The step that asked goes on; 409 when nothing is asked."""
    return await _decide(here, who, run_id, lambda state, _: decisions.approve(state, _by(who, body), body.comment))


@router.post("/api/runs/{run_id}/deny", summary="Say no to the open question")
async def deny(run_id: RunId, who: Who, here: Here, body: DecisionRequest = _NOTHING_SAID) -> Decided:
    """The run is over; 409 when nothing is asked."""
    return await _decide(here, who, run_id, lambda state, _: decisions.deny(state, _by(who, body), body.comment))


@router.post("/api/runs/{run_id}/retry", summary="Send a step to work again")
async def retry(
    run_id: RunId,
    who: Who,
    here: Here,
    step: Annotated[StepName | None, Query(alias="from", description="by default the step that failed")] = None,
    body: DecisionRequest = _NOTHING_SAID,
) -> Decided:
    """The step handles the newest event of its kind once more; 409 while the run is at work, or when it never came to that step."""
    stuck_after = timedelta(seconds=here.settings.stuck_after_seconds)

    def decide(state: RunState, history: decisions.History) -> RunEvent:
        return decisions.retry(state, history, step, _by(who, body), datetime.now(UTC), stuck_after)

    return await _decide(here, who, run_id, decide)
