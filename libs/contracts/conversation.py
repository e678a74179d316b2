"""Questions to the session store about conversations: message trees, context blocks, compaction, search.

Every question carries the tenant and the user that a verified token named; a row of somebody else is `not_found`.
Error codes: `not_found`, `conflict` (an id with other content), `bad_parent`, `bad_range`, `bad_cursor`, `bad_query`, `too_large`,
`readonly`, `over_limit`, `wrong_kind` (of context block).
"""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from libs.contracts.envelope import Done, Identifier, JsonObject, Message, Question, Time, Usage

WORKERS = ("gateway", "assistant")
MessageId = Annotated[str, Field(pattern=r"^[^\x00-\x20\x7f]{1,128}$")]
ROOT = ""
"""As a parent: the message begins a tree of its own beside what is there."""
Role = Literal["system", "user", "assistant", "tool"]


class OwnedCall(Message):
    """Who asks: part of the key of every row."""

    tenant: Identifier = "local"
    user: str = Field(default="local", pattern=r"^[^\x00-\x1f\x7f]{1,200}$")


class SessionCall(OwnedCall):
    """A question about one session."""

    session_id: Identifier


class StoredMessage(Message):
    """A message of a tree. `parts` are AI SDK UI-message parts (`{"type": "text", "text": …}`, tools, reasoning, data).

    Lone surrogates are stored as U+FFFD; control characters other than tab and line ends are left out.
    """

    id: MessageId
    parent_id: str | None = Field(default=None, max_length=128, description="absent on a root; when appending, see AppendMessages")
    role: Role
    parts: tuple[JsonObject, ...] = Field(default=(), max_length=10_000)
    metadata: JsonObject = Field(default_factory=dict)
    created_at: Time | None = None
    tokens: int | None = Field(default=None, ge=0, le=10**9, description="as the provider reported; else it is estimated")


class SessionDescription(Message):
    """A conversation. `leaf_id` is the message that the active branch ends with."""

    session_id: str
    agent: str = "assistant"
    name: str = ""
    parent_session_id: str | None = None
    leaf_id: str | None = None
    created_at: Time
    updated_at: Time
    messages: int = 0
    usage: Usage = Usage()
    model: str | None = None


class CreateSession(Question[SessionDescription], SessionCall):
    """Make a session; one that exists is the answer."""

    subject: ClassVar[str] = "q.session_store.session_create"
    answer: ClassVar[type[Message]] = SessionDescription
    askers: ClassVar[tuple[str, ...]] = WORKERS

    agent: str = Field(default="assistant", max_length=64)
    name: str = Field(default="", max_length=200)


class ReadSession(Question[SessionDescription], SessionCall):
    """One session."""

    subject: ClassVar[str] = "q.session_store.session"
    answer: ClassVar[type[Message]] = SessionDescription
    askers: ClassVar[tuple[str, ...]] = WORKERS


class SessionPage(Message):
    """Newest change first."""

    sessions: tuple[SessionDescription, ...]
    next_cursor: str | None = None


class ListSessions(Question[SessionPage], OwnedCall):
    """A user's sessions."""

    subject: ClassVar[str] = "q.session_store.sessions"
    answer: ClassVar[type[Message]] = SessionPage
    askers: ClassVar[tuple[str, ...]] = WORKERS

    cursor: str | None = Field(default=None, max_length=200)
    limit: int = Field(default=50, ge=1, le=100)


class UpdateSession(Question[SessionDescription], SessionCall):
    """Rename, or switch the active branch to the one that ends at or below `leaf_id`."""

    subject: ClassVar[str] = "q.session_store.session_update"
    answer: ClassVar[type[Message]] = SessionDescription
    askers: ClassVar[tuple[str, ...]] = WORKERS

    name: str | None = Field(default=None, max_length=200)
    leaf_id: str | None = None


class DeleteSession(Question[Done], SessionCall):
    """Remove a session with its messages, contexts and search rows; with `messages_only` it is emptied."""

    subject: ClassVar[str] = "q.session_store.session_delete"
    answer: ClassVar[type[Message]] = Done
    askers: ClassVar[tuple[str, ...]] = WORKERS

    messages_only: bool = False


class ForkSession(Question[SessionDescription], SessionCall):
    """Copy the path up to a message into a new session; the original stays as it is."""

    subject: ClassVar[str] = "q.session_store.session_fork"
    answer: ClassVar[type[Message]] = SessionDescription
    askers: ClassVar[tuple[str, ...]] = WORKERS

    at_message_id: str
    new_session_id: Identifier
    name: str = Field(default="", max_length=200)


