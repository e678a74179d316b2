"""Finding messages by their words."""

from libs.contracts.conversation import SearchHit, SearchMessages, SearchResult
from services.session_store.compiled import Listed
from services.session_store.conversations.content import parsed, plain_text
from services.session_store.conversations.sessions import instant
from services.session_store.conversations.work import Work
from services.session_store.database import Database
from services.session_store.owned import SOMEONE, Owner
from services.session_store.search.index import MESSAGE_SEARCH, Index
from services.session_store.search.ranking import marked
from services.session_store.search.words import loosened, parse
from services.session_store.tables import MESSAGES, SESSIONS

_COLUMNS = (MESSAGES.c.number, MESSAGES.c.session, MESSAGES.c.message_id, MESSAGES.c.role, MESSAGES.c.body, MESSAGES.c.created_us)
_NAMES = (SESSIONS.c.number, SESSIONS.c.session_id, SESSIONS.c.name)
_MESSAGES = Listed(SOMEONE.select(*_COLUMNS), MESSAGES.c.number, 20, 100)
_SESSIONS = Listed(SOMEONE.select(*_NAMES), SESSIONS.c.number, 20, 100)


class Finder:
    """Searches one session or all of a user's."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def messages(self, question: SearchMessages) -> SearchResult:
        """The best hits: messages with every word; when there are none and nothing is quoted, with some.

        Raises QueryError, NotFoundError.
        """
        clauses = parse(question.query)
        async with self._database.reading() as connection:
            work = Work(connection, Owner.of(question))
            scopes = [work.owner.scope]
            if question.session_id is not None:
                scopes.append(f"s{(await work.session(question.session_id)).number}")
            index = Index(connection, MESSAGE_SEARCH)
            found = await index.search(clauses, *scopes, limit=question.limit)
            if not found and '"' not in question.query:
                found = await index.search(clauses, *scopes, limit=question.limit, any_of=True)
            scores = dict(found)
            rows = await _MESSAGES.rows(connection, list(scores), work.owner.bound())
            # Not a join: SQLite would begin it with the owner's sessions and read all of their messages.
            names = await _SESSIONS.rows(connection, sorted({row.session for row in rows}), work.owner.bound())
            sessions = {session.number: session for session in names}
        hits = [
            SearchHit(
                session_id=sessions[row.session].session_id,
                session_name=sessions[row.session].name,
                message_id=row.message_id,
                role=row.role,
                excerpt=marked(plain_text(parsed([row.body])[0].parts), clauses + loosened(clauses)),
                score=round(scores[row.number], 4),
                created_at=instant(row.created_us),
            )
            for row in sorted(rows, key=lambda r: (-scores[r.number], -r.number))
        ]
        return SearchResult(hits=tuple(hits))
