"""The list of runs holds those of one tenant, or of one user of it."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from libs.contracts.fold import Recorded
from libs.contracts.run import Issue, RunOpened
from libs.contracts.session import ListRuns
from services.session_store.database import Database, create_engine
from services.session_store.domain import Link
from services.session_store.store import Store

NOW = datetime(2026, 1, 31, tzinfo=UTC)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    store = Store(Database(create_engine(f"sqlite+aiosqlite:///{tmp_path / 'store.db'}")))
    await store.open()
    yield store
    await store.close()


async def test_a_tenant_sees_its_own_runs_and_a_user_those_that_are_theirs(store: Store) -> None:
    owners = {"a": ("acme", "kim"), "b": ("acme", "李雷"), "c": ("local", "local"), "d": ("umbrella", "kim")}
    for sequence, (run_id, (tenant, user)) in enumerate(owners.items(), 1):
        issue = Issue(id="1", title="t")
        opened = RunOpened(run_id=run_id, issue=issue, repo="r", opened_at=NOW, tenant=tenant, user=user)
        await store.project([Link(run_id, sequence, 0, Recorded(sequence=sequence, at=NOW, event=opened))])

    async def listed(**of: str) -> set[str]:
        return {run.run_id for run in (await store.runs(ListRuns(**of))).runs}  # type: ignore[arg-type]  # names of owners

    assert await listed(tenant="acme") == {"a", "b"}
    assert await listed(tenant="acme", user="李雷") == {"b"}
    assert await listed(tenant="umbrella", user="李雷") == set()
    assert await listed() == {"c"}
