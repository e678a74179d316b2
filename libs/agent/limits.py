"""When a loop is stopped. Every reason is an exception whose text tells a person what happened and what to do next.

Stopped
├── LimitReached         what the run may use is used up
│   ├── CallLimit        model calls of this step
│   ├── TimeLimit        seconds of work of this step
│   ├── TokenLimit       tokens of the whole run
│   ├── MoneyLimit       dollars of the whole run
│   └── ContextLimit     the conversation no longer fits into the model's context
└── ModelStuck           the model gets nowhere; another attempt may do better
    ├── MalformedCalls   calls that cannot be read, one after the other
    ├── FailedCalls      calls that fail, one after the other
    ├── RepeatedCalls    the same call again and again, with nothing changed in between
    └── NothingDone      replies without any tool call
"""

from collections import Counter
from dataclasses import dataclass, field

from libs.contracts.envelope import Usage


class Stopped(Exception):
    """The loop was stopped."""


class LimitReached(Stopped):
    """What the run may use is used up."""


class CallLimit(LimitReached):
    """Model calls."""


class TimeLimit(LimitReached):
    """Seconds."""

    def __init__(self, limits: "Limits") -> None:
        super().__init__(f"{limits.max_seconds:g} seconds of work were used; raise policy.edit_timeout_seconds or split the issue.")


class TokenLimit(LimitReached):
    """Tokens."""


class MoneyLimit(LimitReached):
    """Dollars."""


class ContextLimit(LimitReached):
    """The model's context."""


class ModelStuck(Stopped):
    """The model gets nowhere."""


class MalformedCalls(ModelStuck):
    """Calls that cannot be read."""


class FailedCalls(ModelStuck):
    """Calls that fail."""


class RepeatedCalls(ModelStuck):
    """The same call again and again."""


class NothingDone(ModelStuck):
    """Replies without any tool call."""


@dataclass(frozen=True)
class Limits:
    """What a loop may use. `spent` is what the run has used before this loop; tokens and money are counted over the run."""

    max_calls: int = 50
    max_seconds: float = 600.0
    max_tokens: int | None = None
    ceiling_usd: float | None = None
    spent: Usage = field(default_factory=Usage)
    context_tokens: int = 128_000
    max_output_tokens: int = 8192
    malformed_in_a_row: int = 3
    failed_in_a_row: int = 10
    same_calls_refused: int = 3
    same_calls_stopped: int = 5
    nudges: int = 2


@dataclass
class Meter:
    """Counts against the limits. It is moved by recorded entries as by new ones, so a resumed loop stands where it stood.

    `forgiven` is the number of calls after which a person let the loop go on: what happened up to there stops nothing any more.
    """

    limits: Limits
    forgiven: int = 0
    calls: int = 0
    _malformed: int = 0
    _failed: int = 0
    _silent: int = 0
    _same: Counter[str] = field(default_factory=Counter)

    def before_call(self, used: Usage, seconds: float) -> None:
        """Before a model call that is not recorded. Raises LimitReached; `used` and `seconds` are what this loop has used so far."""
        limits = self.limits
        if seconds >= limits.max_seconds:
            raise TimeLimit(limits)
        total = limits.spent + used
        calls = self.calls - self.forgiven
        if calls >= limits.max_calls:
            raise CallLimit(f"{calls} model calls were used of {limits.max_calls}; raise policy.max_model_calls or split the issue.")
        tokens = total.input_tokens + total.output_tokens
        if limits.max_tokens is not None and tokens >= limits.max_tokens:
            raise TokenLimit(f"the run used {tokens:,} tokens of {limits.max_tokens:,}; raise policy.max_tokens or split the issue.")
        if limits.ceiling_usd is not None and total.cost_usd >= limits.ceiling_usd > 0:
            raise MoneyLimit(f"the run cost ${total.cost_usd:.2f} of ${limits.ceiling_usd:.2f}; raise policy.ceiling_usd.")

    def reset(self) -> None:
        """A new task, or a person lets the loop go on."""
        self._malformed = self._failed = self._silent = 0
        self._same.clear()

    def silent(self, said: str, *, usable: bool) -> bool:
        """A reply without a tool call; whether it is to be taken for the summary. Raises NothingDone when nudging did not help."""
        self._silent += 1
        if self._silent <= self.limits.nudges:
            return False
        if not usable:
            self._stop(
                NothingDone(
                    f"the model answered {self._silent} times in a row without calling a tool"
                    + (f"; it said: {said[:200]!r}. " if said else ", with empty replies. ")
                    + "Choose a model that can call tools, or set another edit format for it."
                )
            )
        return usable

    def malformed(self, why: str) -> None:
        """A call could not be read. Raises MalformedCalls at the cap."""
        self._silent = 0
        self._malformed += 1
        if self._malformed >= self.limits.malformed_in_a_row:
            self._stop(MalformedCalls(f"{self._malformed} malformed tool calls in a row; the last: {why}"))

    def repeats(self, key: str, name: str) -> bool:
        """A call is about to run; whether it is one too many of its kind. Raises RepeatedCalls at the cap."""
        self._same[key] += 1
        times = self._same[key]
        if times >= self.limits.same_calls_stopped:
            self._stop(RepeatedCalls(f"the model called {name} {times} times with the same arguments and changed nothing in between."))
        return times >= self.limits.same_calls_refused

    def outcome(self, key: str, *, ok: bool, effects: bool, why: str) -> None:
        """A call has run. Raises FailedCalls at the cap."""
        self._silent = self._malformed = 0
        self._failed = 0 if ok else self._failed + 1
        if ok and effects:
            self._same = Counter({key: self._same[key]})
        if self._failed >= self.limits.failed_in_a_row:
            self._stop(FailedCalls(f"{self._failed} tool calls failed in a row; the last: {why}"))

    def forget_repeats(self) -> None:
        """Earlier outputs were left out of the prompt, so that asking again is right."""
        self._same.clear()

    def _stop(self, reason: ModelStuck) -> None:
        if self.calls > self.forgiven:
            raise reason
