"""CloudEvents in over HTTP: stored on INBOX, then acknowledged."""

import hashlib
from typing import Any
from urllib.parse import quote

from fastapi import APIRouter, Request

from libs.contracts.envelope import JsonObject
from libs.contracts.inbound import CloudEvent
from services.gateway import cloud_events
from services.gateway.context import Gateway, Here
from services.gateway.domain import check_source, structured
from services.gateway.identity.caller import Caller, Who
from services.gateway.models import EventAccepted, EventsAccepted
from services.gateway.problems import Problem, documented
from services.gateway.views import links

router = APIRouter(tags=["events"])
_EXAMPLE = {
    "specversion": "1.0",
    "id": "7",
    "source": "https://tracker.example.org/app",
    "type": "agent-coder.solve-issue",
    "data": {"issue": {"id": "42", "title": "README spells Worker as Wrokr"}, "repo": "https://example.org/team/app.git"},
}
_EVENT: dict[str, Any] = {"schema": {"$ref": "#/components/schemas/CloudEvent"}, "example": _EXAMPLE}
_BODY: dict[str, Any] = {
    "required": True,
    "content": {
        cloud_events.STRUCTURED: _EVENT,
        cloud_events.BATCH: {"schema": {"type": "array", "maxItems": 100, "items": _EVENT["schema"]}, "example": [_EXAMPLE]},
        "application/json": {"schema": {"description": "the data alone, with the attributes in `ce-` headers; or as above"}},
    },
}


@router.post(
    "/api/events", status_code=202, responses=documented(403, 415), summary="Send CloudEvents", openapi_extra={"requestBody": _BODY}
)
async def take_events(request: Request, who: Who, here: Here) -> EventsAccepted:
    """One event or a batch, structured or binary. The same event sent twice (same `source` and `id`) opens one run."""
    try:
        events = cloud_events.parse_http(request.headers, await request.body())
    except cloud_events.InboundError as error:
        raise Problem(422, "invalid-event", str(error), "see CloudEvents 1.0; GET /openapi.json has an example") from error
    with here.bus.span("POST /api/events", request.headers):
        return EventsAccepted(events=[await _store(here, who, event) for event in events])


async def _store(here: Gateway, who: Caller, raw: JsonObject) -> EventAccepted:
    event = cloud_events.checked(raw)
    headers = {"content-type": cloud_events.STRUCTURED, "Nats-Msg-Id": _identity(event, who)}
    if not who.local:
        headers |= {cloud_events.HEADER_TENANT: who.tenant, cloud_events.HEADER_USER: quote(who.user, safe="")}
        _check(event, who)
    sequence = await here.bus.inbound(event.source, event.type, structured(raw), headers)
    run_id = cloud_events.run_id_of(event, who.tenant, who.user)
    return EventAccepted(
        id=event.id,
        source=event.source,
        sequence=sequence,
        instanceId=run_id,
        status_url=links(run_id).status_url if run_id else None,
    )


def _check(event: CloudEvent, who: Caller) -> None:
    """What a tenant sends is understood before it is stored: only the installation's own dead letters can be read by anybody."""
    try:
        check_source(cloud_events.command_of(event).repo, who.tenant)
    except cloud_events.InboundError as error:
        raise Problem(422, "invalid-event", str(error), "see CloudEvents 1.0; GET /openapi.json has an example") from error


def _identity(event: CloudEvent, who: Caller) -> str:
    sender = "" if who.local else f"{who.tenant}\0{who.user}\0"
    return hashlib.sha256(f"{sender}{event.source}\0{event.id}".encode()).hexdigest()
