"""Compare-and-set on a key-value bucket: a stream that keeps the last value of each key."""

import json

from libs.bus.connection import Connection, status_of
from libs.bus.errors import Retryable

_BATCH = 1000


class Kv:
    """One bucket, declared in `libs.bus.topology` as `KV_<bucket>`. Keys are subject tokens (`libs.bus.subjects.token`)."""

    def __init__(self, connection: Connection, bucket: str) -> None:
        self._connection = connection
        self._bucket = bucket

    async def get(self, key: str) -> tuple[bytes, int] | None:
        """The value and its revision; None when the key was never put or has expired."""
        reply = await self._connection.call(f"$JS.API.DIRECT.GET.KV_{self._bucket}.$KV.{self._bucket}.{key}", b"")
        status = status_of(reply)
        if status == "404":
            return None
        if status is not None:
            raise Retryable(f"bucket {self._bucket} cannot be read: {status}")
        return reply.data, int((reply.headers or {})["Nats-Sequence"])

    async def put(self, key: str, value: bytes, expected_revision: int | None = None) -> int:
        """Store and return the new revision. With `expected_revision` (0: the key must be new) only when that is the last one.

        Raises:
            Fenced: somebody else put the key meanwhile.
        """
        headers = {} if expected_revision is None else {"Nats-Expected-Last-Subject-Sequence": str(expected_revision)}
        return await self._connection.publish(f"$KV.{self._bucket}.{key}", value, headers, f"KV_{self._bucket}")

    async def delete(self, key: str, revision: int) -> None:
        """Drop a key's value, unless it was put again after `revision`.

        Raises:
            Retryable: the server refused.
        """
        request = {"filter": f"$KV.{self._bucket}.{key}", "seq": revision + 1}
        if error := (await self._connection.api(f"STREAM.PURGE.KV_{self._bucket}", request)).get("error"):
            raise Retryable(f"a key of the bucket {self._bucket} cannot be dropped: {error.get('description', '')}")

    async def scan(self, pattern: str) -> list[tuple[str, bytes]]:
        """All keys under a subject pattern (`*` one token, a closing `>` one or more) with their values, the one put last at the end."""
        prefix, found, after = f"$KV.{self._bucket}.", list[tuple[str, bytes]](), 0
        while True:
            request = {"seq": after + 1, "next_by_subj": prefix + pattern, "batch": _BATCH, "max_bytes": 4_000_000}
            async for message in self._connection.collect(f"$JS.API.DIRECT.GET.KV_{self._bucket}", json.dumps(request).encode()):
                status, headers = status_of(message), message.headers or {}
                if status == "404" or (status == "204" and headers.get("Nats-Num-Pending", "0") == "0"):
                    return found
                if status == "204":
                    break
                if status is not None:
                    raise Retryable(f"bucket {self._bucket} cannot be read: {status} {headers.get('Description', '')}")
                found.append((headers["Nats-Subject"].removeprefix(prefix), message.data))
                after = int(headers["Nats-Sequence"])
