"""The composition root of the sandbox service."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from libs.bus import Asker, Service
from libs.contracts import sandbox as questions
from libs.contracts.envelope import Message, Question
from libs.settings import BusSettings
from services.sandbox import handlers
from services.sandbox.backends.process import ProcessBackend
from services.sandbox.refusals import refusing
from services.sandbox.registries import EgressProvider
from services.sandbox.settings import SandboxSettings
from services.sandbox.workspaces import Workspaces

Handler = Callable[[handlers.Desk, Any, Asker], Awaitable[Message]]

ANSWERS: dict[type[Question[Any]], Handler] = {
    questions.OpenWorkspace: handlers.open_workspace,
    questions.SetUp: handlers.set_up,
    questions.ReadFile: handlers.read_file,
    questions.ListDirectory: handlers.list_directory,
    questions.Glob: handlers.glob,
    questions.Grep: handlers.grep,
    questions.WriteFiles: handlers.write_files,
    questions.Execute: handlers.execute,
    questions.TakeSnapshot: handlers.take_snapshot,
    questions.CloseWorkspace: handlers.close_workspace,
    questions.CheckSandbox: handlers.check,
}


class Opening:
    """The desk, laid out by the first who needs it: looking for toolchains asks other programs and takes a moment."""

    def __init__(self, service: Service, settings: SandboxSettings) -> None:
        self._service = service
        self._settings = settings
        self._lock = asyncio.Lock()
        self._desk: handlers.Desk | None = None

    async def desk(self) -> handlers.Desk:
        """The desk. Raises BackendUnavailable when bubblewrap is missing."""
        async with self._lock:
            if self._desk is None:
                self._desk = await asyncio.to_thread(self._lay_out, self._settings.folder("sandbox"))
            return self._desk

    async def close(self) -> None:
        """End what runs."""
        if self._desk is not None:
            await self._desk.workspaces.interrupt()

    async def cancelled(self, run_id: str) -> None:
        """End what runs for a run that a person has cancelled; a workspace has its run's id."""
        if self._desk is not None:
            await self._desk.workspaces.interrupt_one(run_id)

    def _lay_out(self, folder: Path) -> handlers.Desk:
        settings = self._settings
        egress = EgressProvider(settings.registry_hosts)
        backend = ProcessBackend.on_this_machine(folder / "runtime", settings.toolchain_prefixes, egress)
        workspaces = Workspaces(folder / "workspaces", backend, settings.limits, settings.max_file_bytes)
        return handlers.Desk(workspaces, backend, self._service.bus.ask)


def build(settings: SandboxSettings | None = None) -> Service:
    """The service with its answers and its sweep."""
    settings = settings or SandboxSettings()
    service = Service("sandbox")
    opening = Opening(service, settings)
    for question, handler in ANSWERS.items():
        service.answer(question)(_answer(opening, handler))

    async def sweep() -> None:
        while True:
            await (await opening.desk()).workspaces.sweep(settings.idle_seconds)
            await asyncio.sleep(settings.sweep_seconds)

    service.background(sweep)
    service.on_close(opening.close)
    service.on_cancelled(opening.cancelled)
    return service


def _answer(opening: Opening, handler: Handler) -> Callable[[Any, Asker], Awaitable[Message]]:
    async def answer(question: Any, asker: Asker) -> Message:
        with refusing():
            desk = await opening.desk()
        return await handler(desk, question, asker)

    return answer


def main() -> None:
    """Run until told to stop."""
    asyncio.run(build().run(BusSettings()))


if __name__ == "__main__":
    main()
