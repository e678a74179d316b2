"""The HTTP application: routes, middleware from the outside in, and the OpenAPI description that is the contract."""

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute

from libs.contracts.inbound import CloudEvent
from services.gateway import problems
from services.gateway.chat.agents import Directory
from services.gateway.chat.streams import Streams
from services.gateway.chat.turns import Turns
from services.gateway.clients import GatewayBus
from services.gateway.context import Gateway
from services.gateway.doors import Doors
from services.gateway.identity.api_keys import ApiKeys
from services.gateway.identity.guard import Guard, Identity, Verifier, is_open
from services.gateway.identity.tickets import Tickets
from services.gateway.limits import JsonOnly, Limits
from services.gateway.rate import RateLimit, RateLimiter
from services.gateway.routes import (
    agents,
    chat,
    dead,
    decisions,
    events,
    git,
    health,
    integrations,
    keys,
    mail,
    openai,
    remembering,
    repositories,
    runs,
    sessions,
    stream,
    usage,
    webhooks,
)
from services.gateway.runs import ModelCheck
from services.gateway.settings import GatewaySettings

ROUTERS = (
    chat.router,
    agents.router,
    openai.router,
    usage.router,
    sessions.router,
    remembering.router,
    runs.router,
    stream.router,
    decisions.router,
    events.router,
    repositories.router,
    git.router,
    dead.router,
    keys.router,
    webhooks.router,
    mail.router,
    integrations.router,
    health.router,
)


def create_app(
    bus: GatewayBus, settings: GatewaySettings, token: str, signing_key: bytes = b"", verifier: Verifier | None = None
) -> FastAPI:
    """The application. `app.state.gateway.stopping` is set by whoever serves it, when event streams shall end."""
    app = FastAPI(
        title="agent-coder",
        version="1",
        summary="An issue goes in, a verified commit comes out.",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        generate_unique_id_function=_operation_id,
    )
    identity = Identity(token, ApiKeys(bus), Tickets(signing_key or token.encode()), verifier)
    limiter = RateLimiter(bus, settings.rate_limit_requests, settings.rate_limit_window_seconds)
    models = ModelCheck(bus, timeout_seconds=settings.check_timeout_seconds, cache_seconds=settings.models_cache_seconds)
    app.state.gateway = Gateway(
        bus, settings, identity, models, limiter, Turns(bus), Directory(bus), Streams(settings.streams_per_user), Doors(bus)
    )
    for router in ROUTERS:
        app.include_router(router)
    problems.install(app, [route for router in ROUTERS for route in router.routes])
    app.add_middleware(JsonOnly)  # the last one added is the outermost
    knocking = RateLimiter(bus, settings.door_rate_limit_requests, settings.rate_limit_window_seconds)
    app.add_middleware(RateLimit, limiter=limiter, knocking=knocking)
    app.add_middleware(Guard, identity=identity)
    app.add_middleware(
        Limits,
        body_bytes=settings.body_limit_bytes,
        chat_body_bytes=settings.chat_body_limit_bytes,
        door_body_bytes=settings.door_body_limit_bytes,
        git_body_bytes=settings.git_body_limit_bytes,
        header_bytes=settings.header_limit_bytes,
    )
    app.openapi = lambda: _described(app)  # type: ignore[method-assign]  # FastAPI's documented way to extend the description
    return app


def _operation_id(route: APIRoute) -> str:
    return route.name


def _described(app: FastAPI) -> dict[str, Any]:
    """The OpenAPI document, with the token, the problems and the CloudEvent that no route declares as its body."""
    if app.openapi_schema:
        return app.openapi_schema
    document = get_openapi(
        title=app.title, version=app.version, summary=app.summary, routes=app.routes, separate_input_output_schemas=False
    )
    components = document.setdefault("components", {})
    schemas = components.setdefault("schemas", {})
    problem = problems.ProblemBody.model_json_schema(ref_template="#/components/schemas/{model}")
    schemas |= problem.pop("$defs") | {
        "Problem": problem,
        "OpenAIError": problems.OpenAIErrorBody.model_json_schema(),
        "CloudEvent": CloudEvent.model_json_schema(),
    }
    components["securitySchemes"] = {
        "bearer": {
            "type": "http",
            "scheme": "bearer",
            "description": "the owner's token (file `token` of the home folder), an API key, or a JWT of the configured issuer",
        },
        "basic": {"type": "http", "scheme": "basic", "description": "for git: any user name, a token as password"},
    }
    document["security"] = [{"bearer": []}]
    for path, operations in document["paths"].items():
        for operation in operations.values():
            if is_open(path):
                operation["security"] = []
            elif path.startswith("/git/"):
                operation["security"] = [{"basic": []}, {"bearer": []}]
    app.openapi_schema = document
    return document
