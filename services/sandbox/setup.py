"""Set-up of a workspace: installs what the tests need, once per key, with the package registries in reach.

What set-up made stays out of every snapshot, and tracked files that it touched are brought back: a fix never contains an installation.
"""

import json
import time
from collections.abc import Sequence
from pathlib import Path

from pydantic import BaseModel

from libs.contracts.run import CommandRun
from libs.contracts.sandbox import SetUpResult
from services.sandbox.backends import Backend, CommandResult, CommandSpec
from services.sandbox.backends.capture import cut_text
from services.sandbox.lease import write_durably
from services.sandbox.snapshots import Snapshots

TAIL_CHARACTERS = 4000


class SetUpState(BaseModel):
    """What was set up: the keys that are done, the newest last, what each one's commands gave, and the untracked paths that set-up made."""

    keys: tuple[str, ...] = ()
    created: tuple[str, ...] = ()
    runs: dict[str, tuple[CommandRun, ...]] = {}


class SetUpRunner:
    """Runs set-up commands for one workspace. `place` is the workspace's spec without command."""

    def __init__(self, backend: Backend, place: CommandSpec, snapshots: Snapshots, folder: Path) -> None:
        self._backend = backend
        self._place = place
        self._snapshots = snapshots
        self._path = folder / "setup.json"

    @property
    def state(self) -> SetUpState:
        """What has been set up so far."""
        return SetUpState.model_validate(json.loads(self._path.read_text())) if self._path.exists() else SetUpState()

    async def run(self, key: str, commands: Sequence[str], timeout_seconds: float) -> SetUpResult:
        """Run the commands unless `key` is done; stops at the first that fails. All commands share `timeout_seconds`."""
        state = self.state
        if key in state.keys:
            return SetUpResult(ok=True, ran=False, commands=state.runs.get(key, ()))
        before = set(await self._snapshots.untracked())
        touched = set(await self._snapshots.modified())
        runs: list[CommandRun] = []
        deadline = time.monotonic() + timeout_seconds
        for command in commands:
            spec = self._place.model_copy(
                update={"command": command, "timeout_seconds": max(0.1, deadline - time.monotonic()), "network": "registries"}
            )
            runs.append(as_command_run(command, await self._backend.run(spec)))
            if runs[-1].exit_code != 0:
                break
        created = set(await self._snapshots.untracked()) - before
        await self._snapshots.restore(set(await self._snapshots.modified()) - touched)
        ok = all(run.exit_code == 0 for run in runs)
        done = SetUpState(keys=(*state.keys, key), runs={**state.runs, key: tuple(runs)}) if ok else state
        self._save(done.model_copy(update={"created": tuple(sorted({*state.created, *created}))}))
        return SetUpResult(ok=ok, ran=True, commands=tuple(runs))

    def _save(self, state: SetUpState) -> None:
        """ASCII only, so that a name that is not UTF-8 survives."""
        write_durably(self._path, json.dumps(state.model_dump(mode="python")))


def as_command_run(command: str, result: CommandResult) -> CommandRun:
    """A set-up command's result for the journal: both streams in one tail, and why it was ended."""
    output = result.stdout + (b"\n" if result.stdout and result.stderr else b"") + result.stderr
    note = f"\n[{result.outcome}: {result.reason}]".encode() if result.reason else b""
    return CommandRun(
        command=command,
        phase="setup",
        outcome=result.outcome,
        exit_code=result.exit_code,
        duration_seconds=round(result.duration_seconds, 3),
        output_tail=cut_text(output + note, TAIL_CHARACTERS),
    )
