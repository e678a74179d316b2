"""Tables and every query of the read models of runs.

A run's row is written together with the sequence of the last message in it, so a batch that comes twice changes nothing.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    ColumnElement,
    Index,
    Text,
    and_,
    bindparam,
    delete,
    func,
    insert,
    or_,
    select,
    text,
    update,
)
from sqlalchemy import String as Varchar
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlmodel import Field, SQLModel, col

from libs.contracts.fold import RunState
from libs.contracts.session import ListRuns, RunPage, RunSummary, Span
from services.session_store.database import Database
from services.session_store.domain import Link, Projected, decode_cursor, encode_cursor, fold_batch, microseconds, summary

LOCAL = "local"
_CHUNK = 400


class RunRow(SQLModel, table=True):
    """The fold of one run and what is searched in it; `state` is `RunState` as JSON."""

    __tablename__ = "runs"
    __table_args__ = (
        Index("runs_newest", "tenant", "created_us", "run_id"),
        Index("runs_status", "tenant", "status", "created_us"),
        Index("runs_issue", "tenant", "issue_id"),
        Index("runs_owner", "tenant", "owner_tenant", "owner", "created_us"),
    )

    tenant: str = Field(default=LOCAL, primary_key=True, max_length=64)
    run_id: str = Field(primary_key=True, max_length=64)
    sequence: int = Field(sa_column=Column(BigInteger, nullable=False))
    status: str = Field(max_length=32)
    issue_id: str = Field(max_length=200)
    repo: str = Field(sa_column=Column(Text, nullable=False))
    title_folded: str = Field(sa_column=Column(Text, nullable=False))
    created_us: int = Field(sa_column=Column(BigInteger, nullable=False))
    state: str = Field(sa_column=Column(Text, nullable=False))
    owner_tenant: str = Field(default=LOCAL, max_length=64, sa_column_kwargs={"server_default": LOCAL})
    owner: str = Field(default=LOCAL, max_length=200, sa_column_kwargs={"server_default": LOCAL})


class SpanRow(SQLModel, table=True):
    """One finished span; `span` is `libs.contracts.session.Span` as JSON."""

    __tablename__ = "spans"
    __table_args__ = (Index("spans_end", "end_ns"),)

    tenant: str = Field(default=LOCAL, primary_key=True, max_length=64)
    trace_id: str = Field(sa_column=Column(Varchar(32), primary_key=True))
    span_id: str = Field(sa_column=Column(Varchar(16), primary_key=True))
    start_ns: int = Field(sa_column=Column(BigInteger, nullable=False))
    end_ns: int = Field(sa_column=Column(BigInteger, nullable=False))
    span: str = Field(sa_column=Column(Text, nullable=False))


_RUNS = SQLModel.metadata.tables["runs"]
_ADD_SPANS = text(
    "INSERT INTO spans (tenant, trace_id, span_id, start_ns, end_ns, span)"
    " VALUES (:tenant, :trace_id, :span_id, :start_ns, :end_ns, :span) ON CONFLICT DO NOTHING"
)


class Store:
    """Every query. One instance serves many tasks at once."""

    def __init__(self, database: Database, tenant: str = LOCAL) -> None:
        self._database = database
        self._tenant = tenant

    async def open(self) -> None:
        """Bring the schema up to date. Raises SchemaTooNewError."""
        await self._database.open()

    async def close(self) -> None:
        """Give the connections back."""
        await self._database.close()

    async def project(self, batch: Sequence[Link]) -> set[str]:
        """Fold `batch` into the rows of its runs, all in one transaction; returns the runs that must be read anew (see `fold_batch`)."""
        async with self._database.writing() as connection:
            known = await self._projected(connection, sorted({link.run_id for link in batch}))
            moved, gapped = fold_batch(known, batch)
            await self._save(connection, known, moved)
        return gapped

    async def replace(self, run: Projected) -> None:
        """Store one run whole, unless a newer one is there."""
        async with self._database.writing() as connection:
            known = await self._projected(connection, [run.state.run_id])
            if run.state.run_id not in known or known[run.state.run_id].sequence < run.sequence:
                await self._save(connection, known, {run.state.run_id: run})

    async def _save(self, connection: AsyncConnection, known: Mapping[str, Projected], moved: Mapping[str, Projected]) -> None:
        fresh = [_row(self._tenant, run) for run_id, run in moved.items() if run_id not in known]
        stale = [
            _row(self._tenant, run) | {"of_tenant": self._tenant, "of_run": run_id} for run_id, run in moved.items() if run_id in known
        ]
        if fresh:
            await connection.execute(insert(_RUNS), fresh)
        if stale:
            key = and_(_RUNS.c.tenant == bindparam("of_tenant"), _RUNS.c.run_id == bindparam("of_run"))
            await connection.execute(update(_RUNS).where(key), stale)

    async def _projected(self, connection: AsyncConnection, run_ids: Sequence[str]) -> dict[str, Projected]:
        found: dict[str, Projected] = {}
        for start in range(0, len(run_ids), _CHUNK):
            chunk = col(RunRow.run_id).in_(run_ids[start : start + _CHUNK])
            query = select(col(RunRow.run_id), col(RunRow.sequence), col(RunRow.state)).where(col(RunRow.tenant) == self._tenant, chunk)
            for run_id, sequence, state in await connection.execute(query.with_for_update()):
                found[run_id] = Projected(sequence, RunState.model_validate_json(state))
        return found

    async def state(self, run_id: str) -> RunState | None:
        """The last known state of a run."""
        query = select(col(RunRow.state)).where(col(RunRow.tenant) == self._tenant, col(RunRow.run_id) == run_id)
        async with self._database.reading() as connection:
            found = (await connection.execute(query)).scalar_one_or_none()
        return RunState.model_validate_json(found) if found is not None else None

    async def runs(self, question: ListRuns) -> RunPage:
        """A page of runs, newest first. A run that is opened meanwhile appears before the page, never inside a later one.

        Raises:
            CursorError: the cursor was not given out here.
        """
        newest = (col(RunRow.created_us).desc(), col(RunRow.run_id).desc())
        columns = (col(RunRow.created_us), col(RunRow.run_id), col(RunRow.state))
        query = select(*columns).where(*self._conditions(question)).order_by(*newest).limit(question.limit + 1)
        async with self._database.reading() as connection:
            rows = (await connection.execute(query)).all()
        more = len(rows) > question.limit
        shown = rows[: question.limit]
        runs: list[RunSummary] = [s for r in shown if (s := summary(RunState.model_validate_json(r[2])))]
        return RunPage(runs=tuple(runs), next_cursor=encode_cursor((shown[-1][0], shown[-1][1])) if more else None)

    def _conditions(self, question: ListRuns) -> list[ColumnElement[bool]]:
        found: list[ColumnElement[bool]] = [col(RunRow.tenant) == self._tenant, col(RunRow.owner_tenant) == question.tenant]
        if question.user is not None:
            found.append(col(RunRow.owner) == question.user)
        if question.cursor is not None:
            created, run_id = decode_cursor(question.cursor)
            same = and_(col(RunRow.created_us) == created, col(RunRow.run_id) < run_id)
            found.append(or_(col(RunRow.created_us) < created, same))
        for column, value in ((RunRow.status, question.status), (RunRow.issue_id, question.issue_id), (RunRow.repo, question.repo)):
            if value is not None:
                found.append(col(column) == value)
        if question.text:
            found.append(col(RunRow.title_folded).contains(question.text.casefold(), autoescape=True))
        return found

    async def add_spans(self, spans: Sequence[Span]) -> None:
        """Store spans; one that is there stays as it is."""
        rows = [_span_row(self._tenant, span) for span in spans]
        async with self._database.writing() as connection:
            for start in range(0, len(rows), _CHUNK):
                await connection.execute(_ADD_SPANS, rows[start : start + _CHUNK])

    async def trace(self, trace_id: str, limit: int) -> tuple[Span, ...]:
        """The spans of a trace in order of their start, the first `limit`."""
        query = select(col(SpanRow.span)).where(col(SpanRow.tenant) == self._tenant, col(SpanRow.trace_id) == trace_id)
        query = query.order_by(col(SpanRow.start_ns), col(SpanRow.span_id)).limit(limit)
        async with self._database.reading() as connection:
            return tuple(Span.model_validate_json(s) for s in (await connection.execute(query)).scalars())

    async def sweep_spans(self, *, ended_before_ns: int, keep: int) -> int:
        """Delete spans that ended before a time, then the oldest ones over `keep`; returns how many went."""
        async with self._database.writing() as connection:
            old = await connection.execute(delete(SpanRow).where(col(SpanRow.end_ns) < ended_before_ns))
            cut = select(col(SpanRow.end_ns)).order_by(col(SpanRow.end_ns).desc()).offset(keep).limit(1)
            newest_over = (await connection.execute(cut)).scalar_one_or_none()
            if newest_over is None:
                return old.rowcount
            over = await connection.execute(delete(SpanRow).where(col(SpanRow.end_ns) <= newest_over))
            return old.rowcount + over.rowcount

    async def count_spans(self) -> int:
        """How many spans are stored."""
        async with self._database.reading() as connection:
            return int((await connection.execute(select(func.count()).select_from(SpanRow))).scalar_one())


def _row(tenant: str, run: Projected) -> dict[str, Any]:
    state, opened = run.state, run.state.opened
    return {
        "tenant": tenant,
        "run_id": state.run_id,
        "sequence": run.sequence,
        "status": state.status,
        "issue_id": opened.issue.id if opened else "",
        "repo": opened.repo if opened else "",
        "title_folded": opened.issue.title.casefold().replace("\0", "") if opened else "",
        "created_us": microseconds(state.created_at) if state.created_at else 0,
        "state": state.model_dump_json(exclude_defaults=True),
        "owner_tenant": opened.tenant if opened else LOCAL,
        "owner": opened.user if opened else LOCAL,
    }


def _span_row(tenant: str, span: Span) -> dict[str, Any]:
    return {
        "tenant": tenant,
        "trace_id": span.trace_id,
        "span_id": span.span_id,
        "start_ns": span.start_ns,
        "end_ns": span.end_ns,
        "span": json.dumps(span.model_dump(mode="json", exclude_defaults=True), ensure_ascii=True),
    }
