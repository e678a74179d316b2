"""What is known about a repository: its languages, and the commands that prepare and test it.

Invariant: nothing here reads a disk. A tree is a list of paths and a way to read one of them.

    RepositoryError
    └── ConfigError      .agent-coder.toml says something that cannot be followed
"""

from collections.abc import Mapping, Sequence
from typing import Literal, Protocol

from pydantic import BaseModel, ConfigDict

Source = Literal["override", "config", "agents_md", "detected"]
NoTests = Literal["fail", "ask"]

SHELL_PRELUDE = 'export PATH="$HOME/venv/bin:$PWD/node_modules/.bin:$PATH" CI=1 PYTHONDONTWRITEBYTECODE=1\n'
"""Put before every command, so that `python`, `pytest` or `tape` mean what the set-up installed."""


class RepositoryError(Exception):
    """The repository cannot be understood."""


class ConfigError(RepositoryError):
    """`.agent-coder.toml` holds something that cannot be followed; the text names every fault."""


class Tree(Protocol):
    """One state of a repository: tracked paths, `/`-separated, and their texts."""

    @property
    def paths(self) -> Sequence[str]: ...

    def read(self, path: str) -> str | None:
        """Return the text of a file, or None when it is absent, not text, or was not fetched."""


class Snapshot:
    """A tree held in memory: every path, and the texts that were fetched."""

    def __init__(self, paths: Sequence[str], texts: Mapping[str, str]) -> None:
        self._paths = tuple(paths)
        self._texts = dict(texts)

    @property
    def paths(self) -> Sequence[str]:
        return self._paths

    def read(self, path: str) -> str | None:
        return self._texts.get(path)


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True)


class Command(_Frozen):
    """One shell command, to be run with `sh -c` in the root of the workspace."""

    run: str
    optional: bool = False
    """A failure is noted, and the work goes on."""
    report_file: str | None = None
    """Where the command leaves a JUnit XML report; a shell word, it may hold `$HOME`."""
    timeout_seconds: int | None = None

    @property
    def script(self) -> str:
        """The text to execute: the command with the set-up's programs on the path; an optional one always succeeds."""
        if self.optional:
            return f"{SHELL_PRELUDE}(\n{self.run}\n) || echo 'this step failed; it is optional, the work goes on' >&2"
        return SHELL_PRELUDE + self.run


class Language(_Frozen):
    name: str
    files: int


class Project(_Frozen):
    """How to set a repository up and how to test it. Without test commands there are no tests to be found."""

    languages: tuple[Language, ...] = ()
    setup_commands: tuple[Command, ...] = ()
    test_commands: tuple[Command, ...] = ()
    lock_files: tuple[str, ...] = ()
    """Files whose content decides whether the set-up must run again."""
    test_paths: tuple[str, ...] = ()
    """The tracked files that hold tests."""
    no_tests: NoTests | None = None
    """What the repository wants to happen when it has no tests; None leaves it to the run's policy."""
    source: Source = "detected"
    """Who named the test commands."""
