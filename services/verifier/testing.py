"""The tests of one run in its sandbox: set-up, the untouched tree, the changed tree, one run more for a flake.

Invariant: each command has an operation id of its own, so that a step that is delivered again is answered from the sandbox's record.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from libs.bus import Refusal, Retryable, Step
from libs.contracts import run as events
from libs.contracts.sandbox import Execute, Executed, OpenWorkspace, OutputChunk, SetUp, SetUpResult
from libs.repository import Command, Override, Project, detect
from libs.repository.committed import Committed, setup_key
from services.verifier.reports import parse_report
from services.verifier.runs import CommandRun

TAIL = 4000
_PARSED = 200_000
_REPORT_BYTES = 900_000
Phase = Literal["baseline", "test", "rerun"]


@dataclass(frozen=True)
class Tested:
    """One state of the repository: its files and how it is set up and tested."""

    commit: str
    committed: Committed
    project: Project


class SetupFailed(Exception):
    """The set-up commands failed."""

    def __init__(self, commands: tuple[events.CommandRun, ...]) -> None:
        super().__init__(commands[-1].output_tail if commands else "")
        self.commands = commands


def describe(commit: str, committed: Committed, policy: events.Policy) -> Tested:
    """Detect how a commit is tested. Raises ConfigError when the repository's own settings cannot be followed."""
    return Tested(commit, committed, detect(committed.tree, Override(setup=policy.setup_commands, test=policy.test_commands)))


class TestBench:
    """Runs the commands of one run under the step's fencing token."""

    __test__ = False

    def __init__(self, step: Step, repository: str, policy: events.Policy) -> None:
        self._step = step
        self._repository = repository
        self._policy = policy
        self.shown: list[events.CommandRun] = []
        self._set_up: set[str] = set()

    async def lay(self, tested: Tested) -> None:
        """Put a commit's files in place and set it up. Raises SetupFailed."""
        await self._ask(OpenWorkspace(**self._names, repository=self._repository, commit=tested.commit, reset=True))
        if not tested.project.setup_commands:
            return
        scripts = [c.script for c in tested.project.setup_commands]
        key = setup_key(scripts, tested.project, tested.committed.object_ids)
        await self._step.progress("status", "setting up")
        question = SetUp(
            **self._names,
            operation_id=f"setup-{key}",
            key=key,
            commands=tuple(scripts),
            timeout_seconds=self._policy.setup_timeout_seconds,
        )
        done: SetUpResult = await self._ask(question)
        if key not in self._set_up:
            self._set_up.add(key)
            self.shown.extend(_named(c, tested.project.setup_commands) for c in done.commands)
        if not done.ok:
            raise SetupFailed(done.commands)

    async def run(self, tested: Tested, phase: Phase, operation: str) -> list[CommandRun]:
        """Run the test commands of a commit that was laid."""
        found = [await self._command(c, phase, f"{operation}-{i}") for i, c in enumerate(tested.project.test_commands)]
        self.shown.extend(_contract(run, phase) for run in found)
        return found

    async def baseline(self, tested: Tested) -> list[CommandRun]:
        """Run the tests on the untouched tree: once a run, later attempts are answered from the record; an unknown one is tried again."""
        digest = hashlib.sha256("\0".join(c.script for c in tested.project.test_commands).encode()).hexdigest()[:16]
        found = await self.run(tested, "baseline", f"baseline-{digest}")
        if any(run.is_unknown for run in found):
            found = await self.run(tested, "baseline", f"baseline-{digest}-{self._step.token}")
        return found

    async def _command(self, command: Command, phase: Phase, operation: str) -> CommandRun:
        await self._step.progress("tool", f"{phase}: {command.run}")
        timeout = command.timeout_seconds or self._policy.test_timeout_seconds
        question = Execute(
            **self._names, operation_id=operation, command=command.script, timeout_seconds=timeout, tail_characters=_PARSED, stream=True
        )
        done: Executed = await self._ask(question, self._show)
        output = done.stdout + (f"\n{done.stderr}" if done.stderr else "")
        report = await self._report(command, operation)
        return CommandRun(
            command=command.run,
            exit_code=done.exit_code,
            outcome=done.outcome,
            output_tail=output[-TAIL:],
            duration_seconds=done.duration_seconds,
            report=parse_report(command.run, output, complete=len(output) < _PARSED, junit_xml=report),
        )

    async def _report(self, command: Command, operation: str) -> str | None:
        """The JUnit report that the command left, moved away so that a later command cannot pass with an old one."""
        if command.report_file is None:
            return None
        script = f"test -f {command.report_file} && cat {command.report_file} && rm -f {command.report_file}"
        question = Execute(**self._names, operation_id=f"{operation}-report", command=script, tail_characters=_REPORT_BYTES)
        done: Executed = await self._ask(question)
        return done.stdout if done.outcome == "exited" and done.exit_code == 0 else None

    async def _show(self, payload: bytes) -> None:
        await self._step.progress("output", OutputChunk.model_validate_json(payload).data.decode("utf-8", "replace"))

    async def _ask(self, question: Any, on_frame: Any = None) -> Any:
        try:
            return await self._step.ask(question, on_frame=on_frame)
        except Refusal as refusal:
            if refusal.code == "no_workspace":
                raise Retryable(f"the workspace was lost: {refusal.detail}") from refusal
            raise

    @property
    def _names(self) -> dict[str, Any]:
        return {"workspace_id": self._step.run_id, "token": self._step.token}


def _contract(run: CommandRun, phase: Phase) -> events.CommandRun:
    counts = run.report.counts
    return events.CommandRun(
        command=run.command,
        phase=phase,
        outcome=run.outcome,
        exit_code=run.exit_code,
        duration_seconds=round(run.duration_seconds, 3),
        output_tail=run.output_tail,
        passed=counts.passed if counts else None,
        failed=counts.failed if counts else None,
        skipped=counts.skipped if counts else None,
    )


def _named(done: events.CommandRun, commands: Sequence[Command]) -> events.CommandRun:
    """A set-up command under the words that the repository used."""
    words = next((c.run for c in commands if c.script == done.command), done.command)
    return done.model_copy(update={"command": words, "output_tail": done.output_tail[-TAIL:]})
