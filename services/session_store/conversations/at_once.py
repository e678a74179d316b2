"""One new message appended with one statement, on PostgreSQL: five round trips fewer than a transaction, and nobody waits for a lock.

The statement changes nothing when the session was changed after it was read: `updated_us` is another one then.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import bindparam
from sqlalchemy.engine import Row

from libs.contracts.conversation import Appended, AppendMessages
from services.session_store.compiled import Compiled
from services.session_store.conversations.append import COUNT, STORED, Append, Change, Ready
from services.session_store.conversations.work import Work
from services.session_store.database import Database
from services.session_store.errors import SessionStoreError
from services.session_store.owned import SOMEONE, Owner
from services.session_store.search.index import MESSAGE_SEARCH
from services.session_store.search.postgresql import indexing, vector
from services.session_store.tables import MESSAGES, SESSIONS

_OWNED_NUMBER = tuple(SESSIONS.c[name] for name in ("number", "tenant", "owner"))
_COUNTED = COUNT.where(SESSIONS.c.updated_us == bindparam("was_updated_us")).returning(*_OWNED_NUMBER).cte("counted")
_ADDED = SOMEONE.copy(MESSAGES, SOMEONE.given(MESSAGES, STORED, after=_COUNTED), STORED).returning(MESSAGES.c.number).cte("added")
_AT_ONCE = Compiled(SOMEONE.select(_COUNTED.c.number).add_cte(_ADDED, indexing(MESSAGE_SEARCH, "added")))


class NotAtOnceError(Exception):
    """The append needs a transaction, or somebody was faster."""


class AppendAtOnce(Append):
    """One append without a transaction."""

    async def _write(self, change: Change, known: Mapping[str, Row[Any]]) -> dict[str, str]:
        if change.replaced or change.placed.forks or len(change.stored) != 1:
            raise NotAtOnceError
        ((message_id, item),) = change.stored.items()
        row = {f"put_{name}": value for name, value in self.row(change, message_id).items()}
        scopes = (self._work.owner.scope, f"s{self._session.number}")
        search = {"search_words": item.words, "search_vector": vector(item.words, scopes)}
        values = {**self.counters(change), **row, **search, "was_updated_us": self._session.updated_us}
        if not await _AT_ONCE.rows(self._work.connection, values):
            raise NotAtOnceError
        return dict(change.bodies)


async def append_at_once(database: Database, question: AppendMessages, batch: Sequence[Ready]) -> Appended | None:
    """What was appended; None when it takes a transaction, or when only a transaction can tell that it is refused."""
    if database.dialect != "postgresql" or len(batch) != 1:
        return None
    async with database.reading() as connection:
        work = Work(connection, Owner.of(question))
        try:
            return await AppendAtOnce(work, await work.session(question.session_id), question).run(batch)
        except (NotAtOnceError, SessionStoreError):
            return None
