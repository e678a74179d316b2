"""The assistant as a process."""

import asyncio
from collections.abc import Mapping
from functools import partial

from libs.bus import Delivery, Service, Step
from libs.bus.questions import Asker
from libs.contracts.envelope import Done
from libs.contracts.turn import AwaitStable, DescribeAgents, ForgetConversation, Stability, TurnAdmitted
from libs.contracts.work import WorkEvent
from libs.settings import BusSettings
from services.assistant import handlers
from services.assistant.agents import AGENTS, Agent
from services.assistant.handlers import Kit
from services.assistant.settings import AssistantSettings
from services.assistant.skills import Library
from services.assistant.told import run_ended

_DEADLINE_SECONDS = 86_400.0


def build(settings: AssistantSettings | None = None, library: Library | None = None, agents: Mapping[str, Agent] = AGENTS) -> Service:
    """The service with its handlers. A turn's own limits end its loop; the deadline only ends one that hangs outside of it."""
    chosen = settings or AssistantSettings()
    kit = Kit(chosen, library or Library(BusSettings().home / "skills"), agents)
    service = Service("assistant")

    async def admit(delivery: Delivery) -> None:
        await handlers.admit(service.bus, delivery)

    async def due(delivery: Delivery) -> None:
        await handlers.due(service.bus, delivery)

    async def answer(event: TurnAdmitted, step: Step) -> WorkEvent | None:
        return await handlers.answer(kit, event, step)

    async def move_on(delivery: Delivery) -> None:
        await handlers.move_on(kit, service.bus, delivery)

    async def told(delivery: Delivery) -> None:
        await run_ended(service.bus, delivery)

    async def stable(question: AwaitStable, asker: Asker) -> Stability:
        return await handlers.stable(service.bus, question, asker)

    async def forget(question: ForgetConversation, asker: Asker) -> Done:
        return await handlers.forget(service.bus, question, asker)

    service.consume("admit", concurrency=64)(admit)
    service.consume("debounce", concurrency=16)(due)
    register = service.step(
        "turn", on=(TurnAdmitted,), retries=chosen.retries, deadline_seconds=_DEADLINE_SECONDS, concurrency=chosen.concurrency
    )
    register(answer)
    service.consume("next", concurrency=64)(move_on)
    service.consume("told", concurrency=16)(told)
    service.answer(AwaitStable, concurrency=1024)(stable)
    service.answer(ForgetConversation)(forget)
    service.answer(DescribeAgents)(partial(handlers.describe_agents, kit))
    return service


def main() -> None:
    """Run until stopped."""
    asyncio.run(build().run(BusSettings()))


if __name__ == "__main__":
    main()
