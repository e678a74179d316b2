"""The composition root of the session store."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy.ext.asyncio import AsyncEngine

from libs.bus import Asker, Delivery, Service
from libs.contracts import conversation as c
from libs.contracts import memory as m
from libs.contracts.envelope import Message, Question
from libs.contracts.session import ListRuns, ReadRun, ReadTrace
from libs.settings import BusSettings
from services.session_store.conversations.contexts import Contexts
from services.session_store.conversations.find import Finder
from services.session_store.conversations.forks import Forks
from services.session_store.conversations.history import Histories
from services.session_store.conversations.messages import Messages
from services.session_store.conversations.sessions import Sessions
from services.session_store.conversations.summaries import Summaries
from services.session_store.database import Database, create_engine
from services.session_store.handlers import contexts, memory, messages, runs, sessions
from services.session_store.memory.memories import Memories
from services.session_store.settings import SessionStoreSettings
from services.session_store.store import Store

Answer = Callable[[Any, Any], Awaitable[Message]]
ANSWERS: Mapping[type[Question[Any]], tuple[type, Answer]] = {
    ListRuns: (Store, runs.list_runs),
    ReadRun: (Store, runs.read_run),
    ReadTrace: (Store, runs.read_trace),
    c.CreateSession: (Sessions, sessions.create_session),
    c.ReadSession: (Sessions, sessions.read_session),
    c.ListSessions: (Sessions, sessions.list_sessions),
    c.UpdateSession: (Sessions, sessions.update_session),
    c.DeleteSession: (Sessions, sessions.delete_session),
    c.ForkSession: (Forks, sessions.fork_session),
    c.AppendMessages: (Messages, messages.append_messages),
    c.ReadHistory: (Histories, messages.read_history),
    c.ReadBranches: (Messages, messages.read_branches),
    c.ReadTree: (Messages, messages.read_tree),
    c.PlanCompaction: (Summaries, messages.plan_compaction),
    c.StoreCompaction: (Summaries, messages.store_compaction),
    c.SearchMessages: (Finder, messages.search_messages),
    c.ReadContexts: (Contexts, contexts.read_contexts),
    c.SetContext: (Contexts, contexts.set_context),
    c.SearchContext: (Contexts, contexts.search_context),
    c.LoadContext: (Contexts, contexts.load_context),
    m.Remember: (Memories, memory.remember),
    m.Recall: (Memories, memory.recall),
    m.ListMemory: (Memories, memory.list_memory),
    m.Forget: (Memories, memory.forget),
    m.MarkIngested: (Memories, memory.mark_ingested),
}
"""Who answers what: a handler, and the part of the store that it is given."""


@dataclass(frozen=True)
class Opened:
    """The open database and everything that queries it."""

    database: Database
    parts: Mapping[type, Any]

    @classmethod
    def on(cls, engine: AsyncEngine) -> "Opened":
        """All parts on one engine."""
        database = Database(engine)
        conversational: tuple[Any, ...] = (Sessions, Forks, Messages, Histories, Summaries, Finder, Contexts, Memories)
        return cls(database, {Store: Store(database), **{part: part(database) for part in conversational}})

    @property
    def runs(self) -> Store:
        """The read models of runs."""
        store: Store = self.parts[Store]
        return store


class Opening:
    """The store, opened by the first who needs it: the schema is brought up to date before anybody reads."""

    def __init__(self, make: Callable[[], Opened]) -> None:
        self._make = make
        self._lock = asyncio.Lock()
        self._opened: Opened | None = None

    async def opened(self) -> Opened:
        """The open store. Raises SchemaTooNewError."""
        async with self._lock:
            if self._opened is None:
                opened = self._make()
                await opened.database.open()
                self._opened = opened
            return self._opened

    async def close(self) -> None:
        """Close the store if it was opened."""
        opened, self._opened = self._opened, None
        if opened is not None:
            await opened.database.close()


def build() -> Service:
    """The service with its views, answers and sweep."""
    settings = SessionStoreSettings()
    service = Service("session_store")
    opening = Opening(lambda: Opened.on(create_engine(settings.url())))
    _views(service, opening)
    for question, (part, handler) in ANSWERS.items():
        service.answer(question)(_answering(opening, part, handler))

    async def sweep() -> None:
        while True:
            store = (await opening.opened()).runs
            await runs.sweep(store, keep_days=settings.trace_keep_days, keep_spans=settings.trace_keep_spans)
            await asyncio.sleep(settings.sweep_seconds)

    service.background(sweep)
    service.on_close(opening.close)
    return service


def _views(service: Service, opening: Opening) -> None:
    @service.view("runs", "RUN", events=False)
    async def project(batch: list[Delivery]) -> None:
        await runs.project((await opening.opened()).runs, service.bus.journal.state, batch)

    @service.view("spans", "TRACE", events=False)
    async def store_spans(batch: list[Delivery]) -> None:
        await runs.store_spans((await opening.opened()).runs, batch)


def _answering(opening: Opening, part: type, handler: Answer) -> Callable[[Any, Asker], Awaitable[Any]]:
    async def answer(question: Any, _: Asker) -> Message:
        return await handler((await opening.opened()).parts[part], question)

    return answer


def main() -> None:
    """Run until told to stop."""
    asyncio.run(build().run(BusSettings()))


if __name__ == "__main__":
    main()
