"""What was used, by day, tenant, user, account and model: one counter each in a bucket, folded when somebody asks.

A settled call is counted once: a counter remembers the ids of the last calls that it counted.
"""

from collections import defaultdict
from collections.abc import Iterable
from datetime import date, timedelta
from urllib.parse import quote

from libs.bus.errors import Refusal
from libs.bus.subjects import token
from libs.contracts.envelope import Message, Usage
from libs.contracts.inference import ReadUsage, UsageReport, UsageRow
from services.inference.store import Merged, Records

_REMEMBERED = 16
MOST_DAYS = 400


class Where(Message):
    """The place that a call is counted at."""

    day: str
    tenant: str
    user: str
    account: str
    model: str

    @property
    def key(self) -> str:
        """The counter's key, a token for each part, so that a part can be asked for by the server."""
        return ".".join(token(part) for part in (self.day, self.tenant, self.user, self.account, self.model))


class Counter(Message):
    """One counter and the calls that it counted last."""

    where: Where | None = None
    usage: Usage = Usage()
    counted: tuple[str, ...] = ()

    def with_call(self, where: Where, call_id: str, usage: Usage) -> "Counter":
        """The counter with one more call; a second time changes nothing."""
        if call_id in self.counted:
            return self
        return Counter(where=where, usage=self.usage + usage, counted=(*self.counted, call_id)[-_REMEMBERED:])


class UsageBook:
    """The counters of all calls."""

    def __init__(self, records: Records) -> None:
        self._records = records
        self._counters = Merged(records, Counter())

    async def count(self, where: Where, call_id: str, usage: Usage) -> None:
        """Count a settled call.

        Raises:
            Retryable: the bucket did not take it.
        """
        await self._counters.apply(where.key, lambda counter: counter.with_call(where, call_id, usage))

    async def report(self, question: ReadUsage) -> UsageReport:
        """The counters that a question asks for, summed by the dimensions that it names.

        Raises:
            Refusal: `bad_request` for days that are none, are the wrong way round or more than 400.
        """
        found: list[Counter] = []
        for pattern in patterns(question):
            found += [Counter.model_validate_json(value) for _, value in await self._records.scan(pattern)]
        first, last = question.first_day or "", question.last_day or "9999"
        return folded((counter for counter in found if counter.where and first <= counter.where.day <= last), question)


def patterns(question: ReadUsage) -> list[str]:
    """What to ask the server for: one pattern for a single day, or one for all of them."""
    days = ["*"]
    if question.first_day and question.last_day:
        first, last = _day(question.first_day), _day(question.last_day)
        span = (last - first).days
        if span < 0 or span >= MOST_DAYS:
            raise Refusal("bad_request", f"ask for 1 to {MOST_DAYS} days, the first one first; kept are {MOST_DAYS}")
        if span < 32:
            days = [str(first + timedelta(days=number)) for number in range(span + 1)]
    else:
        for bound in (question.first_day, question.last_day):
            if bound:
                _day(bound)
    account = question.account and account_name(question.account)
    rest = ".".join("*" if part is None else token(part) for part in (question.tenant, question.user, account, question.model))
    return [f"{day}.{rest}" for day in days]


def _day(text: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError as error:
        raise Refusal("bad_request", f"{text} is no day: {error}") from error


def folded(counters: Iterable[Counter], question: ReadUsage) -> UsageReport:
    """The sums by the dimensions of the question, and the sum of all."""
    sums: dict[tuple[str, ...], Usage] = defaultdict(Usage)
    total = Usage()
    by = tuple(dict.fromkeys(question.by))
    for counter in counters:
        if counter.where is not None:
            sums[tuple(getattr(counter.where, name) for name in by)] += counter.usage
            total = total + counter.usage
    rows = [UsageRow(usage=usage, **dict(zip(by, key, strict=True))) for key, usage in sorted(sums.items())]
    return UsageReport(rows=tuple(rows[: question.limit]), total=total, truncated=len(rows) > question.limit)


def account_name(account: str) -> str:
    """The one name of an account: a run's is its bare id."""
    return account.removeprefix("run:")


def user_day_account(tenant: str, user: str, day: str) -> str:
    """The account of a user's day; a colon inside of a name is escaped, so that no two users share one."""
    return ":".join(("user", quote(tenant, safe="", errors="replace"), quote(user, safe="", errors="replace"), day))
