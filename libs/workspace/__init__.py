"""A workspace in the sandbox as the tools of a model; its changes are journaled before they are made."""

from libs.workspace.tools import WorkspaceTools
from libs.workspace.workspace import Conflict, NoSuchFile, Workspace
from libs.workspace.writes import JournaledWrites, take_over

__all__ = ["Conflict", "JournaledWrites", "NoSuchFile", "Workspace", "WorkspaceTools", "take_over"]
