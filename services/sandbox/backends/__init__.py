"""What every backend does: run one command in one workspace under limits, and tell how it ended.

A backend never runs a command without isolation, and never reports an exit code that it did not see.
"""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Literal, Protocol

from pydantic import BaseModel, ConfigDict, Field

Stream = Literal["stdout", "stderr"]
Outcome = Literal["exited", "timeout", "output_limit", "memory_limit", "disk_limit", "killed", "unknown"]
OnOutput = Callable[[Stream, bytes], Awaitable[None]]

MEBIBYTE = 1024 * 1024


class Limits(BaseModel):
    """What a command may use. `disk_bytes` counts the workspace and its home together."""

    model_config = ConfigDict(frozen=True)

    memory_bytes: int = Field(default=4096 * MEBIBYTE, ge=16 * MEBIBYTE)
    processes: int = Field(default=512, ge=8)
    output_bytes: int = Field(default=32 * MEBIBYTE, ge=1)
    kept_output_bytes: int = Field(default=1 * MEBIBYTE, ge=2, description="of each stream, half from its head, half from its tail")
    file_bytes: int = Field(default=2048 * MEBIBYTE, ge=1)
    tmp_bytes: int = Field(default=1024 * MEBIBYTE, ge=4096)
    disk_bytes: int = Field(default=8192 * MEBIBYTE, ge=1)
    cpu_cores: float | None = Field(default=None, gt=0)


class CommandSpec(BaseModel):
    """A command: a text for the shell or an argument list. `cwd` is relative to the workspace."""

    model_config = ConfigDict(frozen=True)

    command: str | list[str]
    workspace: Path
    timeout_seconds: float = Field(gt=0)
    git_directory: Path | None = None
    home: Path | None = None
    environment: dict[str, str] = {}
    limits: Limits = Limits()
    network: Literal["none", "registries"] = "none"
    cwd: str = "."
    label: str = Field(default="", description="names the workspace in the logs")


class CommandResult(BaseModel):
    """How a command ended. `exit_code` is None unless the command itself was seen to exit; `reason` explains other outcomes."""

    model_config = ConfigDict(frozen=True, ser_json_bytes="base64", val_json_bytes="base64")

    exit_code: int | None
    outcome: Outcome
    reason: str = ""
    stdout: bytes = b""
    stderr: bytes = b""
    stdout_truncated: bool = False
    stderr_truncated: bool = False
    duration_seconds: float = 0.0


class Backend(Protocol):
    """Runs commands in isolation."""

    name: str

    async def run(self, spec: CommandSpec, on_output: OnOutput | None = None) -> CommandResult:
        """Run to the end, the deadline or a limit; nothing of the command is left running afterwards.

        `on_output` gets the output as it comes and slows the command down while it is awaited; what it raises ends the
        command and is passed on. Raises BackendUnavailable and LaunchFailed; then nothing was run.
        """
        ...

    async def check(self) -> None:
        """Raise BackendUnavailable, with what is wrong and what to do, when commands cannot be isolated here."""
        ...
