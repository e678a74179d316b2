"""The books of calls: every try is opened on all its accounts before it and closed once after it, in ledgers and usage counters."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from libs.bus.errors import Refusal, Retryable, describe
from libs.contracts.envelope import Usage
from libs.contracts.inference import Complete
from services.inference.budget import Budget, BudgetExceeded, Held
from services.inference.domain import ModelSpec, estimate_input_tokens
from services.inference.governance import Governance, limits_for, where_of
from services.inference.usage import UsageBook, Where

log = logging.getLogger(__name__)
_REPLY_SECONDS = 0.005
"""Time for a reply to leave the process."""


@dataclass(frozen=True)
class Entry:
    """One try: its reservations and the place that it is counted at."""

    held: Held
    where: Where


class Books:
    """Opens and closes tries."""

    def __init__(
        self,
        budget: Budget,
        usage: UsageBook,
        governance: Governance | None = None,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.budget = budget
        self.usage = usage
        self._governance = governance or Governance()
        self._clock = clock
        self._closing: dict[str, asyncio.Task[None]] = {}

    async def open(self, question: Complete, spec: ModelSpec) -> Entry:
        """Reserve the most that a try can cost.

        Raises:
            Refusal: `budget_exceeded`, saying which budget, the numbers and when it resets (`after`).
        """
        now = self._clock()
        limits = limits_for(question, self._governance.limits_of(question.plan), now)
        given = estimate_input_tokens(question.messages, question.tools, question.json_schema)
        wanted = min(question.max_output_tokens, spec.most_output_tokens or question.max_output_tokens)
        try:
            held = await self.budget.reserve(limits, spec.price, given, wanted)
        except BudgetExceeded as error:
            after = (error.resets_at - now).total_seconds() if error.resets_at else None
            raise Refusal("budget_exceeded", str(error), after=after) from error
        return Entry(held, where_of(question, spec.name, now))

    def close_later(self, question: Complete, entry: Entry, used: Usage) -> None:
        """Begin to settle a try, beside what else is to be done for it; `closed` and `drained` wait for that.

        A reply that is not recorded goes first: it waits for nothing here.
        """
        request_id = question.request_id
        pause = 0.0 if question.recorded else _REPLY_SECONDS
        task = self._closing[request_id] = asyncio.create_task(self._close_after(pause, entry, used))
        task.add_done_callback(lambda _: self._closing.pop(request_id, None) if self._closing.get(request_id) is task else None)

    async def closed(self, request_id: str) -> None:
        """Wait until the try of a request that gave its reply is settled."""
        if task := self._closing.get(request_id):
            await asyncio.shield(task)

    async def drained(self) -> None:
        """Wait until every try is settled."""
        await asyncio.gather(*self._closing.values(), return_exceptions=True)

    async def _close_after(self, seconds: float, entry: Entry, used: Usage) -> None:
        if seconds:
            await asyncio.sleep(seconds)
        await self.close(entry, used)

    async def close(self, entry: Entry, used: Usage | None) -> None:
        """Settle a try; None is an end that nobody knows, which counts in full.

        A ledger that cannot be reached keeps the reservation, which expires and counts in full: no reply is lost for that.
        """
        used = entry.held.most if used is None else used
        work = [self.budget.settle(entry.held, used)]
        if used != Usage():
            work.append(self.usage.count(entry.where, entry.held.id, used))
        for outcome in await asyncio.gather(*work, return_exceptions=True):
            if isinstance(outcome, Retryable):
                log.warning("a call of %s is not settled: %s", entry.where.account, describe(outcome))
            elif isinstance(outcome, BaseException):
                raise outcome
