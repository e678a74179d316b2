"""Git over smart HTTP (gitprotocol-http(5)), bridged to the artifact service: frames stream through, nothing is held whole."""

import secrets
from collections.abc import AsyncIterator
from typing import Any, Literal

from fastapi import APIRouter, Request
from fastapi.responses import Response, StreamingResponse

from libs.contracts.artifact import GitFrame, GitHead, PutChunk, ServeGit
from libs.contracts.envelope import BlobRef
from services.gateway.clients import GatewayBus
from services.gateway.context import Here
from services.gateway.identity.guard import credential
from services.gateway.problems import Problem, documented
from services.gateway.streamed import Streamed

router = APIRouter(prefix="/git", tags=["git"])
INLINE_BYTES = 512 * 1024
_FORWARDED = ("accept", "accept-encoding", "content-type", "content-encoding", "git-protocol")
_HOP_BY_HOP = frozenset({"connection", "content-length", "transfer-encoding", "keep-alive", "date", "server"})
_FRAMES = 8
Service = Literal["info/refs", "git-upload-pack", "git-receive-pack"]
_STREAM: dict[int | str, dict[str, Any]] = {200: {"description": "as git says", "content": {"application/octet-stream": {}}}}


@router.get("/{repository:path}.git/info/refs", responses=documented(403, 404) | _STREAM, summary="git: list references")
async def info_refs(repository: str, request: Request, here: Here) -> Response:
    """The first request of clone, fetch and push."""
    return await _serve(here.bus, await _question(here, request, repository, "info/refs"))


@router.post("/{repository:path}.git/git-upload-pack", responses=documented(403, 404) | _STREAM, summary="git: fetch")
async def upload_pack(repository: str, request: Request, here: Here) -> Response:
    """Clone and fetch."""
    return await _serve(here.bus, await _question(here, request, repository, "git-upload-pack"))


@router.post("/{repository:path}.git/git-receive-pack", responses=documented(403, 404) | _STREAM, summary="git: push")
async def receive_pack(repository: str, request: Request, here: Here) -> Response:
    """Push, with a token that may write."""
    return await _serve(here.bus, await _question(here, request, repository, "git-receive-pack"))


async def _question(here: Here, request: Request, repository: str, service_path: Service) -> ServeGit:
    token = credential(request.scope["headers"])
    if token is None:
        raise Problem(
            401,
            "authentication-required",
            "a token is needed",
            "use any user name, and as password the owner's token or one of POST /api/repos/{name}/token",
            headers={"WWW-Authenticate": 'Basic realm="agent-coder", charset="UTF-8"'},
        )
    trusted = here.identity.is_owner(token)
    body, blob = await _body(here.bus, request)
    return ServeGit(
        repository=repository,
        method="GET" if request.method == "GET" else "POST",
        service_path=service_path,
        query=request.url.query,
        headers={k: request.headers[k] for k in _FORWARDED if k in request.headers},
        token=None if trusted else token,
        trusted=trusted,
        body=body,
        body_blob=blob,
    )


async def _body(bus: GatewayBus, request: Request) -> tuple[bytes, BlobRef | None]:
    """The request's body: inline when it is small, else as a blob that was put piece by piece while it came in."""
    held = bytearray()
    offset, upload = 0, f"git-{secrets.token_hex(12)}"
    async for chunk in request.stream():
        held += chunk
        while len(held) > INLINE_BYTES:
            piece = bytes(held[:INLINE_BYTES])
            await bus.ask(PutChunk(upload_id=upload, owner="git", offset=offset, data=piece))
            offset += len(piece)
            del held[:INLINE_BYTES]
    if offset == 0:
        return bytes(held), None
    put = await bus.ask(PutChunk(upload_id=upload, owner="git", offset=offset, data=bytes(held), last=True))
    return b"", put.blob


async def _serve(bus: GatewayBus, question: ServeGit) -> Response:
    """A slow git client holds back the artifact service."""
    frames = Streamed(bus, question, GitFrame, _FRAMES)
    try:
        first, head = await _begun(frames)
    except BaseException:
        await frames.close()
        raise
    headers = {k: v for k, v in head.headers if k.lower() not in _HOP_BY_HOP}
    return StreamingResponse(_data(frames, first), head.status, headers)


async def _begun(frames: Streamed[GitFrame]) -> tuple[GitFrame, GitHead]:
    """The first frame, which has status and headers. Raises what the question raises."""
    first = await frames.next()
    if first is None or first.head is None:
        raise Problem(502, "bad-gateway", "the artifact service gave no answer to git", "try again")
    return first, first.head


async def _data(frames: Streamed[GitFrame], first: GitFrame) -> AsyncIterator[bytes]:
    """The body. An answer that breaks off raises, so that the connection breaks and git does not take it for the whole."""
    frame: GitFrame | None = first
    try:
        while frame is not None:
            if frame.data:
                yield frame.data
            frame = await frames.next()
    finally:
        await frames.close()
