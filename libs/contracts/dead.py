"""What could not be handled, kept with the reason until somebody replays or deletes it."""

from typing import Literal

from libs.contracts.envelope import Message, Time


class DeadLetter(Message):
    """One message that was given up. `sequence` is its place on the dead-letter stream and its id."""

    sequence: int
    reason: str
    error_kind: Literal["permanent", "exhausted", "schema", "advisory"]
    consumer: str
    stream: str
    subject: str
    stream_sequence: int
    deliveries: int
    died_at: Time
    payload: bytes = b""
