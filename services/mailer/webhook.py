"""Answers `ReceiveMail`: a provider pushes a raw message over HTTP, and shows the secret instead of an address to connect from."""

import asyncio
import base64
import binascii
import hmac
import zlib
from email.utils import getaddresses

from libs.agent.blobs import get_blob
from libs.bus import Asker, Bus, Refusal, Retryable
from libs.contracts.github import WebhookAnswer
from libs.contracts.mail import ReceiveMail
from services.mailer.authentication import Peer
from services.mailer.inbound import MAX_RECIPIENTS, Inbound, NotTaken, Route
from services.mailer.parsing import Mail, Unreadable, parse

_TOLD = ("Delivered-To", "X-Original-To", "Envelope-To", "X-Envelope-To", "X-Forwarded-To", "To", "Cc")


class TooLarge(Exception):
    """The message is larger than is taken."""


class Pushed:
    """The HTTP door. `not_set` says what to set when no address takes mail, else None."""

    def __init__(self, bus: Bus, inbound: Inbound, secret: str, max_bytes: int, not_set: str | None) -> None:
        self._bus = bus
        self._inbound = inbound
        self._secret = secret.encode()
        self._max_bytes = max_bytes
        self._not_set = not_set

    async def __call__(self, question: ReceiveMail, _: Asker) -> WebhookAnswer:
        """202 when it is stored, 401, 413, 422 when it is refused, 503 when it may be taken later."""
        if self._not_set:
            return WebhookAnswer(status=503, detail=self._not_set)
        if not hmac.compare_digest(shown(question.authorization), self._secret):
            return WebhookAnswer(status=401, detail="bad_secret: send the mail's webhook secret as bearer token or basic password")
        try:
            raw = await self._raw(question)
            routes, sender = await self._envelope(question, raw)
            said = await self._inbound.take(raw, routes, Peer(None, "", sender or ""), envelope=sender is not None)
        except TooLarge as error:
            return WebhookAnswer(status=413, detail=f"too_large: {error}")
        except NotTaken as error:
            return WebhookAnswer(status=503 if error.code < 500 else 422, detail=error.why[:1000])
        except (Retryable, Refusal) as error:
            return WebhookAnswer(status=503, detail=str(error)[:1000])
        return WebhookAnswer(status=202, detail=said)

    async def _raw(self, question: ReceiveMail) -> bytes:
        raw = await get_blob(self._bus.ask, question.blob) if question.blob else question.body
        if question.encoding == "gzip":
            try:
                raw = await asyncio.to_thread(zlib.decompressobj(31).decompress, raw, self._max_bytes + 1)
            except zlib.error as error:
                raise NotTaken(554, "5.6.0", "unreadable: the body is no gzip") from error
        if len(raw) > self._max_bytes:
            raise TooLarge(f"at most {self._max_bytes} bytes are taken")
        if b"\0" in raw:
            raise NotTaken(554, "5.6.0", "unreadable: NUL bytes are not taken")
        if raw.count(b"\r") != raw.count(b"\r\n"):  # programs differ on whether a header ends there
            raise NotTaken(554, "5.6.0", "unreadable: a bare CR is not taken")
        return raw

    async def _envelope(self, question: ReceiveMail, raw: bytes) -> tuple[list[Route], str | None]:
        """Recipients and sender as the provider names them, else as the headers do. Raises NotTaken when nothing takes mail."""
        try:
            mail = await asyncio.to_thread(parse, raw)
        except Unreadable as error:
            raise NotTaken(554, "5.6.0", f"unreadable: {error}") from error
        wanted = [question.recipient] if question.recipient else recipients(mail)
        routes: dict[str, Route] = {}
        refusal = NotTaken(550, "5.1.1", "missing: it names no address that takes mail")
        for address in wanted:
            try:
                route = await self._inbound.route(address)
            except NotTaken as error:
                refusal = error
            else:
                routes[route.address] = route
        if not routes:
            raise refusal
        return list(routes.values()), question.sender.strip("<>") or _return_path(mail)


def recipients(mail: Mail) -> list[str]:
    """The addresses that the headers name, those of delivery first."""
    found = [address for name in _TOLD for _, address in getaddresses(mail.all(name)[:10])]
    return [address for address in dict.fromkeys(found) if "@" in address][:MAX_RECIPIENTS]


def _return_path(mail: Mail) -> str | None:
    told = mail.first("Return-Path")
    return told.strip().strip("<>") if told else None


def shown(authorization: str) -> bytes:
    """The secret in an Authorization header: a bearer token, or the password of basic authentication (RFC 7617), or nothing."""
    scheme, _, value = authorization.strip().partition(" ")
    if scheme.lower() == "bearer":
        return value.strip().encode("utf-8", "replace")
    if scheme.lower() != "basic":
        return b""
    try:
        return base64.b64decode(value.strip(), validate=True).partition(b":")[2]
    except (binascii.Error, ValueError):
        return b""
