"""The forge's intake as a process of its own, so that a test can kill it."""

import asyncio

from libs.bus import Service
from libs.settings import BusSettings
from services.forge import incoming
from services.forge.app import GitHubApp
from services.forge.settings import ForgeSettings

if __name__ == "__main__":
    chosen = ForgeSettings()
    service = Service("forge")
    incoming.register(service, chosen, GitHubApp(chosen))
    asyncio.run(service.run(BusSettings()))
