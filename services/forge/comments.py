"""Comments under an issue or a pull request: commands of people with write permission, and words for a run at work."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from libs.bus import Decide
from libs.contracts import decisions
from libs.contracts.decisions import NotPossible
from libs.contracts.fold import Recorded, RunState
from libs.contracts.ids import derived_id
from libs.contracts.run import RunApproved, RunCancelled, RunDenied, RunEvent, RunRetried
from libs.contracts.team import TEXT, RunCommented
from services.forge.commands import Command
from services.forge.domain import Word, open_pull, person, said
from services.forge.hearing import Hearing
from services.forge.opening import decline, issue_of, start, word_of

_NOT_OURS = "I work on issues and on the pull requests that I opened, not on this one."
_NO_RUN = "There is no run for this yet: comment `/solve` to start one."
_CLOSED = "This pull request is closed: comment `/solve` under the issue for a new one."
_AGAIN = "Asked for another attempt on GitHub."
_MADE: dict[str, type[RunEvent]] = {"retry": RunRetried, "cancel": RunCancelled, "approve": RunApproved, "deny": RunDenied}


async def on_comment(hearing: Hearing) -> None:
    """A person commented."""
    fact = hearing.fact
    if fact.number is None:
        return
    state = await hearing.run_of(fact.number, is_pull=fact.is_pull)
    command = hearing.command_in(fact.comment)
    if command is None:
        if state is not None and not state.ended and await may_speak(hearing, state):
            await hearing.hand_over(state.run_id, word_of(hearing, fact.comment))
    elif not await hearing.sender_may_write():
        await decline(hearing, fact.number)
    elif command.name == "solve":
        await _solve(hearing, state, command.words)
    elif state is None:
        await _answer(hearing, _NO_RUN)
    else:
        await _instruct(hearing, state, command)


async def may_speak(hearing: Hearing, state: RunState) -> bool:
    """Whether a run listens to whoever did it: to the author of its issue, and to people with write permission."""
    target = state.opened.github if state.opened else None
    author = person(target.author) if target and target.author else None
    return hearing.by == author or await hearing.sender_may_write()


async def _solve(hearing: Hearing, state: RunState | None, words: str) -> None:
    if not hearing.fact.is_pull:
        await start(hearing, issue_of(hearing), words)
    elif state is None:
        await _answer(hearing, _NOT_OURS)
    elif state.ended and not open_pull(state):
        await _answer(hearing, _CLOSED)
    else:
        await hearing.hand_over(state.run_id, word_of(hearing, words or (_AGAIN if state.ended else "")))


async def _instruct(hearing: Hearing, state: RunState, command: Command) -> None:
    """Carry out `/retry`, `/cancel`, `/approve`, `/deny`; say why when it is not possible now."""
    if command.name == "retry" and await _taken_as_words(hearing, state, command.words):
        return
    by, since, kind = hearing.by, hearing.fact.received_at, _MADE[command.name]

    def decide(now: RunState, history: Sequence[Recorded]) -> RunEvent | None:
        return None if said(history, kind, by, since) else _made(command, now, history, by)

    try:
        await hearing.decide(state.run_id, decide)
    except NotPossible as reason:
        await _answer(hearing, f"That is not possible now: {reason.detail}.")


def _made(command: Command, state: RunState, history: Sequence[Recorded], by: str) -> RunEvent:
    match command.name:
        case "cancel":
            return decisions.cancel(state, by, command.words[:4000])
        case "approve":
            return decisions.approve(state, by, command.words[:4000])
        case "deny":
            return decisions.deny(state, by, command.words[:4000])
    return decisions.retry(state, history, None, by, datetime.now(UTC), timedelta.max)


async def _taken_as_words(hearing: Hearing, state: RunState, words: str) -> bool:
    """Whether a `/retry` is more than sending the failed step to work again."""
    word = word_of(hearing, words)
    if state.run_id == derived_id("github", hearing.fact.delivery) or any(f.key == word.key for f in state.follow_ups):
        return True
    if not state.ended:
        await hearing.hand_over(state.run_id, word)
        return bool(words)
    if open_pull(state) and (words or state.failed is None):
        await hearing.hand_over(state.run_id, word_of(hearing, words or _AGAIN))
        return True
    if state.failed is None:
        await _solve(hearing, state, words)
        return True
    if words:
        await hearing.decide(state.run_id, _noted(word))
    return False


def _noted(word: Word) -> Decide:
    """Words for the step that is about to be sent to work again."""

    def decide(state: RunState, _: Sequence[Recorded]) -> RunEvent | None:
        if any(c.event.key == word.key for c in state.comments):
            return None
        return RunCommented(run_id=state.run_id, by=word.by, source=word.source, text=word.text[:TEXT], url=word.url or None, key=word.key)

    return decide


async def _answer(hearing: Hearing, text: str) -> None:
    fact = hearing.fact
    assert fact.number is not None
    await hearing.say_once(f"answer-{fact.comment_id}", fact.number, text)
