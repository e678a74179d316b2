"""What people and checks have said about a run since it was opened, as data for a prompt."""

from collections.abc import Sequence

from libs.agent.untrusted import wrap
from libs.contracts.fold import RunState
from libs.contracts.team import RunCommented, RunFollowedUp

_CHARACTERS = 24_000


def said_since(state: RunState, before: int | None = None) -> str:
    """The requests for more, the newest last, and the comments (those before the sequence `before`), each with who said it and where.

    Empty when nobody said anything. What does not fit is left out from the front.
    """
    comments = [c.event for c in state.comments if before is None or c.sequence < before]
    return "\n\n".join(part for part in (_requests(state), _words("Comments on the run", comments)) if part)


def _requests(state: RunState) -> str:
    if not state.follow_ups:
        return ""
    made = state.committed
    before = f"A change for the issue was made before; it is on the branch {made.branch}, which the work starts from. " if made else ""
    return _words(f"{before}More was asked for since. The last request is what is to be done now", state.follow_ups)


def _words(title: str, said: Sequence[RunFollowedUp | RunCommented]) -> str:
    parts, room = list[str](), _CHARACTERS
    for one in reversed(said):
        text = one.feedback if isinstance(one, RunFollowedUp) else one.text
        room -= len(text)
        if room < 0 and parts:
            parts.append("(earlier ones are left out)")
            break
        parts.append(wrap(text, f"{one.source.replace('_', ' ')} of {one.by} {one.url or ''}"))
    return f"{title}:\n" + "\n".join(reversed(parts)) if parts else ""
