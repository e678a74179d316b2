"""A real HTTP server in front of the artifact service's git side, as the gateway is."""

import asyncio
import base64
import contextlib
import socket
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import uvicorn

from services.artifact.domain import Limits
from services.artifact.repositories import Repositories
from services.artifact.smart_http import GitHttpRequest, SmartHttp
from services.artifact.tokens import TokenStore

NAME = "team/calc"
HOUR = timedelta(hours=1)


class Web:
    """A real HTTP server that bridges to the service, as the gateway does."""

    def __init__(self, root: Path, limits: Limits) -> None:
        self.repositories = Repositories(root, limits)
        self.now = datetime(2026, 1, 1, tzinfo=UTC)
        self.tokens = TokenStore(root / "tokens.sqlite", lambda: self.now)
        self.http = SmartHttp(self.repositories, self.tokens)
        self.spool = root / "spool"
        self.port = 0

    async def __call__(self, scope, receive, send) -> None:
        if scope["type"] != "http":
            return
        repository, _, rest = scope["path"].removeprefix("/git/").partition(".git/")
        headers = {name.decode().lower(): value.decode() for name, value in scope["headers"]}
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        self.spool.write_bytes(body)
        request = GitHttpRequest(
            scope["method"],
            rest,
            scope["query_string"].decode(),
            headers,
            self.spool if len(body) > 1000 else body,
            token=password(headers.get("authorization", "")),
        )
        answer = await self.http.serve(request, repository)
        try:
            raw = [(name.encode(), value.encode()) for name, value in answer.headers]
            await send({"type": "http.response.start", "status": answer.status, "headers": raw})
            async for piece in answer.body:
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body", "body": b""})
        finally:
            await answer.body.aclose()

    async def url(self, scope: str = "write", name: str = NAME) -> str:
        token = (await self.tokens.issue(name, scope, HOUR)).token
        return f"http://x:{token}@127.0.0.1:{self.port}/git/{name}.git"

    def plain(self, path: str, name: str = NAME) -> str:
        return f"http://127.0.0.1:{self.port}/git/{name}.git/{path}"


def password(header: str) -> str | None:
    return base64.b64decode(header.removeprefix("Basic ")).decode().partition(":")[2] if header.startswith("Basic ") else None


@contextlib.asynccontextmanager
async def serving(root: Path, limits: Limits | None = None) -> AsyncIterator[Web]:
    web = Web(root, limits or Limits())
    await web.repositories.create(NAME)
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    web.port = listener.getsockname()[1]
    server = uvicorn.Server(uvicorn.Config(web, log_level="error", lifespan="off"))
    running = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        yield web
    finally:
        server.should_exit = True
        await running
        listener.close()
