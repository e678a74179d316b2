"""Find out how a repository is set up and tested.

Invariant: the run's policy goes before `.agent-coder.toml`, that before AGENTS.md, that before what the files look like; set-up and test
are decided apart.
"""

import shlex
from collections.abc import Sequence
from pathlib import PurePosixPath

from pydantic import BaseModel, ConfigDict

from libs.repository import javascript_project, other_projects, python_project
from libs.repository.agents_md import AGENTS_PATHS, AgentsCommands, parse_agents_md
from libs.repository.config import CONFIG_PATH, RepositoryConfig, parse_config
from libs.repository.languages import count_languages, is_test_path, is_vendored
from libs.repository.project import Command, Project, Snapshot, Source, Tree

LOCK_FILES = (
    *javascript_project.LOCK_FILES,
    *("poetry.lock", "uv.lock", "pdm.lock", "Pipfile.lock", "go.sum", "go.mod", "Cargo.lock", "Cargo.toml", "gradle.lockfile"),
    *("pyproject.toml", "setup.py", "setup.cfg", "package.json", "pom.xml", "build.gradle", "build.gradle.kts", CONFIG_PATH, *AGENTS_PATHS),
)
_MANIFESTS = frozenset(
    {"pyproject.toml", "setup.py", "setup.cfg", "package.json", "go.mod", "Cargo.toml", "pom.xml", "build.gradle", "build.gradle.kts"}
)
_MAX_PARTS = 8
_MAX_DEPTH = 2


class Override(BaseModel):
    """The commands that a run's policy names; None leaves the question to the repository."""

    model_config = ConfigDict(frozen=True)

    setup: tuple[str, ...] | None = None
    test: tuple[str, ...] | None = None


def detect(tree: Tree, override: Override | None = None) -> Project:
    """Describe a repository's languages, set-up and tests.

    Raises ConfigError when `.agent-coder.toml` cannot be followed.
    """
    asked = override or Override()
    config = parse_config(tree.read(CONFIG_PATH)) if CONFIG_PATH in tree.paths else RepositoryConfig()
    agents = _agents(tree)
    named_tests, source = _named(asked.test, config.test.commands, agents.test)
    detected_setup, detected_tests = _detect_commands(tree, "\n".join(named_tests or ()))
    named_setup, _ = _named(asked.setup, config.setup.commands, agents.setup)
    tests = detected_tests if named_tests is None else [Command(run=run) for run in named_tests]
    return Project(
        languages=count_languages(tree.paths),
        setup_commands=tuple(detected_setup if named_setup is None else [Command(run=run) for run in named_setup]),
        test_commands=tuple(command.model_copy(update={"timeout_seconds": config.test.timeout_seconds}) for command in tests),
        lock_files=tuple(sorted(path for path in tree.paths if _is_lock_file(path))),
        test_paths=tuple(path for path in tree.paths if is_test_path(path)),
        no_tests=config.verify.no_tests,
        source=source,
    )


def files_to_read(paths: Sequence[str], limit: int = 200) -> tuple[str, ...]:
    """Return the paths whose texts `detect` looks at, the most telling first, for a caller that must fetch them."""
    special = {CONFIG_PATH, *AGENTS_PATHS}
    manifests = {*_MANIFESTS, *python_project.MANIFESTS, *other_projects.MAKEFILES}

    def rank(path: str) -> int | None:
        name = PurePosixPath(path).name
        if path in special:
            return 0
        if is_vendored(path):
            return None
        if name in manifests or (name.endswith(".txt") and "requirement" in path):
            return 1
        if is_test_path(path):
            return 2
        return 3 if name == "__init__.py" or name.endswith(".rs") else None

    ranked = [(order, path.count("/"), path) for path in paths if (order := rank(path)) is not None]
    return tuple(path for _, _, path in sorted(ranked)[:limit])


def _agents(tree: Tree) -> AgentsCommands:
    text = next((text for path in AGENTS_PATHS if path in tree.paths and (text := tree.read(path))), "")
    return parse_agents_md(text)


def _named(override: tuple[str, ...] | None, config: list[str] | None, agents: tuple[str, ...]) -> tuple[tuple[str, ...] | None, Source]:
    """Return the commands that somebody named, and who; None when nobody did."""
    if override is not None:
        return override, "override"
    if config is not None:
        return tuple(config), "config"
    return (agents, "agents_md") if agents else (None, "detected")


def _is_lock_file(path: str) -> bool:
    name = PurePosixPath(path).name
    return not is_vendored(path) and (name in LOCK_FILES or (name.endswith(".txt") and "requirement" in path))


def _detect_commands(tree: Tree, override_text: str) -> tuple[list[Command], list[Command]]:
    parts = [] if _MANIFESTS & set(tree.paths) else _parts(tree.paths)
    setup, tests = _detect_at(_without(tree, parts) if parts else tree, override_text)
    for folder in parts:
        part_setup, part_tests = _detect_at(_below(tree, folder), "")
        setup.extend(_inside(folder, command) for command in part_setup)
        tests.extend(_inside(folder, command) for command in part_tests)
    return (setup, tests) if tests else (setup, other_projects.detect_make(tree)[1])


def _detect_at(tree: Tree, override_text: str) -> tuple[list[Command], list[Command]]:
    setup: list[Command] = []
    tests: list[Command] = []
    found = (
        python_project.detect_python(tree, override_text),
        javascript_project.detect_javascript(tree),
        other_projects.detect_go(tree),
        other_projects.detect_rust(tree),
        other_projects.detect_java(tree),
    )
    for part_setup, part_tests in found:
        setup.extend(part_setup)
        tests.extend(part_tests)
    return setup, tests


def _parts(paths: Sequence[str]) -> list[str]:
    """Return the folders of a repository of many projects: those that hold a manifest, near the root."""
    folders = {str(PurePosixPath(path).parent) for path in paths if PurePosixPath(path).name in _MANIFESTS and not is_vendored(path)}
    near = sorted(folder for folder in folders if folder != "." and folder.count("/") < _MAX_DEPTH)
    return near[:_MAX_PARTS]


def _below(tree: Tree, folder: str) -> Tree:
    prefix = f"{folder}/"
    inside = [path for path in tree.paths if path.startswith(prefix)]
    texts = {path.removeprefix(prefix): text for path in inside if (text := tree.read(path)) is not None}
    return Snapshot([path.removeprefix(prefix) for path in inside], texts)


def _without(tree: Tree, folders: Sequence[str]) -> Tree:
    prefixes = tuple(f"{folder}/" for folder in folders)
    outside = [path for path in tree.paths if not path.startswith(prefixes)]
    return Snapshot(outside, {path: text for path in outside if (text := tree.read(path)) is not None})


def _inside(folder: str, command: Command) -> Command:
    return command.model_copy(update={"run": f"cd {shlex.quote(folder)}\n{command.run}"})
