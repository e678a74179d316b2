"""The doors that strangers may knock on: what comes in is handed over raw, and whoever holds the secret checks it.

Invariant: a large body waits for one of a few places, and is gone from disk when its answer is there, so that no number of strangers
makes the server hold more than that.
"""

import asyncio
import contextlib
import gzip
import secrets
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Literal

from fastapi import Request
from fastapi.responses import JSONResponse

from libs.agent.blobs import put_blob
from libs.bus import NoAnswer, Refusal
from libs.contracts.artifact import ReleaseBlobs
from libs.contracts.envelope import BlobRef
from libs.contracts.github import WebhookAnswer
from services.gateway.clients import GatewayBus
from services.gateway.problems import RETRY_AFTER_SECONDS, Problem

INLINE_BYTES = 512 * 1024
GZIPPED_BYTES = 5 * 1024 * 1024
_PLACES = 8
_READ_SECONDS = 60.0
_CODES = {400: "bad-payload", 401: "bad-signature", 404: "not-found", 413: "content-too-large", 503: "unavailable"}


@dataclass(frozen=True)
class Body:
    """A body as the questions carry it."""

    body: bytes = b""
    encoding: Literal["identity", "gzip"] = "identity"
    blob: BlobRef | None = None
    kept_as: str = ""


class Doors:
    """Reads what comes in."""

    def __init__(self, bus: GatewayBus) -> None:
        self._bus = bus
        self._places = asyncio.Semaphore(_PLACES)

    @asynccontextmanager
    async def read(self, request: Request) -> AsyncIterator[Body]:
        """The whole body: as it is, gzipped, or kept in the artifact store when it is large, as long as the block lasts.

        Raises:
            Problem: 408 when it did not come in time. HTTPException 413 when it is over the limit.
        """
        held = bytearray()
        async with AsyncExitStack() as place:
            try:
                async with asyncio.timeout(_READ_SECONDS):
                    async for chunk in request.stream():
                        if len(held) <= INLINE_BYTES < len(held) + len(chunk):
                            await place.enter_async_context(self._places)
                        held += chunk
            except TimeoutError:
                raise Problem(408, "request-timeout", f"the body did not come within {_READ_SECONDS:g} s", "send it again") from None
            body = await self._packed(bytes(held))
        try:
            yield body
        finally:
            if body.kept_as:
                with contextlib.suppress(NoAnswer, Refusal):  # the store clears up by itself, later
                    await self._bus.ask(ReleaseBlobs(webhook=body.kept_as))

    async def _packed(self, raw: bytes) -> Body:
        if len(raw) <= INLINE_BYTES:
            return Body(raw)
        packed = await asyncio.to_thread(gzip.compress, raw, 1)
        if len(packed) <= GZIPPED_BYTES:
            return Body(packed, "gzip")
        name = secrets.token_hex(8)
        return Body(blob=await put_blob(self._bus.ask, f"webhook-{name}", raw), kept_as=name)


def require_media_type(request: Request, *allowed: str) -> None:
    """Raises Problem 415 when the body does not say that it is one of `allowed`."""
    said = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if said not in allowed:
        named = " or ".join(f"'Content-Type: {media}'" for media in allowed)
        raise Problem(415, "unsupported-media-type", f"a body of type {said[:100] or 'nothing'} is not taken here", f"send {named}")


def answered(said: WebhookAnswer) -> JSONResponse:
    """What the service said: a problem when it is a no. Raises Problem."""
    if said.status < 400:
        return JSONResponse({"detail": said.detail}, said.status)
    headers = {"Retry-After": str(RETRY_AFTER_SECONDS)} if said.status in (429, 503) else {}
    headers |= {"WWW-Authenticate": 'Bearer realm="webhooks"'} if said.status == 401 else {}
    raise Problem(said.status, _CODES.get(said.status, "refused"), said.detail, headers=headers)
