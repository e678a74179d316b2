"""The services that the editor asks, in memory: a repository at one commit, a sandbox that remembers operations, a scripted model."""

import hashlib
from datetime import UTC, datetime

from libs.bus import Refusal
from libs.contracts import artifact, inference, sandbox
from libs.contracts.envelope import Done
from libs.contracts.run import ChangedFile, CommandRun, Issue, Plan, PlanStep, Policy, RunOpened, RunPlanned
from tests.unit.agent.fake_step import FakeStep
from tests.unit.agent.scripted import Crash, ScriptedModel

BASE, SAVED = "a" * 40, "b" * 40


def sha(data):
    return hashlib.sha256(data).hexdigest()


class World:
    """`die_on` names a question class; the process dies right after the next such question was carried out."""

    def __init__(self, base, replies, *, edit_format="tools", tool_calling=True):
        self.base, self.files = dict(base), {}
        self.model = ScriptedModel(replies)
        self.description = inference.ModelDescription(name="scripted", edit_format=edit_format, tool_calling=tool_calling)
        self.generation, self.opened, self.operations, self.commands = "g1", None, {}, []
        self.setup_ok, self.writes, self.die_on, self.asked, self.diff = True, 0, None, [], "diff --git a/x b/x"

    def lose(self):
        """The sandbox loses the workspace with all that it remembers."""
        self.files, self.operations, self.opened = {}, {}, None
        self.generation += "x"

    async def ask(self, question, on_frame=None):
        self.asked.append(question)
        answer = getattr(self, f"on_{type(question).__name__}")(question)
        answer = await answer if hasattr(answer, "__await__") else answer
        if self.die_on is type(question):
            self.die_on = None
            raise Crash
        return answer

    def on_DescribeModels(self, q):
        return inference.Models(models=(self.description,))

    async def on_Complete(self, q):
        return await self.model.complete(q.messages, q.tools, q.request_id)

    def on_ListTree(self, q):
        entries = [artifact.TreeEntry(path=p, mode="100644", size=len(d), object_id="c" * 40) for p, d in sorted(self.base.items())]
        return artifact.Tree(entries=tuple(entries))

    def on_ReadCommitted(self, q):
        files = [artifact.CommittedFile(path=p, content=self.base[p], size=len(self.base[p])) for p in q.paths if p in self.base]
        return artifact.CommittedFiles(files=tuple(files))

    def on_Diff(self, q):
        return artifact.DiffResult(diff=self.diff, changed_files=())

    def on_OpenWorkspace(self, q):
        if self.opened is None or q.reset:
            self.files = dict(self.base)
        self.opened = q
        return sandbox.Workspace(workspace_id=q.workspace_id, generation=self.generation, commit=q.commit)

    def on_SetUp(self, q):
        run = CommandRun(
            command=q.commands[0], phase="setup", outcome="exited", exit_code=0 if self.setup_ok else 1, output_tail="no network"
        )
        return sandbox.SetUpResult(ok=self.setup_ok, ran=True, commands=(run,))

    def on_ReadFile(self, q):
        if q.path not in self.files:
            raise Refusal("not_found", f"no such file: {q.path}")
        data = self.files[q.path]
        return sandbox.FileContent(path=q.path, content=data, size=len(data), mode=0o644, sha256=sha(data))

    def on_WriteFiles(self, q):
        if q.operation_id in self.operations:
            return Done()
        for write in q.files:
            there = self.files.get(write.path)
            expected = write.expected_sha256
            if expected is not None and expected != ("" if there is None else sha(there)):
                raise Refusal("conflict", f"{write.path} is not as it was when it was read.")
        for write in q.files:
            self.files.pop(write.renamed_from or "", None)
            self.files.pop(write.path, None)
            if write.content is not None:
                self.files[write.path] = write.content
        self.operations[q.operation_id] = q
        self.writes += 1
        return Done()

    def on_ListDirectory(self, q):
        return sandbox.Listing(entries=tuple(sandbox.DirectoryEntry(name=name, kind="file") for name in sorted(self.files)))

    def on_Glob(self, q):
        return sandbox.Paths(paths=tuple(sorted(self.files)), truncated=True)

    def on_Grep(self, q):
        if q.pattern == "(":
            raise Refusal("bad_pattern", "Unmatched ( in the pattern.")
        return sandbox.GrepResult(matches=(sandbox.GrepMatch(path="a.py", line=1, text="x = 1"),))

    def on_Execute(self, q):
        if q.operation_id not in self.operations:
            self.commands.append(q.command.splitlines()[-1])
            self.operations[q.operation_id] = sandbox.Executed(outcome="exited", exit_code=0, stdout="2 passed", duration_seconds=1.5)
        return self.operations[q.operation_id]

    def on_TakeSnapshot(self, q):
        before, after = self.base, self.files
        changed = [
            ChangedFile(path=p, status="modified" if p in before and p in after else "added" if p in after else "deleted")
            for p in sorted(before.keys() | after.keys())
            if before.get(p) != after.get(p)
        ]
        return sandbox.Snapshot(commit=SAVED, tree=SAVED, changed_files=tuple(changed))


def opened(policy=None, title="Fix it", body="x is wrong"):
    return RunOpened(
        run_id="run-1",
        issue=Issue(id="7", title=title, body=body),
        repo="demo",
        policy=policy or Policy(),
        opened_at=datetime(2026, 1, 1, tzinfo=UTC),
    )


def planned(*steps, attempt=1):
    steps = steps or (PlanStep(title="Change x", files=("a.py",)),)
    return RunPlanned(run_id="run-1", attempt=attempt, plan=Plan(steps=steps), repository="demo", base_branch="main", base_commit=BASE)


def step_for(world, event=None, policy=None, before=()):
    return FakeStep(world, (opened(policy), *before, event or planned()))
