"""Statements of the busiest paths, compiled once for each database and run on its driver: SQLAlchemy's own way costs four times as much."""

from collections import namedtuple
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Select, bindparam
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.sql.elements import ColumnElement

_Made = tuple[str, tuple[str, ...], Mapping[str, Any], Any]


class Compiled:
    """A statement whose lists have a fixed length; an insert names its `columns`.

    A writing transaction on PostgreSQL begins with the first statement that SQLAlchemy itself runs, so there it runs this one too.
    """

    def __init__(self, statement: Any, columns: Sequence[str] | None = None) -> None:
        self.statement = statement
        self._columns = columns
        self._made: dict[str, _Made] = {}

    async def rows(self, connection: AsyncConnection, values: Mapping[str, Any]) -> list[Any]:
        """The rows, their columns as attributes; none of a statement that returns nothing."""
        postgresql = connection.dialect.name == "postgresql"
        pooled: Any = connection.sync_connection.connection if connection.sync_connection else None
        if postgresql and not pooled.dbapi_connection.autocommit:
            found = await connection.execute(self.statement, values)
            return list(found.all()) if found.returns_rows else []
        sql, names, fixed, row = self._made.get(connection.dialect.name) or self._make(connection)
        arguments = [values[name] if name in values else fixed[name] for name in names]
        if postgresql:
            return [row(*record) for record in await pooled.driver_connection.fetch(sql, *arguments)]
        cursor = await pooled.driver_connection.cursor().execute(sql, arguments)
        return [row(*record) for record in await cursor.fetchall()]

    def _make(self, connection: AsyncConnection) -> _Made:
        compiled: Any = self.statement.compile(dialect=connection.dialect, column_keys=self._columns)
        columns: Any = [entry.keyname for entry in compiled._result_columns]
        row = namedtuple("row", columns, rename=True)  # type: ignore[misc]  # its fields are the query's
        made: _Made = (compiled.string, tuple(compiled.positiontup), compiled.params, row)
        return self._made.setdefault(connection.dialect.name, made)


class Listed:
    """A query for the rows whose column has one of some values, compiled for a few lengths of their list."""

    def __init__(self, query: Select[Any], column: ColumnElement[Any], *sizes: int) -> None:
        self._by_size = {size: Compiled(query.where(column.in_([bindparam(f"one_{n}") for n in range(size)]))) for size in sizes}

    async def rows(self, connection: AsyncConnection, wanted: Sequence[Any], values: Mapping[str, Any]) -> list[Any]:
        """The rows; the last of the wanted values fills the list."""
        if not wanted:
            return []
        size = next(size for size in self._by_size if size >= len(wanted))
        filled = {f"one_{n}": wanted[min(n, len(wanted) - 1)] for n in range(size)}
        return await self._by_size[size].rows(connection, {**values, **filled})
