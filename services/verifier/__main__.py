"""The verifier as a process."""

import asyncio

from libs.bus import Service
from libs.contracts.run import RunEdited
from libs.settings import BusSettings
from services.verifier.handlers import verify
from services.verifier.settings import VerifierSettings

_DEADLINE_SECONDS = 2 * 86_400.0


def build(settings: VerifierSettings | None = None) -> Service:
    """The service with its handler. Each command has a time limit of its own; the deadline only ends a step that hangs outside of one."""
    chosen = settings or VerifierSettings()
    service = Service("verifier")
    service.step("verify", on=(RunEdited,), retries=chosen.retries, deadline_seconds=_DEADLINE_SECONDS, concurrency=chosen.concurrency)(
        verify
    )
    return service


def main() -> None:
    """Run until stopped."""
    asyncio.run(build().run(BusSettings()))


if __name__ == "__main__":
    main()
