"""Which kinds of agents there are."""

import asyncio
import re
import time

from libs.contracts.turn import Agents, DescribeAgents
from services.gateway.clients import GatewayBus
from services.gateway.problems import not_found

_CACHE_SECONDS = 30.0


class Directory:
    """The kinds of agents that there are, remembered for a moment."""

    def __init__(self, bus: GatewayBus) -> None:
        self._bus = bus
        self._found = Agents(agents=())
        self._until = 0.0
        self._lock = asyncio.Lock()

    async def all(self) -> Agents:
        """The kinds. Raises NoAnswer: the assistant does not answer."""
        async with self._lock:
            if time.monotonic() >= self._until:
                self._found = await self._bus.ask(DescribeAgents())
                self._until = time.monotonic() + _CACHE_SECONDS
            return self._found

    async def name_of(self, agent: str) -> str:
        """An agent's own name, given as it is or as a class is called (`ChatAgent` means `chat-agent`). Raises Problem 404."""
        names = [found.name for found in (await self.all()).agents]
        for name in (agent, kebab(agent)):
            if name in names:
                return name
        raise not_found(f"there is no agent {agent[:64]}", f"the agents are: {', '.join(names)}")


def kebab(name: str) -> str:
    """A class name as it stands in addresses: `ChatAgent` → `chat-agent`, `LOUD_AGENT` → `loud-agent`."""
    if name == name.upper():
        return name.lower().replace("_", "-")
    return re.sub(r"(?<!^)(?=[A-Z])", "-", name).lower().replace("_", "-").strip("-")
