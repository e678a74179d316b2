"""API keys and short-lived tokens: make, list, revoke. A credential never gives more than it has itself."""

from datetime import UTC, datetime, timedelta
from typing import Annotated, Literal

from fastapi import APIRouter, Path, Response
from pydantic import Field, StringConstraints

from libs.contracts.envelope import Time
from services.gateway.context import Here
from services.gateway.identity.api_keys import KeyRecord
from services.gateway.identity.caller import SCOPES, Caller, Scope, Who, forbidden
from services.gateway.models import Request, Words
from services.gateway.problems import Problem, documented

router = APIRouter(tags=["identity"])
Segment = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.~-]{1,128}$")]


class KeyRequest(Request):
    """An API key to make."""

    name: Words = Field(max_length=100, examples=["ci"])
    scopes: list[Scope] = Field(default=["read", "write"], min_length=1, max_length=3)
    expires_in_days: int | None = Field(default=None, ge=1, le=3650, description="absent: until it is revoked")


class KeyView(Request):
    """What is known of a key. The key itself is shown once, when it is made."""

    id: str = Field(examples=["key_0123456789abcdef"])
    name: str
    scopes: list[Scope]
    hint: str = Field(description="its first and last characters", examples=["ack_ab12…wxyz"])
    created_at: Time
    expires_at: Time | None = None
    revoked_at: Time | None = None


class NewKey(KeyView):
    """A key that was just made."""

    key: str = Field(description="send it as 'Authorization: Bearer KEY'; it cannot be shown again")


class KeyList(Request):
    """The caller's keys, newest first."""

    keys: list[KeyView]


class TicketRequest(Request):
    """A short-lived token for one conversation of one agent, to be put in the address of a WebSocket."""

    agent: Segment = "assistant"
    name: Segment = "default"
    scopes: list[Literal["read", "write"]] = Field(default=["read", "write"], min_length=1, max_length=2)
    expires_in_seconds: int = Field(default=300, ge=10, le=3600)


class Ticket(Request):
    """The token and where it is good."""

    token: str
    resource: str = Field(description="the path that it opens, with everything below", examples=["/agents/assistant/default"])
    expires_at: Time


def _view(record: KeyRecord) -> KeyView:
    return KeyView(**record.model_dump(include=set(KeyView.model_fields)))


@router.post("/api/keys", status_code=201, responses=documented(403, 409, 415), summary="Make an API key")
async def create_key(body: KeyRequest, who: Who, here: Here, response: Response) -> NewKey:
    """Its scopes are among those of the credential that asks, which must not be a short-lived token."""
    _lasting(who)
    _within(who, body.scopes)
    expires_at = datetime.now(UTC) + timedelta(days=body.expires_in_days) if body.expires_in_days else None
    key, record = await here.identity.keys.make(who, body.name, frozenset(body.scopes), expires_at)
    response.headers["Location"] = f"/api/keys/{record.id}"
    response.headers["Cache-Control"] = "no-store"
    return NewKey(**_view(record).model_dump(), key=key)


@router.get("/api/keys", responses=documented(), summary="List your API keys")
async def list_keys(who: Who, here: Here) -> KeyList:
    """The revoked and expired ones too, until their place is needed."""
    return KeyList(keys=[_view(r) for r in await here.identity.keys.list(who)])


@router.delete("/api/keys/{key_id}", status_code=204, responses=documented(403, 404), summary="Revoke an API key")
async def revoke_key(key_id: Annotated[str, Path(min_length=1, max_length=64)], who: Who, here: Here) -> None:
    """It opens nothing from now on; revoked again, nothing changes."""
    await here.identity.keys.revoke(who, key_id)


@router.post("/api/tokens", responses=documented(403, 415), summary="A short-lived token for an address")
async def create_token(body: TicketRequest, who: Who, here: Here, response: Response) -> Ticket:
    """For clients that cannot set headers: `/agents/{agent}/{name}?token=TOKEN`. It cannot be revoked, only run out."""
    _lasting(who)
    _within(who, body.scopes)
    resource = f"/agents/{body.agent}/{body.name}"
    bound = who.model_copy(update={"scopes": frozenset(body.scopes), "resource": resource})
    token, expires_at = here.identity.tickets.make(bound, datetime.now(UTC), timedelta(seconds=body.expires_in_seconds))
    response.headers["Cache-Control"] = "no-store"
    return Ticket(token=token, resource=resource, expires_at=expires_at)


def _lasting(who: Caller) -> None:
    if who.kind == "ticket":
        raise Problem(
            403, "short-lived-token", "a short-lived token makes no other credentials", "use the credential that it was made with"
        )


def _within(who: Caller, scopes: list[Scope] | list[Literal["read", "write"]]) -> None:
    for scope in SCOPES:
        if scope in scopes and not who.may(scope):
            raise forbidden(scope)
