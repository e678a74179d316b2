"""The money of accounts: reserved on all of a call's accounts before it, settled after it, no account ever above its ceiling.

A reservation that is not settled before it expires counts as spent, because the call may have been made.
"""

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial

from libs.bus.errors import Retryable, describe
from libs.bus.subjects import token
from libs.contracts.envelope import Message, Time, Usage
from libs.contracts.inference import Account
from services.inference.domain import Price
from services.inference.store import Merged, Records

log = logging.getLogger(__name__)
LEAST_OUTPUT_TOKENS = 256


@dataclass(frozen=True)
class Limit:
    """One account that a call counts on. `name` is what a person calls its ceiling; `resets_at` is when it begins anew."""

    account: str
    ceiling_usd: float | None = None
    name: str = "ceiling"
    resets_at: datetime | None = None


class BudgetExceeded(Exception):
    """The ceiling of an account leaves no room for the call. `resets_at` is when it will."""

    def __init__(self, message: str, resets_at: datetime | None = None) -> None:
        super().__init__(message)
        self.resets_at = resets_at


class Reservation(Message):
    """The most that one call under way can use."""

    id: str
    most: Usage
    expires_at: Time


class Ledger(Message):
    """One account."""

    spent: Usage = Usage()
    reservations: tuple[Reservation, ...] = ()

    def with_reservation(self, reservation: Reservation) -> "Ledger":
        """The ledger with one more call under way; a second time changes nothing."""
        if any(kept.id == reservation.id for kept in self.reservations):
            return self
        return self.model_copy(update={"reservations": (*self.reservations, reservation)})

    def settled(self, reservation_id: str, usage: Usage) -> "Ledger":
        """The ledger with the call's real usage in place of its reservation; a second settling changes nothing."""
        rest = tuple(kept for kept in self.reservations if kept.id != reservation_id)
        if len(rest) == len(self.reservations):
            return self
        return Ledger(spent=self.spent + usage, reservations=rest)

    def account(self, name: str, now: datetime) -> Account:
        """What is spent, expired reservations with it, and what is reserved."""
        spent = self.spent
        for lapsed in (kept for kept in self.reservations if kept.expires_at <= now):
            spent = spent + lapsed.most
        reserved = sum(kept.most.cost_usd for kept in self.reservations if kept.expires_at > now)
        return Account(account=name, spent=spent, reserved_usd=round(reserved, 9))


def affordable_output(account: Account, price: Price, input_tokens: int, wanted_tokens: int, limit: Limit) -> int:
    """How many output tokens the ceiling leaves room for, `wanted_tokens` at most.

    Raises:
        BudgetExceeded: fewer than 256 (or than wanted, when that is less).
    """
    if limit.ceiling_usd is None:
        return wanted_tokens
    left = limit.ceiling_usd - account.spent.cost_usd - account.reserved_usd
    output_usd = price.cost(0, 1)
    after_input = left - price.cost(input_tokens, 0)
    room = wanted_tokens if output_usd == 0 else int((after_input + 1e-9) / output_usd)
    if after_input < -1e-9 or room < min(LEAST_OUTPUT_TOKENS, wanted_tokens):
        spent, most = account.spent.cost_usd, price.cost(input_tokens, wanted_tokens)
        way_out = f"It resets at {limit.resets_at:%Y-%m-%d %H:%M} UTC." if limit.resets_at else "Raise the ceiling to go on."
        raise BudgetExceeded(
            f"the {limit.name} of ${limit.ceiling_usd:.4f} leaves no room: ${spent:.4f} spent, ${account.reserved_usd:.4f} reserved, and "
            f"this call of about {input_tokens} input tokens may cost ${most:.4f}. {way_out}",
            limit.resets_at,
        )
    return min(wanted_tokens, room)


@dataclass(frozen=True)
class Held:
    """A reservation on every account of a call, and the output tokens that it covers."""

    id: str
    limits: tuple[Limit, ...]
    most: Usage

    @property
    def output_tokens(self) -> int:
        """What the call may write."""
        return self.most.output_tokens


def _noted(account: str, done: asyncio.Future[None]) -> None:
    if not done.cancelled() and (error := done.exception()):
        log.warning("a call of %s is not in its ledger: %s", account, describe(error))


class Budget:
    """The ledgers of all accounts in one bucket."""

    def __init__(self, records: Records, hold_seconds: float = 900.0, clock: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._ledgers = Merged(records, Ledger())
        self._hold = timedelta(seconds=hold_seconds)
        self._clock = clock

    async def reserve(self, limits: tuple[Limit, ...], price: Price, input_tokens: int, output_tokens: int) -> Held:
        """Reserve the most that a call can cost on every account; nothing stays reserved when one of them refuses.

        Accounts without a ceiling refuse nothing: their reservation is written beside the call.

        Raises:
            BudgetExceeded: a ceiling leaves no room; the first one in the order of `limits` is told.
        """
        held = Held(secrets.token_hex(8), limits, Usage(input_tokens=input_tokens, output_tokens=output_tokens, calls=1))
        try:
            asked = (self._reserve(limit, price, held) for limit in limits if limit.ceiling_usd is not None)
            outcomes = await asyncio.gather(*asked, return_exceptions=True)
        except asyncio.CancelledError:
            await self._release(held)
            raise
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                await self._release(held)
                raise outcome
        granted = min([output_tokens, *(outcome for outcome in outcomes if isinstance(outcome, int))])
        cost = round(price.cost(input_tokens, granted), 9)
        most = held.most.model_copy(update={"output_tokens": granted, "cost_usd": cost})
        kept = Reservation(id=held.id, most=most, expires_at=self._clock() + self._hold)
        for limit in limits:
            if limit.ceiling_usd is None:
                noted = self._ledgers.begin(token(limit.account), lambda ledger: ledger.with_reservation(kept))
                noted.add_done_callback(partial(_noted, limit.account))
        return Held(held.id, limits, most)

    async def _release(self, held: Held) -> None:
        with contextlib.suppress(Retryable):  # it expires then
            await asyncio.shield(self.settle(held, Usage()))

    async def _reserve(self, limit: Limit, price: Price, held: Held) -> int:
        granted = held.output_tokens

        def change(ledger: Ledger) -> Ledger:
            nonlocal granted
            if any(kept.id == held.id for kept in ledger.reservations):
                return ledger
            now = self._clock()
            account = ledger.account(limit.account, now)
            granted = affordable_output(account, price, held.most.input_tokens, held.output_tokens, limit)
            cost = round(price.cost(held.most.input_tokens, granted), 9)
            most = held.most.model_copy(update={"output_tokens": granted, "cost_usd": cost})
            return ledger.with_reservation(Reservation(id=held.id, most=most, expires_at=now + self._hold))

        await self._ledgers.apply(token(limit.account), change)
        return granted

    async def settle(self, held: Held, usage: Usage) -> None:
        """Put what a call really used in place of its reservation, on every account.

        Raises:
            Retryable: a ledger did not take it; its reservation expires and counts in full.
        """
        settling = (self._ledgers.apply(token(limit.account), lambda ledger: ledger.settled(held.id, usage)) for limit in held.limits)
        outcomes = await asyncio.gather(*settling, return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome

    async def read(self, account: str) -> Account:
        """The account as it stands."""
        return (await self._ledgers.read(token(account))).account(account, self._clock())