class AppendMessages(Question["Appended"], SessionCall):
    """Append in order; the session is made when it is new.

    A message without `parent_id` goes to the active leaf, or to the one before it in the list; `""` begins a new tree beside the old one.
    With `on_branch_of`, a new first message without `parent_id` goes to the active leaf only when the active branch holds that message,
    else below that message; a session is not made then.
    An id that is there with the same content is left as it is; with `replace`, its parts and metadata are put in place of the old ones.
    A message over 2 MB loses the middle of its tool outputs, with a note. `usage` counts when anything was stored.
    """

    subject: ClassVar[str] = "q.session_store.append"
    askers: ClassVar[tuple[str, ...]] = WORKERS

    messages: tuple[StoredMessage, ...] = Field(min_length=1, max_length=100)
    on_branch_of: str | None = Field(default=None, max_length=128)
    agent: str = Field(default="assistant", max_length=64)
    replace: bool = False
    usage: Usage | None = None
    model: str | None = Field(default=None, max_length=200, description="the model that the session uses from here on")


class Appended(Message):
    """The messages as they are stored; `leaf_id` is the active leaf. `context_tokens`: the active branch with its summaries, estimated."""

    messages: tuple[StoredMessage, ...]
    leaf_id: str
    context_tokens: int = 0


AppendMessages.answer = Appended


class ContextBlock(Message):
    """A labelled part of the system prompt."""

    label: str = Field(pattern=r"^[a-z][a-z0-9_-]{0,63}$")
    description: str = Field(default="", max_length=500)
    kind: Literal["readonly", "writable", "searchable", "loadable"] = "writable"
    content: str = Field(default="", max_length=64_000)
    max_tokens: int | None = Field(default=None, ge=1)
    tokens: int = 0


class History(Message):
    """A path from the root to a leaf. With `compacted`, summarised ranges stand as one system message each.

    `system_prompt` is the frozen context prompt, for who asked with `define`.
    """

    messages: tuple[StoredMessage, ...]
    leaf_id: str | None = None
    tokens: int = 0
    more: bool = Field(default=False, description="there are earlier messages: over `limit`, or over 6 MB; read on with `before_id`")
    system_prompt: str | None = None


class ReadHistory(Question[History], SessionCall):
    """The path to `leaf_id`, by default to the active leaf; the last `limit` messages of it when given.

    With `compacted` it is what a model gets: summaries in place of their ranges, and, over `mask_over_tokens`, old tool outputs shortened.
    With `define` the answer carries the frozen context prompt as well, after those blocks of it that are new were added (see ReadContexts).
    """

    subject: ClassVar[str] = "q.session_store.history"
    answer: ClassVar[type[Message]] = History
    askers: ClassVar[tuple[str, ...]] = WORKERS

    leaf_id: str | None = None
    compacted: bool = False
    mask_over_tokens: int = Field(default=30_000, ge=0)
    limit: int | None = Field(default=None, ge=1, le=10_000)
    before_id: str | None = Field(default=None, description="for paging back: only what comes before this message")
    define: tuple[ContextBlock, ...] | None = Field(default=None, max_length=20)


class Branches(Message):
    """The children of a message, oldest first, each with the leaf that its branch ends with."""

    children: tuple[StoredMessage, ...]
    leaves: tuple[str, ...]


class ReadBranches(Question[Branches], SessionCall):
    """The branches that begin at a message; at the root when it is absent."""

    subject: ClassVar[str] = "q.session_store.branches"
    answer: ClassVar[type[Message]] = Branches
    askers: ClassVar[tuple[str, ...]] = WORKERS

    message_id: str | None = None


class TreeNode(Message):
    """One node of a tree without its content."""

    id: str
    parent_id: str | None = None
    role: Role
    excerpt: str = ""
    created_at: Time | None = None


class SessionTree(Message):
    """All nodes in order of creation."""

    nodes: tuple[TreeNode, ...]
    leaf_id: str | None = None
    truncated: bool = False


class ReadTree(Question[SessionTree], SessionCall):
    """The shape of a conversation."""

    subject: ClassVar[str] = "q.session_store.tree"
    answer: ClassVar[type[Message]] = SessionTree
    askers: ClassVar[tuple[str, ...]] = WORKERS


class Compacted(Message):
    """What a compaction did: nothing when the range is covered already or there is nothing to summarise."""

    compacted: bool
    from_id: str | None = None
    to_id: str | None = None
    tokens_before: int = 0
    tokens_after: int = 0


