"""The workspaces of this node, one folder each. What is on disk is the truth; objects in memory only avoid reading it again."""

import logging
import re
import secrets
from pathlib import Path

from services.sandbox.backends import Backend, Limits
from services.sandbox.errors import BadRequest, WorkspaceMissing
from services.sandbox.usage import remove_tree
from services.sandbox.workspace import Workspace

logger = logging.getLogger(__name__)

NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
REMOVED = ".removed-"


class Workspaces:
    """Opens, finds and removes workspaces under `root`."""

    def __init__(self, root: Path, backend: Backend, limits: Limits, max_file_bytes: int) -> None:
        self._root = root
        self._backend = backend
        self._limits = limits
        self._max_file_bytes = max_file_bytes
        self._open: dict[str, Workspace] = {}

    def open(self, workspace_id: str) -> Workspace:
        """The workspace, made when it is not there; it may still have to be laid out. Raises BadRequest for a bad id."""
        if not NAME.fullmatch(workspace_id):
            raise BadRequest(f"{workspace_id!r} is not a workspace id: use letters, digits, - and _")
        if workspace_id not in self._open:
            self._open[workspace_id] = Workspace(self._root / workspace_id, self._backend, self._limits, self._max_file_bytes)
        return self._open[workspace_id]

    def get(self, workspace_id: str) -> Workspace:
        """A workspace that is laid out. Raises WorkspaceMissing."""
        known = NAME.fullmatch(workspace_id) and (self._root / workspace_id / "meta" / "identity.json").exists()
        if not known:
            self._open.pop(workspace_id, None)
            raise WorkspaceMissing(f"workspace {workspace_id} is not here (any more); open it again from its last commit")
        return self.open(workspace_id)

    def has(self, workspace_id: str) -> bool:
        """Whether the workspace's folder is here."""
        return bool(NAME.fullmatch(workspace_id)) and (self._root / workspace_id).is_dir()

    async def interrupt(self) -> None:
        """End what is being done in all of them."""
        for workspace in list(self._open.values()):
            await workspace.close()

    async def interrupt_one(self, workspace_id: str) -> None:
        """End what is being done in one of them; its files stay."""
        if workspace := self._open.get(workspace_id):
            await workspace.close()

    async def remove(self, workspace_id: str) -> None:
        """End what runs in it and remove its files; one that is not there is no error."""
        if not self.has(workspace_id):
            return
        workspace = self._open.pop(workspace_id, None)
        if workspace is not None:
            await workspace.close()
        grave = self._root / f"{REMOVED}{secrets.token_hex(8)}"
        (self._root / workspace_id).rename(grave)
        await remove_tree(grave)

    async def sweep(self, idle_seconds: float) -> list[str]:
        """Remove workspaces that nobody used for so long, and what an interrupted removal left; the ids that were removed."""
        removed = []
        for folder in sorted(self._root.iterdir()) if self._root.exists() else ():
            if folder.name.startswith(REMOVED):
                await remove_tree(folder)
            elif NAME.fullmatch(folder.name) and (folder / "meta").is_dir():
                workspace = self.open(folder.name)
                if not workspace.busy and workspace.idle_seconds >= idle_seconds:
                    await self.remove(folder.name)
                    removed.append(folder.name)
                    logger.info("workspace %s was removed after %d s without use", folder.name, idle_seconds)
        return removed
