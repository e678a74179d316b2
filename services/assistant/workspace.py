"""The repository that is attached to a conversation, and its workspace: opened by the first call that needs it, kept between turns.

Invariant: what a turn changed is saved as a commit before the turn ends, so a workspace that is lost is laid anew from there.
"""

import hashlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic import BaseModel

from libs.agent import Tool, ToolFailed, Transcript
from libs.agent.skills import FILE, REPOSITORY_FOLDERS, Skill, parse
from libs.bus import NoAnswer, Refusal, Step
from libs.contracts.artifact import Imported, ImportRepository, ListTree, Tree
from libs.contracts.envelope import Ask
from libs.repository.committed import read_texts
from libs.workspace import JournaledWrites, Workspace, WorkspaceTools, take_over
from services.assistant.conversations import Conversations
from services.assistant.order import Order

log = logging.getLogger(__name__)
_CHANGING = frozenset({"write", "edit", "patch", "exec"})
_MOST_SKILLS = 50


async def attach(ask: Ask, conversations: Conversations, key: str, order: Order) -> tuple[Order, str]:
    """Import the attached repository once; the order with its name and commit, or why it is not there: the talk goes on without it."""
    if order.repository is None or order.commit is not None:
        return order, ""
    try:
        found: Imported = await ask(ImportRepository(source=order.repository))
    except (Refusal, NoAnswer) as no:
        return order, str(no)
    changes = {"imported": found.repository, "commit": found.base_commit}
    source = order.repository
    changed = await conversations.change(key, lambda now: now.model_copy(update=changes) if now.repository == source else now)
    return changed or order, ""


async def repository_skills(ask: Ask, order: Order) -> list[Skill]:
    """The skills that the attached repository brings; none when it cannot be read."""
    if order.imported is None or order.commit is None:
        return []
    try:
        tree: Tree = await ask(ListTree(repository=order.imported, commit=order.commit))
        paths = [e.path for e in tree.entries if e.path.endswith(f"/{FILE}") and e.path.rsplit("/", 2)[0] in REPOSITORY_FOLDERS]
        texts = await read_texts(ask, order.imported, order.commit, paths[:_MOST_SKILLS])
    except (Refusal, NoAnswer) as no:
        log.warning("the skills of %s cannot be read: %s", order.imported, no)
        return []
    return [skill for text in texts.values() if (skill := parse(text, trusted=False)) is not None]


@dataclass
class ConversationWorkspace:
    """The workspace of one conversation, as one delivery of a turn uses it."""

    step: Step
    key: str
    order: Order
    transcript: Transcript
    _open: bool = False
    _workspace: Workspace = field(init=False)
    _writes: JournaledWrites = field(init=False)

    def __post_init__(self) -> None:
        ident = hashlib.sha256(f"{self.key}\0{self.order.imported}".encode()).hexdigest()[:32]
        self._workspace = Workspace(self.step.ask, f"chat-{ident}", self.step.token)
        self._writes = JournaledWrites(self._workspace, self.transcript)

    def tools(self) -> Sequence[Tool[Any]]:
        """The workspace's tools, none without a repository."""
        if self.order.imported is None:
            return ()
        return tuple(self._opening(tool) for tool in WorkspaceTools(self._workspace, self._writes, self.step.progress).tools())

    async def save(self) -> None:
        """Keep what the turn has changed as a commit."""
        if self.order.imported is None or not _CHANGING & set(self.transcript.record.started.values()):
            return
        await self._ready()
        try:
            saved = await self._workspace.snapshot(self.step.sequence, f"Turn {self.step.run_id}")
        except ToolFailed as refused:
            log.warning("turn %s: the workspace cannot be saved: %s", self.step.run_id, refused)
            return
        if saved.changed_files:
            source = self.order.imported
            await Conversations.on(self.step.bus).change(
                self.key, lambda now: now.model_copy(update={"commit": saved.commit}) if now.imported == source else now
            )

    def _opening(self, tool: Tool[Any]) -> Tool[Any]:
        async def run(arguments: BaseModel, call_id: str) -> str:
            await self._ready()
            return await tool.run(arguments, call_id)

        return replace(tool, run=run)

    async def _ready(self) -> None:
        if not self._open:
            assert self.order.imported is not None
            assert self.order.commit is not None
            await take_over(self._workspace, self._writes, self.transcript, self.order.imported, self.order.commit, reset=False)
            self._open = True
