"""The planner as a process."""

import asyncio
from functools import partial

from libs.bus import Service
from libs.contracts.run import RunOpened, RunRejected
from libs.contracts.team import RunFollowedUp
from libs.settings import BusSettings
from services.planner.handlers import plan
from services.planner.settings import PlannerSettings

_DEADLINE_SECONDS = 3600.0


def build(settings: PlannerSettings | None = None) -> Service:
    """The service with its handler."""
    chosen = settings or PlannerSettings()
    service = Service("planner")
    register = service.step(
        "plan",
        on=(RunOpened, RunRejected, RunFollowedUp),
        retries=chosen.retries,
        deadline_seconds=_DEADLINE_SECONDS,
        concurrency=chosen.concurrency,
    )
    register(partial(plan, chosen))
    return service


def main() -> None:
    """Run until stopped."""
    asyncio.run(build().run(BusSettings()))


if __name__ == "__main__":
    main()
