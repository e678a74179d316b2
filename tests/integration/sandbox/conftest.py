"""A real sandbox in a temporary folder."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from services.sandbox.backends import CommandSpec, Limits
from services.sandbox.backends.process import ProcessBackend

MEBIBYTE = 1024 * 1024


@pytest.fixture(scope="session")
def backend(tmp_path_factory: pytest.TempPathFactory) -> ProcessBackend:
    return ProcessBackend.on_this_machine(tmp_path_factory.mktemp("runtime"))


@pytest.fixture
def command(tmp_path: Path) -> Callable[..., CommandSpec]:
    """A command in an empty workspace; keywords are fields of the spec, and those of the limits."""
    tree, home = tmp_path / "tree", tmp_path / "home"
    tree.mkdir()
    home.mkdir()

    def build(text: str | list[str], *, timeout_seconds: float = 30, **fields: Any) -> CommandSpec:
        limits = Limits(**{name: fields.pop(name) for name in tuple(fields) if name in Limits.model_fields})
        return CommandSpec(command=text, workspace=tree, home=home, timeout_seconds=timeout_seconds, limits=limits, **fields)

    return build
