"""Whose rows: the one place where queries on tables of conversations and memory are begun.

A query that is built here filters every table in it by tenant and owner; other modules import no `select` or `insert` (a test reads them).
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from sqlalchemy import (
    Delete,
    FromClause,
    Insert,
    LargeBinary,
    Select,
    Update,
    and_,
    bindparam,
    delete,
    func,
    insert,
    select,
    update,
)
from sqlalchemy.dialects.postgresql import insert as postgresql_insert
from sqlalchemy.dialects.sqlite import insert as sqlite_insert
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.elements import ColumnElement
from sqlalchemy.sql.functions import FunctionElement

from libs.contracts.conversation import OwnedCall


@dataclass(frozen=True)
class Owner:
    """A user of a tenant, as a verified token named them."""

    tenant: str
    user: str

    @classmethod
    def of(cls, call: OwnedCall) -> "Owner":
        """Who asks."""
        return cls(call.tenant, call.user)

    @property
    def scope(self) -> str:
        """One word that stands for the owner in the full-text tables: `u` and 80 bits in hex."""
        return "u" + hashlib.sha256(f"{self.tenant}\0{self.user}".encode()).hexdigest()[:20]

    def rows(self, table: FromClause) -> ColumnElement[bool]:
        """The base filter: the rows of `table` that are the owner's."""
        return and_(table.c.tenant == self.tenant, table.c.owner == self.user)

    def select(self, *columns: ColumnElement[Any]) -> Select[Any]:
        """Select columns; each table that one of them belongs to is filtered. Raises TypeError when none is a table's."""
        tables = {id(t): t for c in columns if (t := getattr(c, "table", None)) is not None}
        if not tables:
            raise TypeError("a query needs a column of a table: whose rows would it read?")
        return select(*columns).where(*(self.rows(t) for t in tables.values()))

    def insert(self, table: FromClause) -> Insert:
        """Insert rows given as `self.row(...)`."""
        return insert(table)  # type: ignore[arg-type]  # a Table

    def insert_new(self, table: FromClause, dialect: str) -> Any:
        """Insert rows; those whose key is there stay as they are."""
        made: Any = postgresql_insert if dialect == "postgresql" else sqlite_insert
        return made(table).on_conflict_do_nothing()

    def row(self, **values: Any) -> dict[str, Any]:
        """Values of a new row, with its owner."""
        return {**values, "tenant": self.tenant, "owner": self.user}

    def joined(self, texts: ColumnElement[str]) -> Select[Any]:
        """How many texts there are, and all in UTF-8 with commas between them, of a subquery that was begun here: `count`, `joined`."""
        columns: tuple[Any, ...] = (func.count().label("count"), _JoinedUtf8(texts).label("joined"))
        return select(*columns)

    def bound(self, **values: Any) -> dict[str, Any]:
        """Parameters of a statement that `SOMEONE` began."""
        return {**values, "of_tenant": self.tenant, "of_owner": self.user}

    def update(self, table: FromClause) -> Update:
        """Update the owner's rows."""
        return update(table).where(self.rows(table))  # type: ignore[arg-type]  # a Table

    def delete(self, table: FromClause) -> Delete:
        """Delete the owner's rows."""
        return delete(table).where(self.rows(table))  # type: ignore[arg-type]  # a Table

    def copy(self, table: FromClause, rows: Select[Any], columns: Sequence[str]) -> Insert:
        """Insert what a query of the owner's rows gives."""
        return insert(table).from_select(list(columns), rows)  # type: ignore[arg-type]  # a Table

    def given(self, table: FromClause, columns: Sequence[str], after: FromClause) -> Select[Any]:
        """The parameters `put_<column>` as a row of `table`, once for each row of `after`."""
        return select(*(bindparam(f"put_{name}", type_=table.c[name].type) for name in columns)).select_from(after)


class _JoinedUtf8(FunctionElement[bytes]):
    """Bytes, as the driver would else decode what the bus encodes again."""

    inherit_cache = True
    type = LargeBinary()


@compiles(_JoinedUtf8, "sqlite")
def _on_sqlite(joined: _JoinedUtf8, compiler: Any, **options: Any) -> str:
    return f"CAST(group_concat({compiler.process(joined.clauses, **options)}, ',') AS BLOB)"


@compiles(_JoinedUtf8, "postgresql")
def _on_postgresql(joined: _JoinedUtf8, compiler: Any, **options: Any) -> str:
    return f"string_agg(textsend({compiler.process(joined.clauses, **options)}), '\\x2c'::bytea)"


SOMEONE = Owner(cast(str, bindparam("of_tenant")), cast(str, bindparam("of_owner")))
"""Begins statements that are built once and run with `Owner.bound`; the database refuses to run one without its owner."""
