"""The dead letters: what could not be handled, why, and how to send it to work again."""

from typing import Annotated

from fastapi import APIRouter, Path, Query

from libs.contracts.dead import DeadLetter
from services.gateway.context import Here
from services.gateway.handlers import replay
from services.gateway.identity.caller import LocalOperator
from services.gateway.models import DeadLetters, Replayed
from services.gateway.problems import Problem, documented, not_found

router = APIRouter(tags=["dead letters"])
Sequence = Annotated[int, Path(ge=1, le=2**63 - 1)]


def _unknown(sequence: int) -> Problem:
    return not_found(f"there is no dead letter {sequence}", "GET /api/dead lists them")


@router.get("/api/dead", responses=documented(403), summary="List dead letters, oldest first")
async def list_dead(
    who: LocalOperator, here: Here, after: Annotated[int, Query(ge=0, le=2**63 - 1)] = 0, limit: Annotated[int, Query(ge=1, le=100)] = 50
) -> DeadLetters:
    """The page after a sequence."""
    letters = await here.bus.letters.list(after, limit)
    return DeadLetters(letters=letters, next_after=letters[-1].sequence if len(letters) == limit else None)


@router.get("/api/dead/{sequence}", responses=documented(403, 404), summary="Show a dead letter")
async def show_dead(sequence: Sequence, who: LocalOperator, here: Here) -> DeadLetter:
    """The reason, where it died, and its payload in base64."""
    letter = await here.bus.letters.show(sequence)
    if letter is None:
        raise _unknown(sequence)
    return letter


@router.post("/api/dead/{sequence}/replay", responses=documented(403, 404, 409, 410), summary="Send a dead letter to work again")
async def replay_dead(sequence: Sequence, who: LocalOperator, here: Here) -> Replayed:
    """A fact from outside goes back to INBOX; a run's step is sent back to the event that it died on. The letter is removed."""
    letter = await here.bus.letters.show(sequence)
    if letter is None:
        raise _unknown(sequence)
    stream, placed = await replay(here.bus, letter, who.user)
    return Replayed(sequence=placed, stream=stream)


@router.delete("/api/dead/{sequence}", status_code=204, responses=documented(403, 404), summary="Remove a dead letter for good")
async def remove_dead(sequence: Sequence, who: LocalOperator, here: Here) -> None:
    """Nothing is done about what died."""
    if not await here.bus.letters.remove(sequence):
        raise _unknown(sequence)
