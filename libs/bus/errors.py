"""The errors that delivery understands, and the one decision about each.

    Exception
    ├── Retryable        it may work later: delivered again after a backoff, until the retries end
    │   └── NoAnswer     nobody answered a question, or stopped answering: what was asked may or may not have been done
    │       └── Away     no service is there that answers it: it is waited for, longer than the retries of a step
    ├── Permanent        it will never work: the run fails with the reason
    │   └── NoJournal    a word for a run that is not there, or whose journal is gone
    ├── NeedsHuman       a person must decide: the run waits for approve or deny
    ├── Refusal          the answer "no" of a question, with a code; `retryable` says which of the first two it counts as
    ├── Fenced           an append was refused: something else was appended meanwhile
    └── LeaseLost        another worker has taken the step over: drop everything, acknowledge nothing

Anything else that is raised is a bug: logged, retried until the retries end, then dead-lettered.
"""

import random
from dataclasses import dataclass
from typing import Literal

AWAY = "away"
"""The code of a refusal because somebody else is not there now: waited for as `Away` is."""
AWAY_RETRIES = 12  # 8 minutes of backoff: a service that is started anew, an outage of GitHub


class Retryable(Exception):
    """Try again later."""

    def __init__(self, message: str = "", after: float | None = None) -> None:
        super().__init__(message or str(self.__doc__))
        self.after = after


class NoAnswer(Retryable):
    """Nobody answers; is the service running?"""


class Away(NoAnswer):
    """No service is there that answers."""


class Permanent(Exception):
    """This can never work."""

    def __init__(self, reason: str, kind: Literal["permanent", "attempts", "limit"] = "permanent") -> None:
        super().__init__(reason)
        self.kind = kind


class NoJournal(Permanent):
    """There is no such run, or its journal is gone."""

    def __init__(self, run_id: str) -> None:
        super().__init__(f"there is no journal of run {run_id}")


class NeedsHuman(Exception):
    """A person must decide."""

    is_failure = False  # of a span (libs.telemetry)

    def __init__(self, question: str) -> None:
        super().__init__(question)
        self.question = question


class Refusal(Exception):
    """A question was refused. `code` is one of those that the question's module lists."""

    def __init__(self, code: str, detail: str, *, retryable: bool = False, after: float | None = None) -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail
        self.retryable = retryable
        self.after = after


class Fenced(Exception):
    """Something else was appended meanwhile."""


class LeaseLost(Exception):
    """Another worker has taken the step over."""


@dataclass(frozen=True)
class Retry:
    """Deliver again after `delay_seconds`."""

    delay_seconds: float


@dataclass(frozen=True)
class GiveUp:
    """End the run. `dead` says whether the message goes to the dead letters."""

    reason: str
    kind: Literal["permanent", "exhausted", "attempts", "limit"]
    dead: bool


@dataclass(frozen=True)
class AskPerson:
    """Park the run until a person answers."""

    question: str


Decision = Retry | GiveUp | AskPerson


@dataclass(frozen=True)
class Backoff:
    """Exponential, full jitter between half and the whole: min(cap, base * 2^(n-1)) seconds before try n+1."""

    base_seconds: float = 1.0
    cap_seconds: float = 60.0

    def delay(self, failures: int, seed: int) -> float:
        """Seconds to wait after `failures` failures; the same delivery always gets the same delay."""
        whole = min(self.cap_seconds, self.base_seconds * 2.0 ** min(failures - 1, 30))
        return whole * (0.5 + 0.5 * random.Random(seed * 1009 + failures).random())


def describe(error: BaseException) -> str:
    """An error in one line for a person, cut at 2,000 characters."""
    text = str(error) or type(error).__name__
    plain = isinstance(error, Retryable | Permanent | NeedsHuman | Refusal)
    return (text if plain else f"{type(error).__name__}: {text}")[:2000]


def _is_away(error: BaseException) -> bool:
    return isinstance(error, Away) or (isinstance(error, Refusal) and error.code == AWAY)


def decide(error: BaseException, failures: int, retries: int, backoff: Backoff, seed: int) -> Decision:
    """What to do about `error`, the `failures`-th failure (from 1) of a message that may be retried `retries` times."""
    match error:
        case NeedsHuman():
            return AskPerson(error.question)
        case Permanent():
            return GiveUp(describe(error), error.kind, dead=False)
        case Refusal(retryable=False):
            return GiveUp(describe(error), "permanent", dead=False)
    if failures > (max(retries, AWAY_RETRIES) if retries and _is_away(error) else retries):
        tries = f"{failures} tries" if failures > 1 else "1 try"
        return GiveUp(f"gave up after {tries}: {describe(error)}", "exhausted", dead=True)
    after = error.after if isinstance(error, Retryable | Refusal) else None
    return Retry(after if after is not None else backoff.delay(failures, seed))
