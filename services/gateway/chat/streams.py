"""How many streams a user may have open."""

from collections import Counter
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager

from services.gateway.identity.caller import Caller
from services.gateway.problems import Problem


class Streams:
    """How many streams each user has open at this replica."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._open: Counter[tuple[str, str]] = Counter()

    @contextmanager
    def one(self, who: Caller) -> Iterator[None]:
        """Room for one stream. Raises Problem 429: the user has as many open as a user may."""
        key = (who.tenant, who.user)
        if self._open[key] >= self._limit:
            raise Problem(
                429,
                "too-many-streams",
                f"a user may have {self._limit:,} streams open",
                "close some of them",
                headers={"Retry-After": "5"},
            )
        self._open[key] += 1
        try:
            yield
        finally:
            self._open[key] -= 1
            if not self._open[key]:
                del self._open[key]

    def room(self, who: Caller) -> AsyncExitStack:
        """Room for one stream until the block ends; `pop_all` of it keeps the room for whoever streams. Raises Problem 429."""
        taken = AsyncExitStack()
        taken.enter_context(self.one(who))
        return taken