class PlanCompaction(Question["CompactionPlan"], SessionCall):
    """Which range of a branch a summary should cover now: head and tail are protected, a call is never parted from its result.

    Old tool outputs are shortened first: when the branch is short enough then, no summary is needed. One pass takes at most `max_tokens` of
    messages; after storing it, plan again.
    """

    subject: ClassVar[str] = "q.session_store.compaction_plan"
    askers: ClassVar[tuple[str, ...]] = ("assistant",)

    leaf_id: str | None = None
    threshold_tokens: int = Field(default=60_000, ge=1)
    protect_head: int = Field(default=4, ge=0)
    tail_tokens: int = Field(default=20_000, ge=0)
    min_tail_messages: int = Field(default=6, ge=0)
    max_tokens: int = Field(default=100_000, ge=1)


class CompactionPlan(Message):
    """The range to summarise, with the text of the summary that it extends; `needed` False when the branch is short enough."""

    needed: bool
    from_id: str | None = None
    to_id: str | None = None
    previous_summary: str = ""
    messages: tuple[StoredMessage, ...] = ()
    tokens_before: int = 0


PlanCompaction.answer = CompactionPlan


class StoreCompaction(Question[Compacted], SessionCall):
    """Lay a summary over a range; the originals stay, searchable. Stored twice, it is one."""

    subject: ClassVar[str] = "q.session_store.compaction_store"
    answer: ClassVar[type[Message]] = Compacted
    askers: ClassVar[tuple[str, ...]] = ("assistant",)

    from_id: str
    to_id: str
    summary: str = Field(min_length=1, max_length=64_000)


class SearchHit(Message):
    """A found message; `excerpt` marks the words with U+2068 and U+2069."""

    session_id: str
    session_name: str = ""
    message_id: str
    role: Role
    excerpt: str
    score: float
    created_at: Time | None = None


class SearchResult(Message):
    """Best first."""

    hits: tuple[SearchHit, ...]


class SearchMessages(Question[SearchResult], OwnedCall):
    """Full-text search, in one session or across a user's; English and Chinese, two-character words too."""

    subject: ClassVar[str] = "q.session_store.search"
    answer: ClassVar[type[Message]] = SearchResult
    askers: ClassVar[tuple[str, ...]] = WORKERS

    query: str = Field(min_length=1, max_length=500)
    session_id: Identifier | None = None
    limit: int = Field(default=20, ge=1, le=100)


class ContextBlocks(Message):
    """The blocks in their fixed order, and the frozen prompt made of them."""

    blocks: tuple[ContextBlock, ...]
    system_prompt: str = ""


class ReadContexts(Question[ContextBlocks], SessionCall):
    """The blocks and the frozen prompt; it is rendered and stored on first use, and anew with `refresh`."""

    subject: ClassVar[str] = "q.session_store.contexts"
    answer: ClassVar[type[Message]] = ContextBlocks
    askers: ClassVar[tuple[str, ...]] = WORKERS

    define: tuple[ContextBlock, ...] = Field(default=(), max_length=20, description="blocks to add when they are not there")
    refresh: bool = False


class SetContext(Question[ContextBlock], SessionCall):
    """Write a block: replace, append, or keep an entry of a searchable or loadable one under `key`. Over the limit: refused, in numbers."""

    subject: ClassVar[str] = "q.session_store.context_set"
    answer: ClassVar[type[Message]] = ContextBlock
    askers: ClassVar[tuple[str, ...]] = WORKERS

    label: str
    content: str = Field(max_length=64_000)
    action: Literal["replace", "append"] = "replace"
    key: str | None = Field(default=None, max_length=200)


class SearchContext(Question[SearchResult], SessionCall):
    """Search the entries of a searchable block."""

    subject: ClassVar[str] = "q.session_store.context_search"
    answer: ClassVar[type[Message]] = SearchResult
    askers: ClassVar[tuple[str, ...]] = WORKERS

    label: str
    query: str = Field(min_length=1, max_length=500)
    limit: int = Field(default=10, ge=1, le=50)


class ContextEntry(Message):
    """One entry of a searchable or loadable block."""

    label: str
    key: str
    content: str


class LoadContext(Question[ContextEntry], SessionCall):
    """The whole text of an entry."""

    subject: ClassVar[str] = "q.session_store.context_load"
    answer: ClassVar[type[Message]] = ContextEntry
    askers: ClassVar[tuple[str, ...]] = WORKERS

    label: str
    key: str = Field(max_length=200)
