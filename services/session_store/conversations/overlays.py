"""Which summaries lie on a path, and what they save."""

from dataclasses import fields
from typing import Any

from sqlalchemy.engine import Row

from services.session_store.conversations.compaction import Overlay, outermost
from services.session_store.conversations.work import Work
from services.session_store.tables import COMPACTIONS

_COLUMNS = tuple(COMPACTIONS.c[field.name] for field in fields(Overlay))


async def on_path(work: Work, session: Row[Any], end: Any) -> list[Overlay]:
    """The overlays that show on the path to `end` (anything with a `branch` and a `depth`), in order."""
    if not session.summaries:
        return []
    path = work.path(session, end)
    first, last = path.alias("first_range"), path.alias("last_range")
    query = work.owner.select(*_COLUMNS).where(
        COMPACTIONS.c.session == session.number,
        work.on(first, COMPACTIONS.c.from_branch, COMPACTIONS.c.from_depth),
        work.on(last, COMPACTIONS.c.to_branch, COMPACTIONS.c.to_depth),
    )
    rows = await work.connection.execute(query)
    return outermost(Overlay(*row) for row in rows)


async def saved_tokens(work: Work, session: Row[Any], end: Any) -> int:
    """How many tokens fewer the path has with its summaries."""
    return sum(overlay.covered_tokens - overlay.tokens for overlay in await on_path(work, session, end))
