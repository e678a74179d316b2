"""The guard: finds out who asks before a route sees the request, and what the credential allows.

Order of a request: credential → caller → the path that a short-lived token opens → scope → route.
"""

import base64
import binascii
import hmac
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Literal, Protocol
from urllib.parse import parse_qs

from starlette.types import ASGIApp, Receive, Scope, Send

from services.gateway.identity import api_keys, tickets
from services.gateway.identity.api_keys import ApiKeys
from services.gateway.identity.caller import OWNER, Caller, forbidden, unauthorized
from services.gateway.identity.tickets import Tickets
from services.gateway.problems import Problem, of_error, response

OPEN_PATHS = frozenset({"/healthz", "/readyz"})
DOORS = ("/webhooks/", "/mail/decisions/")
"""Below them a secret of another kind is checked by the service that holds it."""
GIT_PREFIX = "/git/"
AGENTS_PREFIX = "/agents/"
CLOSE_UNAUTHORIZED = 4001
CLOSE_TRY_AGAIN = 1013


def is_open(path: str) -> bool:
    """Whether `path` is served without a credential of ours."""
    return path in OPEN_PATHS or path.startswith(DOORS)


class Verifier(Protocol):
    """Turns a bearer JWT into a caller, see `services.gateway.identity.jwks`."""

    async def caller(self, text: str) -> Caller: ...


class Identity:
    """Knows whom a credential stands for. The four kinds are told apart by their form."""

    def __init__(self, token: str, keys: ApiKeys, tickets: Tickets, verifier: Verifier | None = None) -> None:
        self._token = token.encode()
        self.keys = keys
        self.tickets = tickets
        self._verifier = verifier

    def is_owner(self, token: str | None) -> bool:
        """Whether this is the owner's token, compared in constant time."""
        return hmac.compare_digest(self._token, (token or "").encode("utf-8", "replace"))

    async def caller(self, token: str | None) -> Caller:
        """Whom a credential stands for.

        Raises:
            Problem: 401 when it is none, 503 when it cannot be checked.
        """
        if token is None:
            raise unauthorized()
        if self.is_owner(token):
            return OWNER
        if token.startswith(api_keys.PREFIX):
            return await self.keys.caller(token)
        if token.startswith(tickets.PREFIX):
            return self.tickets.caller(token, datetime.now(UTC))
        if self._verifier is not None and token.count(".") == 2:
            return await self._verifier.caller(token)
        raise unauthorized("this token is not valid here")

    async def of_query(self, query: bytes) -> Caller:
        """Whom the `token` of an address stands for: only short-lived ones are taken there. Raises Problem 401 or 503."""
        token = parse_qs(query.decode("latin-1"), max_num_fields=100).get("token", [""])[-1]
        if self.is_owner(token) or token.startswith(api_keys.PREFIX):
            raise unauthorized("a lasting token must not travel in an address: POST /api/tokens makes a short-lived one")
        return await self.caller(token or None)


def credential(headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    """The token of an Authorization header, bearer (RFC 6750) or the password of basic (RFC 7617); None when none can be read."""
    value = next((v for k, v in headers if k.lower() == b"authorization"), b"").decode("latin-1")
    scheme, _, rest = value.partition(" ")
    match scheme.lower():
        case "bearer":
            return rest.strip() or None
        case "basic":
            try:
                return base64.b64decode(rest.strip(), validate=True).decode().partition(":")[2] or None
            except (binascii.Error, UnicodeDecodeError):
                return None
        case _:
            return None


class Guard:
    """Middleware: strangers get the health checks and the doors; git routes check by themselves.

    Reading needs the scope `read`, everything else `write`; a route may ask for more. On a WebSocket the scope decides what may be sent.
    """

    def __init__(self, app: ASGIApp, identity: Identity) -> None:
        self._app = app
        self._identity = identity

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or is_open(scope["path"]) or scope["path"].startswith(GIT_PREFIX):
            await self._app(scope, receive, send)
            return
        try:
            caller = await self._admitted(scope)
        except Exception as error:  # noqa: BLE001 - outside of the framework's handlers, an error must still become a problem
            problem = of_error(error)
            if scope["type"] == "websocket":
                await _turn_away(problem, receive, send)
            else:
                await response(problem, scope["path"])(scope, receive, send)
            return
        scope.setdefault("state", {})["caller"] = caller
        await self._app(scope, receive, send)

    async def _admitted(self, scope: Scope) -> Caller:
        token = credential(scope["headers"])
        by_query = token is None and scope["path"].startswith(AGENTS_PREFIX) and b"token=" in scope["query_string"]
        caller = await (self._identity.of_query(scope["query_string"]) if by_query else self._identity.caller(token))
        if not caller.reaches(scope["path"]):
            raise unauthorized(f"this short-lived token opens {caller.resource} alone")
        reading = scope["type"] == "websocket" or scope["method"] in ("GET", "HEAD", "OPTIONS")
        needed: Literal["read", "write"] = "read" if reading else "write"
        if not caller.may(needed):
            raise forbidden(needed)
        return caller


async def _turn_away(problem: Problem, receive: Receive, send: Send) -> None:
    """Accept, then close with a code that a browser can see: a refused handshake has none."""
    await receive()
    await send({"type": "websocket.accept"})
    code = CLOSE_TRY_AGAIN if problem.status >= 500 else CLOSE_UNAUTHORIZED
    reason = "Unauthorized" if code == CLOSE_UNAUTHORIZED else "Try again"
    await send({"type": "websocket.close", "code": code, "reason": reason})
