"""What may stand between a model's tool call and its execution: a result given instead, or somebody who must answer first.

Invariant: a loop pauses only after every other call of the reply has its result, so that an answer finds nothing half done.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel

from libs.agent.tools import Tool
from libs.contracts.turn import PendingCall


@dataclass(frozen=True)
class Given:
    """The call is not run: this is what the model is told."""

    text: str
    ok: bool = True


@dataclass(frozen=True)
class Waits:
    """The call waits: for the client's output, or for a person's consent."""

    waits_for: Literal["client", "approval"]


Gate = Callable[[Tool[Any], BaseModel, str], Awaitable[Given | Waits | None]]
"""Asked with a tool, its arguments and the call id before a call without a recorded result; None lets it run."""


class Paused(Exception):
    """Calls wait for an answer; run the loop again when all of them have one."""

    def __init__(self, pending: tuple[PendingCall, ...]) -> None:
        super().__init__(f"{len(pending)} calls wait for an answer")
        self.pending = pending


async def open_gate(tool: Tool[Any], arguments: BaseModel, call_id: str) -> Given | Waits | None:
    """Lets every call run."""
    return None
