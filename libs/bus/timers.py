"""Timers belong to the server: set on `timer.<id>.<name>`, they fire on `due.<id>.<name>` of the same stream (JetStream message schedules).

A late timer never disturbs a fence: it fires outside of the journal, and its handler looks at the fold before it appends.
"""

import json
from datetime import UTC, datetime
from typing import Any

from libs.bus.connection import Connection

STREAM = "TIMERS"


class Timers:
    """Sets timers."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def set(self, id: str, name: str, at: datetime, payload: dict[str, Any]) -> int:  # noqa: A002 - the subject's own word
        """Fire once at `at`; set again under the same id and name, the earlier one is replaced."""
        headers = {
            "Nats-Schedule": f"@at {at.astimezone(UTC).isoformat(timespec='milliseconds').replace('+00:00', 'Z')}",
            "Nats-Schedule-Target": f"due.{id}.{name}",
            "Nats-Schedule-TTL": "168h",
        }
        body = json.dumps({"id": id, "name": name, **payload}).encode()
        return await self._connection.publish(f"timer.{id}.{name}", body, headers, STREAM)
