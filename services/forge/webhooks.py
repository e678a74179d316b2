"""The answer to a webhook: its signature, its form, and the fact that is kept of it (GitHub, "Validating webhook deliveries").

Nothing that comes in makes an error of the server; 202 is said only when JetStream holds the fact.
"""

import hashlib
import hmac
import json
import logging
import re
import zlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qs

from libs.bus import NoAnswer, Refusal, Retryable
from libs.contracts.envelope import BlobRef
from libs.contracts.github import MAX_WEBHOOK_BYTES, GitHubDelivery, ReceiveWebhook, WebhookAnswer
from services.forge.payloads import reduce

log = logging.getLogger(__name__)
_SIGNATURE = re.compile(r"sha256=[0-9a-fA-F]{64}")
_GUID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_EVENT = re.compile(r"[a-z0-9_]{1,100}")
_JSON = "application/json"
_FORM = "application/x-www-form-urlencoded"
Keep = Callable[[GitHubDelivery], Awaitable[bool]]
ReadBlob = Callable[[BlobRef], Awaitable[bytes]]


class Rejected(Exception):
    """The request is answered with a status that is no success."""

    is_failure = False  # of a span (libs.telemetry)

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status


async def receive(question: ReceiveWebhook, secrets: Sequence[bytes], read_blob: ReadBlob, keep: Keep) -> WebhookAnswer:
    """Check a request of GitHub and keep its fact; `keep` says whether it was new."""
    try:
        body = await raw_body(question, read_blob)
        verify(body, question.headers.get("x-hub-signature-256", ""), secrets)
        return await _take(question.headers, body, keep)
    except Rejected as rejected:
        return WebhookAnswer(status=rejected.status, detail=str(rejected))
    except (Retryable, Refusal) as error:
        log.warning("a webhook could not be kept: %s", error)
        return WebhookAnswer(status=503, detail="the delivery could not be kept; it is asked for again")


async def _take(headers: Mapping[str, str], body: bytes, keep: Keep) -> WebhookAnswer:
    payload = parse(headers.get("content-type", ""), body)
    event, guid = headers.get("x-github-event", ""), headers.get("x-github-delivery", "")
    if not _EVENT.fullmatch(event) or not _GUID.fullmatch(guid):
        raise Rejected(400, "X-GitHub-Event and X-GitHub-Delivery are missing or malformed")
    if event == "ping":
        return WebhookAnswer(status=200, detail="pong")
    fact = reduce(event, guid, payload, datetime.now(UTC))
    if fact is None:
        return WebhookAnswer(status=202, detail="ignored: nothing here acts on this event")
    return WebhookAnswer(status=202, detail="taken" if await keep(fact) else "taken before")


async def raw_body(question: ReceiveWebhook, read_blob: ReadBlob) -> bytes:
    """The bytes that GitHub sent. Raises Rejected (400, 413), and what `read_blob` raises."""
    sent = question.body
    if question.blob is not None:
        _at_most(question.blob.size)
        try:
            sent = await read_blob(question.blob)
        except ValueError as error:
            raise NoAnswer(str(error)) from error
    if question.encoding == "gzip":
        sent = _unzip(sent)
    _at_most(len(sent))
    return sent


def _at_most(size: int) -> None:
    if size > MAX_WEBHOOK_BYTES:
        raise Rejected(413, f"the body is over {MAX_WEBHOOK_BYTES:,} bytes")


def _unzip(data: bytes) -> bytes:
    """Bounded, so that a small body cannot become a large one."""
    inflate = zlib.decompressobj(wbits=31)
    try:
        found = inflate.decompress(data, MAX_WEBHOOK_BYTES + 1)
    except zlib.error as error:
        raise Rejected(400, f"the body is not gzip: {error}") from error
    if len(found) <= MAX_WEBHOOK_BYTES and not inflate.eof:
        raise Rejected(400, "the gzipped body ends too early")
    return found


def verify(body: bytes, signature: str, secrets: Sequence[bytes]) -> None:
    """Compare `sha256=<hex>` with the HMAC of the body under each secret, in constant time. Raises Rejected 401."""
    if not _SIGNATURE.fullmatch(signature):
        raise Rejected(401, "X-Hub-Signature-256 is missing or malformed: set the webhook's secret")
    sent = bytes.fromhex(signature.removeprefix("sha256="))
    right = [hmac.compare_digest(hmac.digest(secret, body, hashlib.sha256), sent) for secret in secrets]
    if not any(right):
        raise Rejected(401, "the signature is wrong: is the webhook's secret the one that is set here?")


def parse(content_type: str, body: bytes) -> Mapping[str, Any]:
    """The JSON object of a body of either form that GitHub offers. Raises Rejected (400, 415)."""
    media = content_type.partition(";")[0].strip().lower()
    if media == _FORM:
        body = _payload_field(body)
    elif media != _JSON:
        raise Rejected(415, f"the content type must be {_JSON} or {_FORM}")
    try:
        found = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise Rejected(400, f"the body is not JSON: {error}"[:300]) from error
    if not isinstance(found, dict):
        raise Rejected(400, "the body is not a JSON object")
    return found


def _payload_field(body: bytes) -> bytes:
    try:
        fields = parse_qs(body.decode(), max_num_fields=20, encoding="utf-8", errors="strict")
    except ValueError as error:
        raise Rejected(400, f"the body is not a form: {error}"[:300]) from error
    if len(fields.get("payload", ())) != 1:
        raise Rejected(400, "the form has no field `payload`")
    return fields["payload"][0].encode()
