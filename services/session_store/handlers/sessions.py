"""Questions about conversations as a whole."""

from libs.contracts.conversation import (
    CreateSession,
    DeleteSession,
    ForkSession,
    ListSessions,
    ReadSession,
    SessionDescription,
    SessionPage,
    UpdateSession,
)
from libs.contracts.envelope import Done
from services.session_store.conversations.forks import Forks
from services.session_store.conversations.sessions import Sessions
from services.session_store.handlers.refusing import refusing


async def create_session(sessions: Sessions, question: CreateSession) -> SessionDescription:
    """The session, new or not."""
    return await sessions.create(question)


async def read_session(sessions: Sessions, question: ReadSession) -> SessionDescription:
    """Raises Refusal("not_found")."""
    with refusing():
        return await sessions.read(question)


async def list_sessions(sessions: Sessions, question: ListSessions) -> SessionPage:
    """Raises Refusal("bad_cursor")."""
    with refusing():
        return await sessions.page(question)


async def update_session(sessions: Sessions, question: UpdateSession) -> SessionDescription:
    """Raises Refusal("not_found")."""
    with refusing():
        return await sessions.update(question)


async def delete_session(sessions: Sessions, question: DeleteSession) -> Done:
    """Raises Refusal("not_found")."""
    with refusing():
        await sessions.delete(question)
    return Done()


async def fork_session(forks: Forks, question: ForkSession) -> SessionDescription:
    """Raises Refusal("not_found" or "conflict")."""
    with refusing():
        return await forks.fork(question)
