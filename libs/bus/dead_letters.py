"""What could not be handled: copied to the stream DEAD with its reason, acknowledged there, and only then taken off its own stream."""

import json
from datetime import UTC, datetime
from typing import Any, Literal

from nats.aio.msg import Msg

from libs.bus.connection import Connection, status_of
from libs.bus.delivery import Delivery
from libs.bus.errors import Retryable
from libs.bus.subjects import token
from libs.contracts.dead import DeadLetter

STREAM = "DEAD"
ErrorKind = Literal["permanent", "exhausted", "schema", "advisory"]


class DeadLetters:
    """Writes, lists, shows and removes dead letters."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def bury(self, delivery: Delivery, reason: str, kind: ErrorKind, correlation: str = "-") -> int:
        """Copy one delivery; returns the letter's sequence once it is stored.

        Raises:
            Retryable: it was not stored; the delivery must not be acknowledged.
        """
        return await self.put(
            DeadLetter(
                sequence=0,
                reason=reason[:4000],
                error_kind=kind,
                consumer=delivery.consumer,
                stream=delivery.stream,
                subject=delivery.subject,
                stream_sequence=delivery.sequence,
                deliveries=delivery.number,
                died_at=datetime.now(UTC),
                payload=delivery.payload,
            ),
            delivery.headers,
            correlation,
        )

    async def put(self, letter: DeadLetter, headers: dict[str, str], correlation: str) -> int:
        """Store a letter. The same delivery buried twice within two minutes is one letter."""
        meta = json.dumps(letter.model_dump(mode="json", exclude={"payload", "sequence"}))  # headers are ASCII
        kept = {f"Original-{k}": v for k, v in headers.items() if not k.lower().startswith("nats-")}
        identity = {"Nats-Msg-Id": f"{letter.consumer}-{letter.stream}-{letter.stream_sequence}-{letter.deliveries}"}
        subject = f"dead.{token(letter.consumer)}.{token(correlation)}"
        return await self._connection.publish(subject, letter.payload, {"Letter": meta, **kept, **identity}, STREAM)

    async def show(self, sequence: int) -> DeadLetter | None:
        """One letter; None when there is none of that sequence."""
        reply = await self._connection.call(f"$JS.API.DIRECT.GET.{STREAM}", json.dumps({"seq": sequence}).encode())
        return _letter(reply) if status_of(reply) is None else None

    async def original_headers(self, sequence: int) -> dict[str, str]:
        """The headers that the message carried when it died."""
        reply = await self._connection.call(f"$JS.API.DIRECT.GET.{STREAM}", json.dumps({"seq": sequence}).encode())
        return {k.removeprefix("Original-"): v for k, v in (reply.headers or {}).items() if k.startswith("Original-")}

    async def list(self, after: int = 0, limit: int = 50) -> list[DeadLetter]:
        """Letters after the sequence `after`, oldest first."""
        request = json.dumps({"seq": after + 1, "next_by_subj": "dead.>", "batch": limit, "max_bytes": 6_000_000}).encode()
        found: list[DeadLetter] = []
        async for message in self._connection.collect(f"$JS.API.DIRECT.GET.{STREAM}", request):
            status = status_of(message)
            if status in ("404", "204"):
                break
            if status is not None:
                raise Retryable(f"the dead letters cannot be read: {status}")
            found.append(_letter(message))
        return found

    async def remove(self, sequence: int) -> bool:
        """Delete a letter for good."""
        answer = await self._connection.api(f"STREAM.MSG.DELETE.{STREAM}", {"seq": sequence})
        return bool(answer.get("success"))


def _letter(message: Msg) -> DeadLetter:
    headers: dict[str, Any] = dict(message.headers or {})
    meta = json.loads(headers["Letter"])
    return DeadLetter.model_validate(meta | {"sequence": int(headers["Nats-Sequence"])}).model_copy(update={"payload": message.data})
