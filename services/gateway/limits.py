"""How much a request may carry: checked while it streams in, so that nothing over the limit is ever held."""

from fastapi import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from services.gateway.identity.guard import GIT_PREFIX
from services.gateway.problems import Problem, response

_MAX_HEADERS = 100
_CHAT_PREFIXES = ("/api/chat", "/v1/", "/agents/")


class TooLarge(HTTPException):
    """The body is over the limit. An HTTPException, so that the framework passes it through body parsing."""

    def __init__(self, limit: int) -> None:
        super().__init__(413, f"the body is larger than {limit:,} bytes")


class Limits:
    """Middleware: headers over the limit are 431, a body over the limit is 413, both before a route sees them."""

    def __init__(
        self, app: ASGIApp, *, body_bytes: int, chat_body_bytes: int, door_body_bytes: int, git_body_bytes: int, header_bytes: int
    ) -> None:
        self._app = app
        self._body_bytes = body_bytes
        self._larger = {_CHAT_PREFIXES: chat_body_bytes, ("/webhooks/",): door_body_bytes, (GIT_PREFIX,): git_body_bytes}
        self._header_bytes = header_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        problem = self._head_problem(scope)
        if problem is not None:
            await response(problem, scope["path"])(scope, receive, send)
            return
        await self._app(scope, self._counted(scope, receive), send)

    def _limit(self, scope: Scope) -> int:
        path = str(scope["path"])
        return next((limit for prefixes, limit in self._larger.items() if path.startswith(prefixes)), self._body_bytes)

    def _head_problem(self, scope: Scope) -> Problem | None:
        headers: list[tuple[bytes, bytes]] = scope["headers"]
        total = sum(len(k) + len(v) for k, v in headers) + len(scope.get("raw_path") or b"") + len(scope["query_string"])
        if len(headers) > _MAX_HEADERS or total > self._header_bytes:
            return Problem(
                431, "headers-too-large", f"the request's head is larger than {self._header_bytes:,} bytes", "send fewer headers"
            )
        declared = next((v for k, v in headers if k == b"content-length"), b"0")
        limit = self._limit(scope)
        if declared.isdigit() and int(declared) > limit:
            return Problem(413, "content-too-large", f"the body is larger than {limit:,} bytes", "send less at once")
        return None

    def _counted(self, scope: Scope, receive: Receive) -> Receive:
        limit, seen = self._limit(scope), 0

        async def counted() -> Message:
            nonlocal seen
            message = await receive()
            seen += len(message.get("body", b""))
            if seen > limit:
                raise TooLarge(limit)
            return message

        return counted


class JsonOnly:
    """Middleware: a body for the API is JSON and says so, else 415 with the header to set."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"].startswith(("/api/", "/v1/", "/agents/")) and not _says_json(scope["headers"]):
            problem = Problem(415, "unsupported-media-type", "a body must be JSON", "send the header 'Content-Type: application/json'")
            await response(problem, scope["path"])(scope, receive, send)
            return
        await self._app(scope, receive, send)


def _says_json(headers: list[tuple[bytes, bytes]]) -> bool:
    found = dict(headers)
    if found.get(b"content-length", b"0") == b"0" and b"transfer-encoding" not in found:
        return True
    media = found.get(b"content-type", b"").partition(b";")[0].strip().lower()
    return media == b"application/json" or (media.startswith(b"application/") and media.endswith(b"+json"))
