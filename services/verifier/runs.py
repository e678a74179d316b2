"""One run of a command, as the verdict sees it."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from services.verifier.reports import TestReport

RunOutcome = Literal["exited", "timeout", "output_limit", "memory_limit", "disk_limit", "killed", "unknown"]

_ENDINGS: dict[RunOutcome, str] = {
    "output_limit": "was stopped because it printed more than is allowed",
    "memory_limit": "was stopped because it used more memory than is allowed",
    "disk_limit": "was stopped because it wrote more to the disk than is allowed",
    "killed": "was killed before it ended",
    "unknown": "lost its output stream, so its result is unknown",
}


class CommandRun(BaseModel):
    """A command, how it ended and what its tests said.

    outcome: `exited` with an exit code, `unknown` when its stream broke off, otherwise what stopped it.
    """

    model_config = ConfigDict(frozen=True)

    command: str
    exit_code: int | None = None
    outcome: RunOutcome = "exited"
    output_tail: str = ""
    duration_seconds: float = Field(default=0.0, ge=0)
    report: TestReport = TestReport(runner="unknown")

    @property
    def is_unknown(self) -> bool:
        """Nobody can tell how the command ended."""
        return self.outcome == "unknown" or (self.outcome == "exited" and self.exit_code is None)

    @property
    def ending(self) -> str:
        """How the command ended, as the rest of a sentence."""
        if self.is_unknown:
            return _ENDINGS["unknown"]
        if self.outcome == "timeout":
            return f"was stopped at its deadline after {self.duration_seconds:.0f} s"
        return _ENDINGS.get(self.outcome, f"ended with exit code {self.exit_code}")
