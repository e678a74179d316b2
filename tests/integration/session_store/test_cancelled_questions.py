"""An asker may go away at any moment; the database is none the worse for it."""

import asyncio

import pytest
from sqlalchemy import text


async def used(transaction):
    async with transaction() as connection:
        await connection.execute(text("SELECT count(*) FROM sessions"))


@pytest.mark.parametrize("kind", ["reading", "writing"])
async def test_a_question_that_is_cancelled_anywhere_leaves_no_transaction_behind(database, kind):
    for steps in range(60):
        asking = [asyncio.create_task(used(getattr(database, kind))) for _ in range(3)]
        for _ in range(steps):
            await asyncio.sleep(0)
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
        async with asyncio.timeout(30):
            await asyncio.gather(used(database.reading), used(database.writing), used(database.reading), used(database.writing))
