"""A breaker per model: after too many failures in a row the model is left alone for a while, then one call tries it.

Closed: every call goes. Open: none goes until the cooldown is over. Half open: exactly one call goes; its end closes or opens the breaker.
Only failures that may pass (429, 5xx, timeouts, lost connections) count. State is of this process (docs/decisions/0030).
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from services.inference.domain import ProviderFailure

Outcome = Literal["answered", "failed", "unknown"]


class HeldBack(ProviderFailure):
    """The model was not asked: its breaker is open."""


@dataclass(frozen=True)
class Ticket:
    """The right to make one call. `probe`: it is the one that tries the model after a cooldown."""

    probe: bool


class Breaker:
    """The breaker of one model."""

    def __init__(self, failures: int = 5, cooldown_seconds: float = 120.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit = failures
        self._cooldown = cooldown_seconds
        self._clock = clock
        self._failures = 0
        self._open_until: float | None = None
        self._probing = False
        self._last = ""

    @property
    def state(self) -> Literal["closed", "open", "half_open"]:
        """What the next call meets."""
        if self._open_until is None:
            return "closed"
        return "half_open" if self._clock() >= self._open_until else "open"

    @property
    def allows(self) -> bool:
        """Whether a call may go now."""
        return self.state == "closed" or (self.state == "half_open" and not self._probing)

    def check(self) -> None:
        """Raise HeldBack when `enter` would."""
        if not self.allows:
            wait = max(1.0, (self._open_until or 0.0) - self._clock())
            what = "a call tries it" if self._probing else f"it is tried again in {wait:.0f} s"
            detail = f"not asked, because it failed {self._failures} times in a row, the last time with: {self._last}; {what}"
            raise HeldBack("upstream", detail, retryable=True, retry_after_seconds=wait)

    def enter(self) -> Ticket:
        """Begin a call.

        Raises:
            HeldBack: the breaker is open, or another call is the probe.
        """
        self.check()
        self._probing = self.state == "half_open"
        return Ticket(self._probing)

    def leave(self, ticket: Ticket, outcome: Outcome, detail: str = "") -> None:
        """End a call. `answered`: the model spoke, be it an error of the asker's; `unknown`: the call was cancelled."""
        if ticket.probe:
            self._probing = False
        if outcome == "answered":
            self._failures, self._open_until = 0, None
        elif outcome == "failed" and (ticket.probe or self._open_until is None):
            self._failures += 1
            self._last = detail
            if ticket.probe or self._failures >= self._limit:
                self._open_until = self._clock() + self._cooldown


class Breakers:
    """The breakers of all models by name."""

    def __init__(self, failures: int = 5, cooldown_seconds: float = 120.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._settings = (failures, cooldown_seconds, clock)
        self._breakers: dict[str, Breaker] = {}

    def of(self, model: str) -> Breaker:
        """The breaker of a model."""
        if model not in self._breakers:
            self._breakers[model] = Breaker(*self._settings)
        return self._breakers[model]
