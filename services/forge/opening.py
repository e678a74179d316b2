"""How an issue on GitHub becomes a run: by a label, an assignment, a comment, or a `repository_dispatch`.

One run at a time works on an issue: the row of the issue is taken before the run is opened, under an id that follows from the delivery.
"""

import logging
from dataclasses import dataclass

from libs.bus import Fenced, Retryable
from libs.contracts.ids import derived_id
from libs.contracts.run import GitHubTarget, Issue, RunOpened
from services.forge.domain import Word, open_pull
from services.forge.hearing import Hearing
from services.forge.payloads import line, text

log = logging.getLogger(__name__)
_BODY, _WORDS = 65_536, 16_000
_TRIES = 10
_PATIENCE = 4  # deliveries until a run that was announced and never opened gives its issue free
POLITE = (
    "Thank you. Only people with write permission to this repository can set me to work: "
    "one of them may put the label `{label}` on the issue, or comment `/solve`."
)


@dataclass(frozen=True)
class Wanted:
    """What is to be solved. Without `number` there is no issue on GitHub."""

    title: str
    body: str
    number: int | None = None
    author: str = ""
    url: str = ""
    base: str | None = None


async def on_issue(hearing: Hearing) -> None:
    """The label was put on an issue, the bot was assigned to it, or a new issue speaks to the bot."""
    fact = hearing.fact
    asked = {
        "labeled": fact.label.lower() == hearing.kit.label.lower(),
        "assigned": fact.assignee.lower() == hearing.login.lower(),
        "opened": _asks_to_solve(hearing),
    }
    if fact.number is None or not asked.get(fact.action):
        return
    if await hearing.sender_may_write():
        await start(hearing, issue_of(hearing), "")
    else:
        await decline(hearing, fact.number)


def _asks_to_solve(hearing: Hearing) -> bool:
    command = hearing.command_in(hearing.fact.body)
    return command is not None and command.name == "solve"


async def decline(hearing: Hearing, number: int) -> None:
    """Tell who may ask, once for each issue."""
    await hearing.say_once("who-may-ask", number, POLITE.format(label=hearing.kit.label))


async def on_dispatch(hearing: Hearing) -> None:
    """A `repository_dispatch` asks for an issue, or for what its payload says."""
    given = hearing.fact.payload
    title, body, base = (str(given.get(key) or "") for key in ("title", "body", "base"))
    found, number = None, given.get("issue")
    if isinstance(number, str):
        number = int(number) if number.isdecimal() and len(number) < 19 else None
    if isinstance(number, int):
        found = await hearing.kit.github.issue(hearing.place, number)
        if found is None:
            log.warning("dispatch %s names issue %d, which is not in %s", hearing.fact.delivery, number, hearing.place.repository)
            return
        title, body = title or str(found.get("title") or ""), body or str(found.get("body") or "")
    elif not title.strip():
        log.warning("dispatch %s names neither an issue nor a title", hearing.fact.delivery)
        return
    author = str(((found or {}).get("user") or {}).get("login") or "")
    url = str((found or {}).get("html_url") or "")
    wanted = Wanted(line(title, 1000), text(body), number if found else None, line(author, 100), line(url, 2048), line(base, 255) or None)
    if await hearing.sender_may_write():
        await start(hearing, wanted, "")


def issue_of(hearing: Hearing) -> Wanted:
    """The issue that an event is about."""
    fact = hearing.fact
    return Wanted(fact.title, fact.body, fact.number, fact.author, fact.url.partition("#")[0])


async def start(hearing: Hearing, wanted: Wanted, words: str) -> None:
    """Open a run; or hand the words to the one that works on the issue; or follow up on its pull request that is open."""
    fact = hearing.fact
    run_id = derived_id("github", fact.delivery)
    if fact.archived or not fact.clone_url or (await hearing.kit.bus.journal.state(run_id)).sequence:
        return
    if wanted.number is not None and not await _take_issue(hearing, wanted.number, run_id, words):
        return
    try:
        await hearing.kit.bus.journal.append(_opened(hearing, wanted, run_id, words), follows=0)
    except Fenced:
        log.info("delivery %s came again: run %s is there", fact.delivery, run_id)


async def _take_issue(hearing: Hearing, number: int, run_id: str, words: str) -> bool:
    """Whether the issue is now this run's, which is still to be opened."""
    rows, place = hearing.kit.rows, hearing.place
    for _ in range(_TRIES):
        found = await rows.issue(place.repository_id, number)
        row, revision = found or (None, 0)
        if row is not None and row.run_id == run_id:
            return True
        if row is not None and await _taken(hearing, row.run_id, words):
            return False
        if await rows.put_issue(place.repository_id, number, run_id, revision):
            return True
    raise Retryable(f"issue {number} of {place.repository} is too busy")


async def _taken(hearing: Hearing, run_id: str, words: str) -> bool:
    """Whether the run that an issue had before takes what is asked for."""
    state = await hearing.kit.bus.journal.state(run_id)
    if not state.sequence:
        if hearing.attempt < _PATIENCE:
            raise Retryable(f"run {run_id} was announced and is not opened yet")
        return False
    if state.ended and not open_pull(state):
        return False
    asked = words or (f"Asked again on GitHub.\n\n{hearing.fact.title}\n\n{hearing.fact.body}" if state.ended else "")
    await hearing.hand_over(run_id, word_of(hearing, asked))
    return True


def word_of(hearing: Hearing, words: str) -> Word:
    """Words of a comment, or of what else was done on GitHub."""
    fact = hearing.fact
    key = f"comment:{fact.comment_id}" if fact.comment_id is not None else f"delivery:{fact.delivery}"
    return Word(hearing.by, "comment", words, fact.url, key)


def _opened(hearing: Hearing, wanted: Wanted, run_id: str, words: str) -> RunOpened:
    fact = hearing.fact
    added = f"\n\n{fact.sender} adds:\n\n{words}"[:_WORDS] if words else ""
    return RunOpened(
        run_id=run_id,
        issue=Issue(
            id=str(wanted.number or f"dispatch-{run_id[:8].lower()}"),
            title=wanted.title or f"Issue {wanted.number}",
            body=wanted.body[: _BODY - len(added)] + added,
        ),
        repo=fact.clone_url,
        base=wanted.base,
        requested_by=hearing.by,
        origin="github",
        github=_target(hearing, wanted),
        opened_at=fact.received_at,
    )


def _target(hearing: Hearing, wanted: Wanted) -> GitHubTarget | None:
    place = hearing.place
    if wanted.number is None:
        return None
    return GitHubTarget(
        repository=place.repository,
        repository_id=place.repository_id,
        installation_id=place.installation_id,
        number=wanted.number,
        author=wanted.author,
        url=wanted.url,
    )
