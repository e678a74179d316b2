"""One owner's transaction on conversations: finding sessions and messages, and the ranges of the index that a path or a subtree is."""

from dataclasses import dataclass
from typing import Any, cast

from sqlalchemy import CTE, Integer, and_, bindparam, literal, or_
from sqlalchemy import cast as sql_cast
from sqlalchemy.engine import Row
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.sql.elements import ColumnElement

from services.session_store.compiled import Compiled
from services.session_store.errors import NotFoundError
from services.session_store.owned import SOMEONE, Owner
from services.session_store.tables import BRANCHES, MESSAGES, SESSIONS

_PLACE = (MESSAGES.c.number, MESSAGES.c.message_id, MESSAGES.c.parent_id, MESSAGES.c.branch, MESSAGES.c.depth)
_SUMS = (MESSAGES.c.tokens, MESSAGES.c.size, MESSAGES.c.path_tokens, MESSAGES.c.path_bytes)

_NAMED = SOMEONE.select(*SESSIONS.c).where(SESSIONS.c.session_id == bindparam("the_session"))
_SESSION, _SESSION_LOCKED = Compiled(_NAMED), Compiled(_NAMED.with_for_update())
_MESSAGE = Compiled(
    SOMEONE.select(*_PLACE, *_SUMS).where(MESSAGES.c.session == bindparam("the_session"), MESSAGES.c.message_id == bindparam("the_message"))
)


@dataclass(frozen=True)
class Work:
    """A connection inside a transaction, and whose rows it may see."""

    connection: AsyncConnection
    owner: Owner

    async def session(self, session_id: str, *, lock: bool = False) -> Row[Any]:
        """A session's row; with `lock`, nobody else changes the session before the transaction ends.

        Raises:
            NotFoundError: the owner has no such session.
        """
        statement = _SESSION_LOCKED if lock else _SESSION
        for row in await statement.rows(self.connection, self.owner.bound(the_session=session_id)):
            return cast("Row[Any]", row)
        raise NotFoundError(f"there is no conversation {session_id}")

    async def message(self, session: Row[Any], message_id: str) -> Row[Any]:
        """Where a message is: number, message_id, parent_id, branch, depth, tokens, size, path_tokens, path_bytes.

        Raises:
            NotFoundError: the session has no such message.
        """
        values = self.owner.bound(the_session=session.number, the_message=message_id)
        for row in await _MESSAGE.rows(self.connection, values):
            return cast("Row[Any]", row)
        raise NotFoundError(f"there is no message {message_id} in conversation {session.session_id}")

    async def update_session(self, session: Row[Any], **values: Any) -> None:
        """Change columns of a session."""
        await self.connection.execute(self.owner.update(SESSIONS).where(SESSIONS.c.number == session.number).values(**values))

    async def ranges(self, session: Row[Any], end: Any) -> list[tuple[int, int]]:
        """`path` as (branch, upto), from the root's line to the message's."""
        if session.branches == 1:
            return [(end.branch, end.depth)]
        path = self.path(session, end)
        line = self.owner.select(BRANCHES.c.branch).add_columns(path.c.upto).where(BRANCHES.c.session == session.number)
        rows = await self.connection.execute(line.where(BRANCHES.c.branch == path.c.branch).order_by(path.c.upto))
        return [(int(branch), int(upto)) for branch, upto in rows]

    def path(self, session: Row[Any], end: Row[Any]) -> CTE:
        """The path to a message as ranges: `branch`, and the depth `upto` which it is followed. It is `branch = … and depth <= upto`."""
        chain = self.owner.select(BRANCHES.c.branch, sql_cast(literal(end.depth), Integer).label("upto"))
        chain = chain.where(BRANCHES.c.session == session.number, BRANCHES.c.branch == end.branch)
        up = chain.cte("path", recursive=True)
        line = BRANCHES.alias("line")
        above = self.owner.select(line.c.parent_branch, line.c.parent_depth).where(
            line.c.session == session.number, line.c.branch == up.c.branch, line.c.parent_branch.is_not(None)
        )
        return up.union_all(above)

    def subtree(self, session: Row[Any], top: Row[Any]) -> CTE:
        """A message and all below it as ranges: `branch`, and the depth `since` which it belongs."""
        begin = self.owner.select(BRANCHES.c.branch, sql_cast(literal(top.depth), Integer).label("since"))
        begin = begin.where(BRANCHES.c.session == session.number, BRANCHES.c.branch == top.branch)
        down = begin.cte("subtree", recursive=True)
        line = BRANCHES.alias("line")
        below = self.owner.select(line.c.branch, sql_cast(literal(0), Integer)).where(
            line.c.session == session.number, line.c.parent_branch == down.c.branch, line.c.parent_depth >= down.c.since
        )
        return down.union_all(below)

    def on(self, ranges: CTE, branch: ColumnElement[int], depth: ColumnElement[int]) -> ColumnElement[bool]:
        """Whether a place lies in the ranges of `path` or `subtree`."""
        bound = depth <= ranges.c.upto if "upto" in ranges.c else depth >= ranges.c.since
        return and_(branch == ranges.c.branch, bound)

    async def newest_below(self, session: Row[Any], top: Row[Any]) -> str:
        """The leaf that a branch ends with: the newest message at or below `top`, which has no children."""
        ranges = self.subtree(session, top)
        query = self.owner.select(MESSAGES.c.message_id).where(MESSAGES.c.session == session.number)
        query = query.where(self.on(ranges, MESSAGES.c.branch, MESSAGES.c.depth)).order_by(MESSAGES.c.number.desc()).limit(1)
        return str((await self.connection.execute(query)).scalar_one())


def before(created: ColumnElement[int], number: ColumnElement[int], position: tuple[int, int]) -> ColumnElement[bool]:
    """What comes after a row on a page that shows the newest first."""
    return or_(created < position[0], and_(created == position[0], number < position[1]))
