"""Plan a summary and lay it over its range. The originals stay."""

from typing import Any

from sqlalchemy.engine import Row

from libs.contracts.conversation import Compacted, CompactionPlan, PlanCompaction, StoreCompaction
from libs.contracts.text import clean_text
from services.session_store.conversations.compaction import Item, Limits, Overlay, call_ids, choose, mask_until, masked
from services.session_store.conversations.content import estimate, parsed
from services.session_store.conversations.history import PATH_BYTES, between
from services.session_store.conversations.overlays import on_path
from services.session_store.conversations.sessions import now_us
from services.session_store.conversations.work import Work
from services.session_store.database import Database
from services.session_store.errors import RangeError
from services.session_store.owned import Owner
from services.session_store.tables import COMPACTIONS, MESSAGES

_ITEM = ("depth", "tokens", "path_tokens", "body")


class Summaries:
    """Plans and stores compactions."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def plan(self, question: PlanCompaction) -> CompactionPlan:
        """The range that a summary should cover now. Raises NotFoundError."""
        async with self._database.reading() as connection:
            work = Work(connection, Owner.of(question))
            session = await work.session(question.session_id)
            leaf_id = question.leaf_id or session.leaf_id
            if leaf_id is None:
                return CompactionPlan(needed=False)
            leaf = await work.message(session, leaf_id)
            overlays = await on_path(work, session, leaf)
            previous = overlays[-1] if overlays else None
            tokens = leaf.path_tokens - sum(o.covered_tokens - o.tokens for o in overlays)
            items = await _items(work, session, leaf, previous) if tokens > question.threshold_tokens else []
        return _planned(question, items, previous, leaf, tokens)

    async def store(self, question: StoreCompaction) -> Compacted:
        """Lay a summary over a range. Raises NotFoundError, RangeError."""
        async with self._database.writing() as connection:
            work = Work(connection, Owner.of(question))
            session = await work.session(question.session_id, lock=True)
            first, last = await work.message(session, question.from_id), await work.message(session, question.to_id)
            overlays = await _checked(work, session, first, last)
            if any(o.covers(first.depth, last.depth) for o in overlays):
                return Compacted(compacted=False, from_id=question.from_id, to_id=question.to_id)
            inside = [o for o in overlays if first.depth <= o.from_depth and o.to_depth <= last.depth]
            await _check_calls(work, session, first, last, max((o.to_depth for o in inside), default=first.depth - 1))
            summary = clean_text(question.summary)
            covered = last.path_tokens - first.path_tokens + first.tokens
            tokens = estimate(summary) + 4
            row = work.owner.row(
                session=session.number,
                from_id=first.message_id,
                to_id=last.message_id,
                from_branch=first.branch,
                from_depth=first.depth,
                to_branch=last.branch,
                to_depth=last.depth,
                summary=summary,
                tokens=tokens,
                covered_tokens=covered,
                created_us=now_us(),
            )
            await connection.execute(work.owner.insert(COMPACTIONS), [row])
            await work.update_session(session, summaries=session.summaries + 1)
        was = covered - sum(o.covered_tokens - o.tokens for o in inside)
        return Compacted(compacted=True, from_id=question.from_id, to_id=question.to_id, tokens_before=was, tokens_after=tokens)


def _planned(question: PlanCompaction, items: list[Item], previous: Overlay | None, leaf: Row[Any], tokens: int) -> CompactionPlan:
    until = mask_until(leaf.depth)
    short = [masked(i.message) if i.depth <= until else i.message for i in items]
    left = tokens - sum(i.tokens - (m.tokens or 0) for i, m in zip(items, short, strict=True) if m is not i.message)
    limits = Limits(question.protect_head, question.tail_tokens, question.min_tail_messages, question.max_tokens)
    found = choose(items, previous, leaf.path_tokens, leaf.depth, limits) if left > question.threshold_tokens else None
    if found is None:
        return CompactionPlan(needed=False, tokens_before=left)
    start, end = found
    return CompactionPlan(
        needed=True,
        from_id=previous.from_id if previous else items[start].message.id,
        to_id=items[end - 1].message.id,
        previous_summary=previous.summary if previous else "",
        messages=tuple(masked(m) for m in short[start:end]),
        tokens_before=left,
    )


async def _items(work: Work, session: Row[Any], leaf: Row[Any], previous: Overlay | None) -> list[Item]:
    above = previous.to_depth if previous else 0
    query = between(work, session, leaf, above, leaf.depth, *_ITEM, "path_bytes", "size")
    rows = sorted((await work.connection.execute(query.order_by(MESSAGES.c.depth).limit(1))).all(), key=lambda r: int(r.depth))
    if not rows:
        return []
    begin = rows[0].path_bytes - rows[0].size
    query = between(work, session, leaf, above, leaf.depth, *_ITEM).where(MESSAGES.c.path_bytes <= begin + PATH_BYTES)
    rows = sorted((await work.connection.execute(query)).all(), key=lambda r: int(r.depth))
    messages = parsed(r.body for r in rows)
    return [Item(m, r.depth, r.tokens, r.path_tokens) for m, r in zip(messages, rows, strict=True)]


async def _checked(work: Work, session: Row[Any], first: Row[Any], last: Row[Any]) -> list[Overlay]:
    on_it = between(work, session, last, first.depth - 1, first.depth, "message_id")
    if (await work.connection.execute(on_it)).scalar_one_or_none() != first.message_id:
        raise RangeError(f"message {first.message_id} does not come before {last.message_id} on one path: take the range from a plan")
    overlays = await on_path(work, session, last)
    for o in overlays:
        apart = o.to_depth < first.depth or last.depth < o.from_depth
        inside = first.depth <= o.from_depth and o.to_depth <= last.depth
        if not (apart or inside or o.covers(first.depth, last.depth)):
            raise RangeError(f"the range cuts the summary from {o.from_id} to {o.to_id}: begin where it begins")
    return overlays


async def _check_calls(work: Work, session: Row[Any], first: Row[Any], last: Row[Any], above: int) -> None:
    query = between(work, session, last, above, last.depth, "body", "depth")
    rows = (await work.connection.execute(query.where(MESSAGES.c.path_bytes - MESSAGES.c.size >= last.path_bytes - PATH_BYTES))).all()
    inside = parsed(r.body for r in rows)
    mine = {call for message in inside for call in call_ids(message)}
    near = work.owner.select(MESSAGES.c.body).where(MESSAGES.c.session == session.number)
    below = (await work.connection.execute(near.where(MESSAGES.c.parent_id == last.message_id))).scalars().all()
    over = (await work.connection.execute(near.where(MESSAGES.c.message_id == first.parent_id))).scalars().all()
    begins_with_result = any(m.role == "tool" for m, r in zip(inside, rows, strict=True) if r.depth == first.depth)
    children = parsed(below)
    if begins_with_result or any(m.role == "tool" for m in children) or any(call_ids(m) & mine for m in (*children, *parsed(over))):
        raise RangeError("the range would part a tool call from its result: take the range from a plan")
