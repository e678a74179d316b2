"""What every handler of an event of GitHub has at hand: the fact, where it happened, and the run that it is about."""

from collections.abc import Mapping
from dataclasses import dataclass

from libs.bus import Bus, Decide
from libs.contracts.fold import RunState
from libs.contracts.github import GitHubDelivery
from services.forge.clients import GitHub, Place
from services.forge.commands import Command, command_in
from services.forge.domain import Word, hand_over, person
from services.forge.rows import Rows, marked_run
from services.forge.saying import Comments


@dataclass(frozen=True)
class Kit:
    """What the intake works with while the service runs."""

    bus: Bus
    rows: Rows
    comments: Comments
    github: GitHub
    label: str


@dataclass(frozen=True)
class Hearing:
    """One fact being handled. `cause` are the headers of its message, `attempt` counts its deliveries from 1."""

    kit: Kit
    fact: GitHubDelivery
    place: Place
    slug: str
    cause: Mapping[str, str]
    attempt: int = 1

    @property
    def by(self) -> str:
        """Who did it, as events name people."""
        return person(self.fact.sender)

    @property
    def login(self) -> str:
        """The App's own user."""
        return f"{self.slug}[bot]"

    def command_in(self, words: str) -> Command | None:
        """What words ask of the bot."""
        return command_in(words, self.slug)

    async def sender_may_write(self) -> bool:
        """Whether whoever did it has write permission."""
        return await self.kit.github.may_write(self.place, self.fact.sender)

    async def run_of(self, number: int, *, is_pull: bool) -> RunState | None:
        """The run of an issue or of our pull request; None when there is none, or its journal is gone."""
        rows, repository_id = self.kit.rows, self.place.repository_id
        found = await (rows.pull(repository_id, number) if is_pull else rows.issue(repository_id, number))
        row = found[0] if isinstance(found, tuple) else found
        run_id = row.run_id if row else self._marked(is_pull)
        if run_id is None:
            return None
        state = await self.kit.bus.journal.state(run_id)
        if state.opened is None or (row is None and not self._is_here(state)):
            return None
        if row is None:
            await rows.put_pull(repository_id, number, run_id, self.fact.head_ref)
        return state

    def _marked(self, is_pull: bool) -> str | None:
        """The run that our own pull request's body names."""
        return marked_run(self.fact.body) if is_pull and self.fact.author.lower() == self.login.lower() else None

    def _is_here(self, state: RunState) -> bool:
        target = state.opened.github if state.opened else None
        return target is None or target.repository_id == self.place.repository_id

    async def decide(self, run_id: str, decide: Decide) -> bool:
        """Append what a decision makes of a run's newest state; whether it made anything."""
        return await self.kit.bus.decide(run_id, decide, self.cause) is not None

    async def hand_over(self, run_id: str, word: Word) -> bool:
        """Give words to a run; whether they were new to it and it could take them."""
        return await self.decide(run_id, hand_over(word))

    async def say_once(self, kind: str, number: int, text: str) -> None:
        """Say something under an issue or pull request, once for ever, however often its `kind` comes up."""
        await self.kit.comments.put(self.kit.github.at(self.place), number, kind, text, self.fact.delivery)
