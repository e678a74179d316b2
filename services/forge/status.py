"""What a run is doing, in one comment under its issue that is edited; and mail replies, quoted under its pull request."""

import hashlib
from collections import OrderedDict
from dataclasses import dataclass, field

from libs.bus import Bus, Delivery
from libs.contracts.fold import RunState
from libs.contracts.run import GitHubTarget, RunOpened
from libs.contracts.team import ReplyReceived
from services.forge.publishing import Desk
from services.forge.pull_text import cut, tame
from services.forge.saying import Comments, settle

PURPOSE = "status"
_REMEMBERED = 2000
_STEPS = (("planned", "Plan"), ("edited", "Edit"), ("verified", "Tests"), ("committed", "Commit"), ("published", "Pull request"))


@dataclass
class Teller:
    """Tells on GitHub what happens to runs. Newest state wins: events that a comment already covers are passed over."""

    desk: Desk
    bus: Bus
    comments: Comments
    _targets: OrderedDict[str, GitHubTarget | None] = field(default_factory=OrderedDict)

    async def on_event(self, delivery: Delivery) -> None:
        """Something happened to a run: bring the comment under its issue up to date."""
        await settle(self.bus, delivery, lambda: self._tell(delivery))

    async def on_reply(self, delivery: Delivery) -> None:
        """A mail answered one of ours: its words become a comment on the pull request, once for each Message-ID."""
        await settle(self.bus, delivery, lambda: self._quote(delivery))

    async def _tell(self, delivery: Delivery) -> None:
        run_id = delivery.subject.split(".")[1]
        target = await self._target(run_id, delivery) if self.desk.app.settings.configured else None
        if target is None or await self.comments.told(target.repository_id, target.number, PURPOSE) >= delivery.sequence:
            return
        state = await self.bus.journal.state(run_id)
        there = self.desk.app.repository(target.installation_id, target.repository, target.repository_id)
        await there.describe()
        async with self.bus.run_span(run_id, "comment status", "client", delivery.headers):
            by = f"{run_id}-{delivery.sequence}"
            await self.comments.put(there, target.number, PURPOSE, status_text(state, self.desk), by, state.sequence)

    async def _quote(self, delivery: Delivery) -> None:
        reply = ReplyReceived.model_validate_json(delivery.payload)
        if reply.action != "comment" or not self.desk.app.settings.configured:
            return
        state = await self.bus.journal.state(reply.run_id)
        if state.published is None:
            return
        there = await self.desk.published_in(state)
        digest = hashlib.sha256(reply.message_id.encode("utf-8", "replace")).hexdigest()[:16]
        async with self.bus.run_span(state.run_id, "comment reply", "client", delivery.headers):
            by = f"{state.run_id}-{delivery.sequence}"
            await self.comments.put(there, state.published.number, f"reply-{digest}", reply_text(reply), by)

    async def _target(self, run_id: str, delivery: Delivery) -> GitHubTarget | None:
        if run_id not in self._targets:
            opened = delivery.subject.endswith(".opened")
            event = RunOpened.model_validate_json(delivery.payload) if opened else (await self.bus.journal.state(run_id)).opened
            self._targets[run_id] = event.github if event else None
            if len(self._targets) > _REMEMBERED:
                self._targets.popitem(last=False)
        return self._targets[run_id]


def reply_text(reply: ReplyReceived) -> str:
    """The comment of a mail reply: who wrote, quoted, and which files came along."""
    quoted = "\n".join(f"> {line}" for line in tame(reply.text).splitlines())
    files = ", ".join(f"`{a.name.replace('`', '')}`" for a in reply.attachments)
    return f"`{reply.sender.replace('`', '')}` wrote by mail:\n\n{quoted}" + (f"\n\nAttached: {files}" if files else "")


def status_text(state: RunState, desk: Desk) -> str:
    """The comment of a run: where it is, what it made, and what a person can do."""
    done = "\n".join(f"- [{'x' if getattr(state, name) is not None else ' '}] {word}" for name, word in _STEPS)
    links = desk.links(state)
    attempt = f", attempt {state.attempt}" if state.attempt > 1 else ""
    shown = f"[Run]({links.run(state.run_id)}) · [Trace]({links.trace(state.run_id)}) · ${state.usage.cost_usd:.2f}{attempt}"
    return "\n\n".join(part for part in (_headline(state), done, shown) if part)


def _headline(state: RunState) -> str:
    pull = state.published.url if state.published else ""
    why = tame(cut(state.why, 4000))
    if state.merged is not None or state.closed:
        return f"Merged: {pull}" if state.merged is not None else f"The pull request was closed without a merge: {pull}"
    branch = state.finished.branch if state.finished else ""
    words = {
        "finished": f"The pull request is ready: {pull}" if pull else f"Solved on branch `{branch}`.",
        "failed": f"I could not solve this: {why}\n\nComment `/retry` with a hint, and I try again.",
        "waiting": f"I need a decision: {why}\n\nComment `/approve` or `/deny`.",
        "cancelled": f"Stopped: {why}.",
        "denied": f"Stopped: {why}.",
    }
    return words.get(state.status, f"I am at work on this: {state.status}.")
