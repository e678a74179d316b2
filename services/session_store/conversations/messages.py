"""Messages of a tree: append, branches, the shape."""

from libs.contracts.conversation import Appended, AppendMessages, Branches, ReadBranches, ReadTree, SessionTree, TreeNode
from services.session_store.conversations.append import Append, ready
from services.session_store.conversations.at_once import append_at_once
from services.session_store.conversations.content import parsed
from services.session_store.conversations.sessions import instant, made
from services.session_store.conversations.work import Work
from services.session_store.database import Database
from services.session_store.owned import Owner
from services.session_store.tables import MESSAGES

_TREE_NODES = 10_000


class Messages:
    """Every query on messages but their history."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def append(self, question: AppendMessages) -> Appended:
        """Append in order, make the session when it may be new. Raises ConflictError, ParentError, MessageTooLargeError, NotFoundError."""
        batch = await ready(question.messages)
        if (appended := await append_at_once(self._database, question, batch)) is not None:
            return appended
        async with self._database.writing() as connection:
            work = Work(connection, Owner.of(question))
            if question.on_branch_of is None:
                session = await made(work, question.session_id, agent=question.agent, name="")
            else:
                session = await work.session(question.session_id, lock=True)
            return await Append(work, session, question).run(batch)

    async def branches(self, question: ReadBranches) -> Branches:
        """The children of a message, or the roots, with the leaf that each branch ends with. Raises NotFoundError."""
        async with self._database.reading() as connection:
            work = Work(connection, Owner.of(question))
            session = await work.session(question.session_id)
            parent = (await work.message(session, question.message_id)).message_id if question.message_id else None
            columns = (MESSAGES.c.branch, MESSAGES.c.depth, MESSAGES.c.body)
            query = work.owner.select(*columns).where(MESSAGES.c.session == session.number, MESSAGES.c.parent_id == parent)
            rows = (await connection.execute(query.order_by(MESSAGES.c.number).limit(200))).all()
            leaves = [await work.newest_below(session, row) for row in rows]
        return Branches(children=parsed(r.body for r in rows), leaves=tuple(leaves))

    async def tree(self, question: ReadTree) -> SessionTree:
        """The first 10,000 nodes. Raises NotFoundError."""
        async with self._database.reading() as connection:
            work = Work(connection, Owner.of(question))
            session = await work.session(question.session_id)
            wanted = ("message_id", "parent_id", "role", "excerpt", "created_us")
            query = work.owner.select(*(MESSAGES.c[name] for name in wanted)).where(MESSAGES.c.session == session.number)
            rows = (await connection.execute(query.order_by(MESSAGES.c.number).limit(_TREE_NODES + 1))).all()
        nodes = [
            TreeNode(id=r.message_id, parent_id=r.parent_id, role=r.role, excerpt=r.excerpt, created_at=instant(r.created_us))
            for r in rows[:_TREE_NODES]
        ]
        return SessionTree(nodes=tuple(nodes), leaf_id=session.leaf_id, truncated=len(rows) > _TREE_NODES)
