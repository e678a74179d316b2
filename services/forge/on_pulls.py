"""What happens to our own pull request: reviews, checks, a merge or a close by hand.

GitHub is asked how things stand now, so the order in which deliveries come in decides nothing.
"""

from libs.contracts.fold import RunState
from services.forge.comments import may_speak
from services.forge.domain import Word, ended_by_hand, feedback_of, hand_over, passed, person, standing, tired, weigh
from services.forge.hearing import Hearing

_WANTS_MORE = ("CHANGES_REQUESTED", "COMMENTED")
_OWN_APPROVAL = (
    "Thank you. An approval by the person who asked for this change does not count: somebody else with write permission is needed."
)
_TIRED = "The checks failed again after {times} attempts of mine that nobody asked for. Tell me what to do in a review or with `/retry …`."


async def on_review(hearing: Hearing) -> None:
    """A review, or a comment of one: the approval is weighed, and what it asks for is handed to the run as one piece."""
    fact = hearing.fact
    state = await hearing.run_of(fact.number, is_pull=True) if fact.number is not None else None
    if state is None or fact.number is None or fact.review_id is None:
        return
    reviews = await hearing.kit.github.reviews(hearing.place, fact.number)
    review = next((r for r in reviews if r.id == fact.review_id), None)
    if review is None or not review.login:
        return
    writer = await hearing.kit.github.may_write(hearing.place, review.login)
    counting = standing(reviews, review.login)
    await hearing.decide(state.run_id, weigh(counting, review.login, may_approve=writer))
    asked = state.opened is not None and state.opened.requested_by == person(review.login)
    if counting == review and review.state == "APPROVED" and asked:
        await hearing.say_once("own-approval", fact.number, _OWN_APPROVAL)
    if review.state in _WANTS_MORE and fact.action != "dismissed" and (writer or await may_speak(hearing, state)):
        comments = await hearing.kit.github.review_comments(hearing.place, fact.number, review.id)
        word = Word(person(review.login), "review", feedback_of(review, comments), review.url, f"review:{review.id}")
        await hearing.hand_over(state.run_id, word)


async def on_check(hearing: Hearing) -> None:
    """A check or a status of a commit ended: when all have, the run is told what they say together."""
    fact = hearing.fact
    if fact.event == "status" and fact.conclusion == "pending":
        return
    numbers = fact.pulls or tuple(await hearing.kit.rows.pulls_of_branch(hearing.place.repository_id, fact.head_ref))
    for number in numbers:
        state = await hearing.run_of(number, is_pull=True)
        if state is not None and fact.sha and await hearing.kit.github.head_of(hearing.place, number) == fact.sha:
            await _judge(hearing, state, number)


async def _judge(hearing: Hearing, state: RunState, number: int) -> None:
    sha = hearing.fact.sha
    checks = await hearing.kit.github.checks(hearing.place, sha)
    if checks.outcome == "passed":
        await hearing.decide(state.run_id, passed(sha))
    if checks.outcome != "failed":
        return
    key = f"checks:{sha}"
    if tired(state) and state.follow_ups[-1].key != key:
        await hearing.say_once(f"tired-{len(state.follow_ups)}", number, _TIRED.format(times=len(state.follow_ups)))
        return
    text = "Checks of the repository failed:\n\n" + "\n".join(f"- {failure}" for failure in checks.failures)
    await hearing.decide(state.run_id, hand_over(Word(f"github:{hearing.login.lower()}", "check", text, hearing.fact.url, key)))


async def on_pull(hearing: Hearing) -> None:
    """A person merged our pull request, or closed it."""
    fact = hearing.fact
    state = await hearing.run_of(fact.number, is_pull=True) if fact.number is not None else None
    if state is not None:
        await hearing.decide(state.run_id, ended_by_hand(fact))
