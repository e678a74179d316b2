"""The editor as a process."""

import asyncio
from functools import partial

from libs.bus import Service
from libs.contracts.run import RunPlanned
from libs.settings import BusSettings
from services.editor.handlers import edit
from services.editor.settings import EditorSettings

_DEADLINE_SECONDS = 2 * 86_400.0


def build(settings: EditorSettings | None = None) -> Service:
    """The service with its handler. The policy's own limits end a loop; the deadline only ends one that hangs outside of it."""
    chosen = settings or EditorSettings()
    service = Service("editor")
    register = service.step(
        "edit", on=(RunPlanned,), retries=chosen.retries, deadline_seconds=_DEADLINE_SECONDS, concurrency=chosen.concurrency
    )
    register(partial(edit, chosen))
    return service


def main() -> None:
    """Run until stopped."""
    asyncio.run(build().run(BusSettings()))


if __name__ == "__main__":
    main()
