"""Full text on SQLite: FTS5 tables (words, scope). The words come cut and folded, so the tokeniser only splits at spaces."""

from collections.abc import Sequence
from functools import cache

from sqlalchemy import bindparam, column, text
from sqlalchemy.ext.asyncio import AsyncConnection

from services.session_store.compiled import Compiled
from services.session_store.search.words import Clause


def _match(clauses: Sequence[Clause], scopes: Sequence[str], any_of: bool) -> str:
    words = (" OR " if any_of else " AND ").join('"' + " ".join(c.words) + '"' + (" *" if c.prefix else "") for c in clauses)
    return " AND ".join([*(f"scope : {scope}" for scope in scopes), f"words : ({words})"])


async def find(
    connection: AsyncConnection, table: str, clauses: Sequence[Clause], scopes: Sequence[str], limit: int, *, any_of: bool
) -> list[tuple[int, str]]:
    """(number, words) of the newest rows in all `scopes` that hold all clauses, or one of them."""
    values = {"query": _match(clauses, scopes, any_of), "limit": limit}
    return [(row.number, row.words) for row in await _find(table).rows(connection, values)]


@cache
def _find(table: str) -> Compiled:
    found = text(f"SELECT rowid AS number, words FROM {table} WHERE {table} MATCH :query ORDER BY rowid DESC LIMIT :limit")
    return Compiled(found.columns(column("number"), column("words")))


@cache
def _insert(table: str) -> Compiled:
    return Compiled(text(f"INSERT INTO {table} (rowid, words, scope) VALUES (:number, :words, :scope)"))


async def add(connection: AsyncConnection, table: str, rows: Sequence[tuple[int, str]], scopes: Sequence[str]) -> None:
    """Index rows given as (number, words)."""
    values = [{"number": n, "words": w, "scope": " ".join(scopes)} for n, w in rows]
    if len(values) == 1:
        await _insert(table).rows(connection, values[0])
    else:
        await connection.execute(_insert(table).statement, values)


async def remove(connection: AsyncConnection, table: str, numbers: Sequence[int]) -> None:
    """Take rows out of the index."""
    query = text(f"DELETE FROM {table} WHERE rowid IN :numbers").bindparams(bindparam("numbers", expanding=True))
    await connection.execute(query, {"numbers": list(numbers)})


async def words_of(connection: AsyncConnection, table: str, numbers: Sequence[int]) -> dict[int, str]:
    """The indexed words of rows."""
    query = text(f"SELECT rowid, words FROM {table} WHERE rowid IN :numbers").bindparams(bindparam("numbers", expanding=True))
    return {int(n): str(w) for n, w in await connection.execute(query, {"numbers": list(numbers)})}
