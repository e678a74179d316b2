"""One function per question, in the order of a step: open, set up, look, change, run, save, close."""

from dataclasses import dataclass
from functools import partial

from libs.bus import Asker
from libs.contracts import sandbox as questions
from libs.contracts.envelope import Done
from services.sandbox.backends import Backend
from services.sandbox.errors import BackendUnavailable, OperationConflict
from services.sandbox.frames import Frames
from services.sandbox.refusals import refusing
from services.sandbox.snapshots import Author
from services.sandbox.transport import Ask, fetch_bundle, store_bundle
from services.sandbox.workspace import Identity, Workspace
from services.sandbox.workspaces import Workspaces

AUTHOR = Author()


@dataclass(frozen=True)
class Desk:
    """What handlers work with."""

    workspaces: Workspaces
    backend: Backend
    ask: Ask

    async def workspace(self, call: questions.WorkspaceCall) -> Workspace:
        """The workspace of a call, its token checked. Raises WorkspaceMissing, StaleLease."""
        workspace = self.workspaces.get(call.workspace_id)
        await workspace.authorize(call.token)
        return workspace


async def open_workspace(desk: Desk, question: questions.OpenWorkspace, _: Asker) -> questions.Workspace:
    """Lay the workspace out, or take it over as it is."""
    with refusing():
        workspace = desk.workspaces.open(question.workspace_id)
        await workspace.authorize(question.token)
        identity = workspace.identity
        if identity is not None and identity.repository != question.repository:
            raise OperationConflict(f"workspace {question.workspace_id} holds {identity.repository}; close it or use another id")
        if identity is None or question.reset:
            have = (identity.commit,) if identity else ()
            fetch = partial(fetch_bundle, desk.ask, question.repository, question.commit, have)
            identity = await workspace.lay_out(question.repository, question.commit, fetch)
        return _opened(question.workspace_id, workspace, identity)


def _opened(workspace_id: str, workspace: Workspace, identity: Identity) -> questions.Workspace:
    return questions.Workspace(
        workspace_id=workspace_id, generation=identity.generation, commit=identity.commit, setup_key=workspace.setup_key
    )


async def set_up(desk: Desk, question: questions.SetUp, _: Asker) -> questions.SetUpResult:
    """Install what the tests need, once per key."""
    with refusing():
        workspace = await desk.workspace(question)
        return await workspace.set_up(question.operation_id, question.key, question.commands, question.timeout_seconds)


async def read_file(desk: Desk, question: questions.ReadFile, _: Asker) -> questions.FileContent:
    """Read a file."""
    with refusing():
        workspace = await desk.workspace(question)
        return await workspace.read(question.path, question.max_bytes)


async def list_directory(desk: Desk, question: questions.ListDirectory, _: Asker) -> questions.Listing:
    """List a folder."""
    with refusing():
        workspace = await desk.workspace(question)
        return await workspace.list(question.path)


async def glob(desk: Desk, question: questions.Glob, _: Asker) -> questions.Paths:
    """Find files by pattern."""
    with refusing():
        workspace = await desk.workspace(question)
        return await workspace.glob(question.pattern, question.limit)


async def grep(desk: Desk, question: questions.Grep, _: Asker) -> questions.GrepResult:
    """Find lines by pattern."""
    with refusing():
        workspace = await desk.workspace(question)
        return await workspace.grep(question.pattern, question.path, question.limit)


async def write_files(desk: Desk, question: questions.WriteFiles, _: Asker) -> Done:
    """Write several files, all or none."""
    with refusing():
        workspace = await desk.workspace(question)
        await workspace.write(question.operation_id, question.files)
        return Done()


async def execute(desk: Desk, question: questions.Execute, asker: Asker) -> questions.Executed:
    """Run a command without network; it is ended some time after its asker went away, or when another token comes."""
    with refusing():
        workspace = await desk.workspace(question)
        frames = Frames(asker.frame)
        try:
            return await workspace.execute(
                question.operation_id,
                question.command,
                question.timeout_seconds,
                question.tail_characters,
                frames if question.stream else None,
            )
        finally:
            frames.close()


async def take_snapshot(desk: Desk, question: questions.TakeSnapshot, _: Asker) -> questions.Snapshot:
    """Save the tree in the artifact store before the event that names it is appended."""
    with refusing():
        workspace = await desk.workspace(question)
        identity = workspace.laid_out
        saved = await workspace.snapshot(question.message, AUTHOR)
        bundle = await workspace.pack(saved.commit, identity.commit)
        await store_bundle(desk.ask, identity.repository, question, saved.commit, bundle)
        changed = await workspace.changes(identity.commit, saved.commit)
        return questions.Snapshot(commit=saved.commit, tree=saved.tree, changed_files=changed)


async def close_workspace(desk: Desk, question: questions.CloseWorkspace, _: Asker) -> Done:
    """Remove the workspace and end what runs in it; one that is gone already is no error."""
    with refusing():
        if desk.workspaces.has(question.workspace_id):
            await desk.workspaces.open(question.workspace_id).authorize(question.token)
            await desk.workspaces.remove(question.workspace_id)
        return Done()


async def check(desk: Desk, _question: questions.CheckSandbox, _: Asker) -> questions.Health:
    """Do sandboxes work here?"""
    try:
        await desk.backend.check()
    except BackendUnavailable as error:
        return questions.Health(ok=False, backend=desk.backend.name, advice=str(error))
    return questions.Health(ok=True, backend=desk.backend.name)
