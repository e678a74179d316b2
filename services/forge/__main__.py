"""The composition root of the forge."""

import asyncio

from libs.bus import Service
from libs.settings import BusSettings
from services.forge import incoming, outgoing
from services.forge.app import GitHubApp
from services.forge.settings import ForgeSettings


def build(settings: ForgeSettings | None = None) -> Service:
    """The service, wired. Steps go without a claim: what they make on GitHub is found again by its key."""
    chosen = settings or ForgeSettings()
    service = Service("forge")
    app = GitHubApp(chosen)
    incoming.register(service, chosen, app)
    outgoing.register(service, chosen, app)
    return service


def main() -> None:
    """Run until stopped."""
    asyncio.run(build().run(BusSettings()))


if __name__ == "__main__":
    main()
