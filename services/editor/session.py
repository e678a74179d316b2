"""One editing attempt: its workspace, its transcript and what its model is told.

Invariant: what could differ between two deliveries is journaled when it is first seen, so that a resumed attempt sees it again.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from libs.agent import JournalTranscript, ToolFailed, ToolResult
from libs.bus import Refusal, Step
from libs.contracts.artifact import Diff, DiffResult
from libs.contracts.fold import RunState
from libs.contracts.inference import ChatMessage, DescribeModels, Models
from libs.contracts.run import Policy, RunPlanned
from libs.edits.applier import EditError, check_path, decode
from libs.repository import Override, RepositoryError, detect, repository_map
from libs.repository.committed import Committed, read_commit, setup_key
from libs.repository.project import Project
from libs.workspace import JournaledWrites, Workspace, take_over
from services.editor.domain import ChosenModel, choose_model, files_room, setup_output
from services.editor.prompts import opening, setup_failed, task_text


@dataclass
class Session:
    """What one attempt works with. Made by `begin`."""

    event: RunPlanned
    step: Step
    state: RunState
    transcript: JournalTranscript
    workspace: Workspace
    writes: JournaledWrites
    finished: list[str] = field(default_factory=list)

    @classmethod
    async def begin(cls, event: RunPlanned, step: Step, state: RunState) -> "Session":
        """Read the transcript and take the workspace over."""
        transcript = await JournalTranscript.open(step, "edit")
        workspace = Workspace(step.ask, event.run_id, step.token)
        session = cls(event, step, state, transcript, workspace, JournaledWrites(workspace, transcript))
        await session._open_workspace()
        return session

    @property
    def policy(self) -> Policy:
        return self.state.opened.policy if self.state.opened else Policy()

    async def model(self) -> ChosenModel:
        """How the model is spoken to. Raises Permanent when none is configured."""

        async def look() -> str:
            models: Models = await self.step.ask(DescribeModels())
            return choose_model(models, self.policy.model).model_dump_json()

        return ChosenModel.model_validate_json(await self._once("model", look))

    async def messages(self, chosen: ChosenModel) -> list[ChatMessage]:
        """The beginning of the prompt; runs set-up on the way."""
        opened = self.state.opened
        issue = f"{opened.issue.title}\n{opened.issue.body}" if opened else ""
        files = [path for plan_step in self.event.plan.steps for path in plan_step.files]
        committed = await read_commit(self.step.ask, self.event.repository, self.event.base_commit, issue, files)
        project = self._project(committed)
        return opening(
            self.state,
            self.event,
            self.step.sequence,
            form=chosen.form,
            guidance=committed.guidance(),
            repository_map=repository_map(committed.tree, issue, 12_000, project),
            earlier_diff=await self._earlier_diff(),
            setup=await self._set_up(committed, project),
            task=await self.task(0, chosen),
        )

    async def task(self, index: int, chosen: ChosenModel) -> str:
        """The text of step `index`; with its files' present texts for a model that has no tools."""

        async def write() -> str:
            steps = self.event.plan.steps
            files = {path: await self._text(path) for path in steps[index].files} if chosen.form else None
            return task_text(steps, index, files, files_room(chosen.context_tokens, len(steps)))

        return await self._once(f"task.{index}", write) if chosen.form else await write()

    async def next_task(self, chosen: ChosenModel, summary: str) -> str | None:
        """Note a finished step; the next one, None after the last."""
        self.finished.append(summary)
        return await self.task(len(self.finished), chosen) if len(self.finished) < len(self.event.plan.steps) else None

    async def _open_workspace(self) -> None:
        """Open it fresh, or take it over; one that was lost since is filled again from the journal."""
        await take_over(self.workspace, self.writes, self.transcript, self.event.repository, self.event.base_commit, reset=True)

    async def _set_up(self, committed: Committed, project: Project) -> str:
        """Run set-up so that `exec` finds what it installs; what the model is told of it. The key is the verifier's, so it runs once."""
        scripts = tuple(command.script for command in project.setup_commands)
        if not scripts:
            return ""
        await self.step.progress("status", "setting up the workspace")
        key = setup_key(scripts, project, committed.object_ids)
        try:
            result = await self.workspace.set_up(f"{self.transcript.prefix}.setup", key, scripts, self.policy.setup_timeout_seconds)
            told = "" if result.ok else setup_failed(setup_output(result.commands))
        except Refusal as refusal:
            if refusal.retryable:
                raise
            told = setup_failed(refusal.detail)
        except ToolFailed as refusal:
            told = setup_failed(str(refusal))

        async def first() -> str:
            return told

        return await self._once("setup", first)

    async def _earlier_diff(self) -> str:
        """What the last rejected attempt had changed."""
        rejected = self.state.round_rejections
        commit = rejected[-1].commit if rejected else None
        if commit is None:
            return ""
        asked = Diff(repository=self.event.repository, base=self.event.base_commit, head=commit, max_characters=20_000)
        diff: DiffResult = await self.step.ask(asked)
        return diff.diff

    async def _text(self, path: str) -> str | None:
        try:
            file = await self.workspace.read(check_path(path))
            return None if file is None else decode(file.content).text
        except (EditError, ToolFailed):
            return None

    def _project(self, committed: Committed) -> Project:
        try:
            return detect(committed.tree, Override(setup=self.policy.setup_commands, test=self.policy.test_commands))
        except RepositoryError:
            return Project()

    async def _once(self, name: str, find: Callable[[], Awaitable[str]]) -> str:
        """What `find` gave the first time, also for later deliveries."""
        call_id = f"{self.transcript.prefix}.{name}"
        if call_id not in self.transcript.record.results:
            await self._note(name, name.split(".", maxsplit=1)[0], await find())
        return self.transcript.record.results[call_id].text

    async def _note(self, name: str, tool: str, text: str) -> None:
        await self.transcript.record_tool_result(ToolResult(call_id=f"{self.transcript.prefix}.{name}", tool=tool, text=text))
