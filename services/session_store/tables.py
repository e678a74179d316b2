"""The tables of conversations and memory. Every row names the tenant and the owner; `owned.py` filters every query by both.

A message lies on a line of descent (`branch`) at a `depth`: its first child continues the line, every further child begins one, so the path
to a message is a few ranges of an index. `path_tokens` and `path_bytes` are sums from the root to the message.
"""

from typing import Any

from sqlalchemy import BigInteger, Column, Double, Index, Integer, Table, Text, UniqueConstraint
from sqlmodel import Field, SQLModel

_COUNTER = BigInteger().with_variant(Integer, "sqlite")


def _big() -> Any:
    return Field(default=0, sa_type=BigInteger, nullable=False)


def _text() -> Any:
    return Field(sa_type=Text, nullable=False)


def _number() -> Any:
    column: Any = _COUNTER
    return Field(default=None, primary_key=True, sa_type=column)


class OwnedRow(SQLModel):
    """What every row has."""

    tenant: str = Field(max_length=64)
    owner: str = Field(max_length=200)


class SessionRow(OwnedRow, table=True):
    """A conversation; `branches` counts the lines of descent, `leaf_id` ends the active one."""

    __tablename__ = "sessions"
    __table_args__ = (
        UniqueConstraint("tenant", "owner", "session_id"),
        Index("sessions_newest", "tenant", "owner", "updated_us", "number"),
    )

    number: int | None = _number()
    session_id: str = Field(max_length=64)
    agent: str = Field(max_length=64)
    name: str = Field(max_length=200)
    parent_session_id: str | None = Field(default=None, max_length=64)
    model: str | None = Field(default=None, max_length=200)
    created_us: int = _big()
    updated_us: int = _big()
    messages: int = _big()
    branches: int = _big()
    summaries: int = _big()
    leaf_id: str | None = Field(default=None, max_length=128)
    input_tokens: int = _big()
    output_tokens: int = _big()
    cached_tokens: int = _big()
    cost_usd: float = Field(default=0.0, sa_column=Column(Double, nullable=False))
    calls: int = _big()
    system_prompt: str | None = Field(default=None, sa_column=Column(Text))


class MessageRow(OwnedRow, table=True):
    """A message; `body` is `StoredMessage` as JSON."""

    __tablename__ = "messages"
    __table_args__ = (
        UniqueConstraint("session", "message_id"),
        UniqueConstraint("session", "branch", "depth"),
        Index("messages_children", "session", "parent_id"),
    )

    number: int | None = _number()
    session: int = _big()
    message_id: str = Field(max_length=128)
    parent_id: str | None = Field(default=None, max_length=128)
    branch: int
    depth: int
    role: str = Field(max_length=16)
    body: str = _text()
    excerpt: str = Field(max_length=200)
    tokens: int = _big()
    size: int
    path_tokens: int = _big()
    path_bytes: int = _big()
    created_us: int = _big()


class BranchRow(OwnedRow, table=True):
    """A line of descent and the place that it leaves another one at; a root's line leaves none."""

    __tablename__ = "branches"
    __table_args__ = (Index("branches_of", "session", "parent_branch"),)

    session: int = Field(sa_column=Column(BigInteger, primary_key=True, autoincrement=False))
    branch: int = Field(primary_key=True)
    parent_branch: int | None = None
    parent_depth: int | None = None


class CompactionRow(OwnedRow, table=True):
    """A summary laid over a range of a path; `covered_tokens` is what the range has."""

    __tablename__ = "compactions"

    session: int = Field(sa_column=Column(BigInteger, primary_key=True, autoincrement=False))
    from_id: str = Field(primary_key=True, max_length=128)
    to_id: str = Field(primary_key=True, max_length=128)
    from_branch: int
    from_depth: int
    to_branch: int
    to_depth: int
    summary: str = _text()
    tokens: int = _big()
    covered_tokens: int = _big()
    created_us: int = _big()


class ContextRow(OwnedRow, table=True):
    """A context block."""

    __tablename__ = "contexts"

    session: int = Field(sa_column=Column(BigInteger, primary_key=True, autoincrement=False))
    label: str = Field(primary_key=True, max_length=64)
    position: int
    description: str = Field(max_length=500)
    kind: str = Field(max_length=16)
    content: str = _text()
    max_tokens: int | None = None


class EntryRow(OwnedRow, table=True):
    """An entry of a searchable or loadable block."""

    __tablename__ = "entries"
    __table_args__ = (UniqueConstraint("session", "label", "entry_key"),)

    number: int | None = _number()
    session: int = _big()
    label: str = Field(max_length=64)
    entry_key: str = Field(max_length=200)
    content: str = _text()
    created_us: int = _big()


class MemoryRow(OwnedRow, table=True):
    """A remembered item of the profile (tenant, owner, project); `topic_key` is the topic without case and spacing."""

    __tablename__ = "memories"
    __table_args__ = (
        UniqueConstraint("tenant", "owner", "project", "item_id"),
        Index("memories_topic", "tenant", "owner", "project", "topic_key"),
        Index("memories_newest", "tenant", "owner", "project", "created_us", "number"),
    )

    number: int | None = _number()
    project: str = Field(max_length=200)
    item_id: str = Field(max_length=64)
    kind: str = Field(max_length=16)
    topic: str | None = Field(default=None, max_length=200)
    topic_key: str | None = Field(default=None, max_length=400)
    content: str = _text()
    created_us: int = _big()
    superseded_by: str | None = Field(default=None, max_length=64)
    session_id: str | None = Field(default=None, max_length=128)


class IngestedRow(OwnedRow, table=True):
    """A message that was ingested, by the digest of its content."""

    __tablename__ = "ingested"

    tenant: str = Field(primary_key=True, max_length=64)
    owner: str = Field(primary_key=True, max_length=200)
    project: str = Field(primary_key=True, max_length=200)
    digest: str = Field(primary_key=True, max_length=128)
    created_us: int = _big()


def _table(name: str) -> Table:
    return SQLModel.metadata.tables[name]


SESSIONS, MESSAGES, BRANCHES, COMPACTIONS = _table("sessions"), _table("messages"), _table("branches"), _table("compactions")
CONTEXTS, ENTRIES, MEMORIES, INGESTED = _table("contexts"), _table("entries"), _table("memories"), _table("ingested")
OWNED: tuple[Table, ...] = (SESSIONS, MESSAGES, BRANCHES, COMPACTIONS, CONTEXTS, ENTRIES, MEMORIES, INGESTED)
