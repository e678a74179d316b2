"""The events of a run: as a live stream, or as pages."""

from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request

from libs.contracts.fold import fold
from services.gateway import runs
from services.gateway.context import Here
from services.gateway.feed import EventStream, Feed, event_view
from services.gateway.identity.caller import Who
from services.gateway.models import EventPage
from services.gateway.problems import Problem, documented
from services.gateway.routes.runs import RunId

router = APIRouter(tags=["runs"])
_STREAM: dict[str, Any] = {
    "description": (
        "`text/event-stream`: events of the journal with their sequence as `id`, `progress` events without one, "
        "a comment as heartbeat, and after the run's end one event `end` with `{run_id, status}`. "
        "`application/json` when that is asked for: a page of the journal."
    ),
    "content": {"text/event-stream": {"schema": {"type": "string"}}},
}


@router.get(
    "/api/runs/{run_id}/events",
    response_model=EventPage,
    responses=documented(404, 410) | {200: _STREAM},
    summary="Follow a run",
)
async def events(
    run_id: RunId,
    request: Request,
    here: Here,
    who: Who,
    after: Annotated[int | None, Query(ge=0, le=2**63 - 1, description="only events after this sequence")] = None,
    limit: Annotated[int, Query(ge=1, le=1000, description="of a JSON page")] = 200,
    last_event_id: Annotated[str | None, Header(alias="Last-Event-ID", max_length=64)] = None,
) -> Any:
    """Resumes after `Last-Event-ID` or `after`, without a gap and without repeating; the stream closes when the run has ended."""
    start = _start(after, last_event_id)
    history = await here.bus.journal.read(run_id)
    if not history:
        raise await runs.gone_or_unknown(here.bus, run_id, who)
    state = runs.visible(fold(history, run_id), who)
    if "application/json" in request.headers.get("accept", ""):
        found = [event_view(r) for r in history if r.sequence > start]
        more = found[limit - 1].sequence if len(found) > limit else None
        return EventPage(events=found[:limit], next_after=more, ended=state.ended)
    feed = Feed(here.bus, here.stopping, here.settings.heartbeat_seconds)
    return EventStream(feed.frames(history, run_id, start), here.settings.send_timeout_seconds)


def _start(after: int | None, last_event_id: str | None) -> int:
    if last_event_id is None:
        return after or 0
    if not last_event_id.isascii() or not last_event_id.isdecimal():
        raise Problem(422, "invalid-request", "Last-Event-ID is not the id of an event of this stream", "leave it out to start anew")
    return int(last_event_id)
