"""The links of mails: a question answered by one click that asks once more, and an end to mails. A link is bound to one question.

Acting means one event on the journal, behind the fence; acting again, or too late, says what came of the question instead.
"""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Literal

from pydantic import Field

from libs.bus import Asker, Bus, Kv, NoJournal, Refusal
from libs.contracts import decisions
from libs.contracts.envelope import Identifier, Message, Time
from libs.contracts.fold import Recorded, RunState, fold
from libs.contracts.mail import DecideByLink, DecisionView
from libs.contracts.run import RunApproved, RunCancelled, RunDenied, RunEvent, RunFailed, RunRetried
from libs.contracts.team import RunFollowedUp
from libs.contracts.work import StepName
from services.mailer.grants import Grants
from services.mailer.quota import Quota

Action = Literal["approve", "deny", "unsubscribe"]
KEPT = timedelta(days=399)  # as long as the bucket keeps a row


class Link(Message):
    """What a link stands for. `asked`: sequence of the question on the journal, 0 for `unsubscribe`."""

    action: Action
    run_id: Identifier
    recipient: str = Field(max_length=320)
    step: StepName | None = None
    of: int = 0
    asked: int = 0
    expires_at: Time


class DecisionLinks:
    """Makes the links of mails and answers for them."""

    def __init__(self, kv: Kv, secret: bytes, public_url: str) -> None:
        self._grants = Grants(kv, secret, "link")
        self._base = f"{public_url.rstrip('/')}/mail/decisions"

    async def url(self, link: Link) -> str:
        """The address of a link; the same link has the same one."""
        return f"{self._base}/{await self._grants.give(link.model_dump_json().encode())}"

    async def open(self, token: str) -> Link:
        """What a token stands for, also when its time is over. Raises Refusal `not_found`."""
        row = await self._grants.open(token)
        if row is None:
            raise Refusal("not_found", "this link was never given out: open it as it stands in the mail, in full")
        return Link.model_validate_json(row)


class Decider:
    """Answers `DecideByLink`."""

    def __init__(self, bus: Bus, links: DecisionLinks, quota: Quota) -> None:
        self._bus = bus
        self._links = links
        self._quota = quota

    async def __call__(self, question: DecideByLink, _: Asker) -> DecisionView:
        """What the link is about, after acting on it when `confirmed` and in time. Raises Refusal `not_found`."""
        now = datetime.now(UTC)
        link = await self._links.open(question.token)
        if question.confirmed and now < link.expires_at:
            await self._act(link, now)
        history = await self._bus.journal.read(link.run_id)
        state = fold(history, link.run_id)
        if state.opened is None and link.action != "unsubscribe":
            raise Refusal("not_found", f"the run {link.run_id} is no longer there")
        done = await self._unsubscribed(link) if link.action == "unsubscribe" else outcome(link, state, history, now)
        return DecisionView(
            run_id=link.run_id,
            title=state.opened.issue.title if state.opened else link.run_id,
            question=asked(link, history),
            action=link.action,
            recipient=link.recipient,
            done=done,
        )

    async def _act(self, link: Link, now: datetime) -> None:
        if link.action == "unsubscribe":
            await self._quota.suppress(link.recipient, now)
            return

        def decide(state: RunState, _: Sequence[Recorded]) -> RunEvent | None:
            if state.pending is None or state.pending.sequence != link.asked:
                return None  # the view says what came of it
            act = decisions.approve if link.action == "approve" else decisions.deny
            return act(state, f"mail:{link.recipient}")

        try:
            await self._bus.decide(link.run_id, decide)
        except NoJournal as error:
            raise Refusal("not_found", f"the run {link.run_id} is no longer there") from error

    async def _unsubscribed(self, link: Link) -> str | None:
        since = await self._quota.suppressed(link.recipient)
        return f"no more mail goes to {link.recipient} since {since:%Y-%m-%d %H:%M} UTC" if since else None


def asked(link: Link, history: Sequence[Recorded]) -> str:
    """The words of the question that a link is about."""
    found = next((r.event for r in history if r.sequence == link.asked), None)
    return str(getattr(found, "question", ""))[:8000]


def outcome(link: Link, state: RunState, history: Sequence[Recorded], now: datetime) -> str | None:
    """What came of the question that a link is about; None while it waits for an answer. Pure."""
    if state.pending is not None and state.pending.sequence == link.asked:
        return "the time to answer is over" if now >= link.expires_at else None
    for recorded in history:
        if recorded.sequence > link.asked and (words := _words(link, recorded.event)) is not None:
            return f"{words} on {recorded.at:%Y-%m-%d at %H:%M} UTC"
    return f"the run went on without an answer; it is {state.status} now"


def _words(link: Link, event: object) -> str | None:
    match event:
        case RunApproved(step=link.step, of=link.of) | RunDenied(step=link.step):
            by = "by you" if event.by == f"mail:{link.recipient}" else f"by {event.by}"
            return f"{'approved' if isinstance(event, RunApproved) else 'denied'} {by}"
        case RunCancelled():
            return f"the run was cancelled by {event.by}"
        case RunFailed():
            return "nobody answered in time, so the run ended" if event.kind == "expired" else f"the run failed ({event.reason[:300]})"
        case RunRetried() | RunFollowedUp():
            return f"{event.by} sent the run to work again"
    return None
