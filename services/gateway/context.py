"""What every route works with, made once per application."""

import asyncio
from dataclasses import dataclass, field
from typing import Annotated

from fastapi import Depends, Request

from services.gateway.chat.agents import Directory
from services.gateway.chat.streams import Streams
from services.gateway.chat.turns import Turns
from services.gateway.clients import GatewayBus
from services.gateway.doors import Doors
from services.gateway.identity.guard import Identity
from services.gateway.rate import RateLimiter
from services.gateway.runs import ModelCheck
from services.gateway.settings import GatewaySettings


@dataclass(frozen=True)
class Gateway:
    """The parts that routes share. `stopping` is set when the server goes down."""

    bus: GatewayBus
    settings: GatewaySettings
    identity: Identity
    models: ModelCheck
    limiter: RateLimiter
    turns: Turns
    agents: Directory
    streams: Streams
    doors: Doors
    stopping: asyncio.Event = field(default_factory=asyncio.Event)


def gateway_of(request: Request) -> Gateway:
    """The parts of the application that serves `request`."""
    found = request.app.state.gateway
    assert isinstance(found, Gateway)
    return found


async def here_of(request: Request) -> Gateway:
    """`gateway_of` as a dependency: FastAPI runs a plain function in a thread, which costs each request a hop."""
    return gateway_of(request)


async def base_url_of(request: Request) -> str:
    """How the client reaches this server."""
    return gateway_of(request).settings.public_url or str(request.base_url)


Here = Annotated[Gateway, Depends(here_of)]
BaseUrl = Annotated[str, Depends(base_url_of)]
