"""Full text on PostgreSQL: tables (number, words, vector) with a GIN index.

The words come cut and folded, so the vector is written out and no parser of the server sees them.
A scope is an entry that begins with a dot.
"""

from collections.abc import Sequence
from functools import cache

from sqlalchemy import CTE, bindparam, column, text
from sqlalchemy.ext.asyncio import AsyncConnection

from services.session_store.compiled import Compiled
from services.session_store.search.words import Clause

_POSITIONS = 256
_PLAN_EACH, _PLAN_AS_USUAL = Compiled(text("SET plan_cache_mode = force_custom_plan")), Compiled(text("RESET plan_cache_mode"))
"""Word statistics decide how a search runs, so no plan is made without its words; planning costs other statements more than they take."""


def vector(words: str, scopes: Sequence[str]) -> str:
    """A `tsvector` as text."""
    places: dict[str, list[int]] = {}
    for at, word in enumerate(words.split(" ") if words else (), 1):
        places.setdefault(word, []).append(at)
    entries = [f"'{word}':{','.join(map(str, at[:_POSITIONS]))}" for word, at in places.items()]
    return " ".join([*entries, *(f"'.{scope}'" for scope in scopes)])


def _query(clauses: Sequence[Clause], scopes: Sequence[str], any_of: bool) -> str:
    phrases = ["(" + " <-> ".join(f"'{w}'" for w in c.words) + (":*" if c.prefix else "") + ")" for c in clauses]
    return " & ".join([*(f"'.{scope}'" for scope in scopes), "(" + (" | " if any_of else " & ").join(phrases) + ")"])


async def find(
    connection: AsyncConnection, table: str, clauses: Sequence[Clause], scopes: Sequence[str], limit: int, *, any_of: bool
) -> list[tuple[int, str]]:
    """(number, words) of the newest rows in all `scopes` that hold all clauses, or one of them."""
    values = {"query": _query(clauses, scopes, any_of), "limit": limit}
    await _PLAN_EACH.rows(connection, {})
    rows = await _find(table).rows(connection, values)
    await _PLAN_AS_USUAL.rows(connection, {})
    return [(row.number, row.words) for row in rows]


@cache
def _find(table: str) -> Compiled:
    found = text(f"SELECT number, words FROM {table} WHERE vector @@ CAST(:query AS tsquery) ORDER BY number DESC LIMIT :limit")
    return Compiled(found.columns(column("number"), column("words")))


async def add(connection: AsyncConnection, table: str, rows: Sequence[tuple[int, str]], scopes: Sequence[str]) -> None:
    """Index rows given as (number, words)."""
    query = text(f"INSERT INTO {table} (number, words, vector) VALUES (:number, :words, CAST(:vector AS tsvector))")
    await connection.execute(query, [{"number": n, "words": w, "vector": vector(w, scopes)} for n, w in rows])


def indexing(table: str, added: str) -> CTE:
    """Indexes the row whose number the expression `added` gives: `:search_words`, `:search_vector`; nothing without words."""
    row = (
        f"SELECT number, CAST(:search_words AS text), CAST(CAST(:search_vector AS text) AS tsvector) FROM {added} WHERE :search_words <> ''"
    )
    return text(f"INSERT INTO {table} (number, words, vector) {row} RETURNING number").columns(column("number")).cte("indexed")


async def remove(connection: AsyncConnection, table: str, numbers: Sequence[int]) -> None:
    """Take rows out of the index."""
    query = text(f"DELETE FROM {table} WHERE number IN :numbers").bindparams(bindparam("numbers", expanding=True))
    await connection.execute(query, {"numbers": list(numbers)})


async def words_of(connection: AsyncConnection, table: str, numbers: Sequence[int]) -> dict[int, str]:
    """The indexed words of rows."""
    query = text(f"SELECT number, words FROM {table} WHERE number IN :numbers").bindparams(bindparam("numbers", expanding=True))
    return {int(n): str(w) for n, w in await connection.execute(query, {"numbers": list(numbers)})}
