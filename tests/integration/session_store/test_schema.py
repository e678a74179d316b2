"""The schema on both databases: forward from the first release, once, whoever opens it."""

import asyncio
from typing import Any

from sqlalchemy import inspect, text
from sqlmodel import SQLModel

from libs.contracts.session import ListRuns, ReadTrace
from services.session_store.__main__ import Opened
from services.session_store.database import create_engine
from services.session_store.migrations import STEPS
from services.session_store.tables import OWNED
from tests.integration.session_store.store_questions import append, ask, said

FIRST_RELEASE = (
    "CREATE TABLE schema_version (version INTEGER NOT NULL PRIMARY KEY, applied_at VARCHAR(40) NOT NULL)",
    "INSERT INTO schema_version VALUES (1, '2026-01-01T00:00:00+00:00')",
    """CREATE TABLE runs (
        tenant VARCHAR(64) NOT NULL, run_id VARCHAR(64) NOT NULL, sequence BIGINT NOT NULL, status VARCHAR(32) NOT NULL,
        issue_id VARCHAR(200) NOT NULL, repo TEXT NOT NULL, title_folded TEXT NOT NULL,
        created_us BIGINT NOT NULL, state TEXT NOT NULL, PRIMARY KEY (tenant, run_id))""",
    "CREATE INDEX runs_newest ON runs (tenant, created_us, run_id)",
    "CREATE INDEX runs_status ON runs (tenant, status, created_us)",
    "CREATE INDEX runs_issue ON runs (tenant, issue_id)",
    """CREATE TABLE spans (
        tenant VARCHAR(64) NOT NULL, trace_id VARCHAR(32) NOT NULL, span_id VARCHAR(16) NOT NULL,
        start_ns BIGINT NOT NULL, end_ns BIGINT NOT NULL, span TEXT NOT NULL, PRIMARY KEY (tenant, trace_id, span_id))""",
    "CREATE INDEX spans_end ON spans (end_ns)",
    """INSERT INTO runs VALUES ('local', 'r1', 7, 'finished', '42', '/srv/repo', 'fix the typo', 1767225600000000,
        '{"run_id":"r1","status":"finished","opened":{"run_id":"r1","issue":{"id":"42","title":"Fix the typo"},"repo":"/srv/repo",
        "opened_at":"2026-01-01T00:00:00Z"},"created_at":"2026-01-01T00:00:00Z","updated_at":"2026-01-01T00:00:07Z"}')""",
    """INSERT INTO spans VALUES ('local', '00000000000000000000000000000001', '0000000000000001', 1, 2,
        '{"trace_id":"00000000000000000000000000000001","span_id":"0000000000000001","name":"x","service":"s","start_ns":1,"end_ns":2}')""",
)


async def test_a_database_of_the_first_release_keeps_its_rows_and_takes_conversations(empty_database: str) -> None:
    engine = create_engine(empty_database)
    async with engine.connect() as connection:
        await connection.execution_options(writes=True)
        async with connection.begin():
            for statement in FIRST_RELEASE:
                await connection.exec_driver_sql(statement)
    opened = Opened.on(engine)
    await opened.database.open()
    page = await ask(opened, ListRuns())
    assert [(r.run_id, r.title, r.status) for r in page.runs] == [("r1", "Fix the typo", "finished")]
    assert [s.name for s in (await ask(opened, ReadTrace(trace_id="0" * 31 + "1"))).spans] == ["x"]
    await append(opened, "s", said("a"))
    async with opened.database.reading() as connection:
        versions = (await connection.execute(text("SELECT version FROM schema_version ORDER BY 1"))).scalars().all()
    assert versions == list(range(1, len(STEPS) + 1))
    await opened.database.close()


async def test_the_tables_are_those_that_the_queries_use(opened: Opened) -> None:
    def described(connection: Any) -> dict[str, Any]:
        found = inspect(connection)
        return {
            name: (
                {c["name"]: c["nullable"] for c in found.get_columns(name)},
                found.get_pk_constraint(name)["constrained_columns"],
                {i["name"]: i["column_names"] for i in found.get_indexes(name) if not i.get("duplicates_constraint")},
                {tuple(u["column_names"]) for u in found.get_unique_constraints(name)},
            )
            for name in ("runs", "spans", *(t.name for t in OWNED))
        }

    async with opened.database.reading() as connection:
        migrated = await connection.run_sync(described)
    declared = {
        name: (
            {c.name: bool(c.nullable) for c in table.columns},
            [c.name for c in table.primary_key.columns],
            {str(i.name): [c.name for c in i.columns] for i in table.indexes},
            {tuple(c.name for c in u.columns) for u in table.constraints if u.__visit_name__ == "unique_constraint"},
        )
        for name, table in SQLModel.metadata.tables.items()
        if name in migrated
    }
    assert migrated == declared


async def test_services_that_start_at_once_make_one_schema(empty_database: str) -> None:
    several = [Opened.on(create_engine(empty_database)) for _ in range(4)]
    await asyncio.gather(*(opened.database.open() for opened in several))
    await append(several[0], "s", said("a"))
    assert (await append(several[1], "s", said("b"))).messages[0].parent_id == "a"
    for opened in several:
        await opened.database.close()
