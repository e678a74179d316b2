"""The full-text index, whatever the database."""

from collections.abc import Sequence
from types import ModuleType

from sqlalchemy.ext.asyncio import AsyncConnection

from services.session_store.search import postgresql, sqlite
from services.session_store.search.ranking import CANDIDATES, rank
from services.session_store.search.words import Clause, loosened

_BATCH = 500
MESSAGE_SEARCH, ENTRY_SEARCH, MEMORY_SEARCH = "message_search", "entry_search", "memory_search"


class Index:
    """One full-text table inside the caller's transaction. Rows lie in scopes: a search sees those that are in all it names."""

    def __init__(self, connection: AsyncConnection, table: str) -> None:
        self._connection = connection
        self._table = table
        self._sql: ModuleType = postgresql if connection.dialect.name == "postgresql" else sqlite

    async def add(self, rows: Sequence[tuple[int, str]], *scopes: str) -> None:
        """Index rows given as (number, words as `words.indexed` makes them)."""
        if rows:
            await self._sql.add(self._connection, self._table, rows, scopes)

    async def remove(self, numbers: Sequence[int]) -> None:
        """Take rows out."""
        for start in range(0, len(numbers), _BATCH):
            await self._sql.remove(self._connection, self._table, numbers[start : start + _BATCH])

    async def copy(self, numbers: dict[int, int], *scopes: str) -> None:
        """Index new rows with the words of old ones: `numbers` leads from old to new."""
        old = list(numbers)
        for start in range(0, len(old), _BATCH):
            words: dict[int, str] = await self._sql.words_of(self._connection, self._table, old[start : start + _BATCH])
            await self.add([(numbers[n], w) for n, w in words.items()], *scopes)

    async def search(self, clauses: Sequence[Clause], *scopes: str, limit: int, any_of: bool = False) -> list[tuple[int, float]]:
        """(number, score) of the best rows with all clauses, or with any word of them. Of many that match, the newest 300 are ranked."""
        if any_of:
            clauses = loosened(clauses)
        if not clauses:
            return []
        found = await self._sql.find(self._connection, self._table, clauses, scopes, CANDIDATES, any_of=any_of)
        return rank(found, clauses)[:limit]
