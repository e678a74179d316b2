"""Parts of the process backend without a process."""

from pathlib import Path

import pytest

from services.sandbox.backends import CommandSpec
from services.sandbox.backends.bubblewrap import Runtime
from services.sandbox.backends.toolchains import Toolchains, discover


@pytest.fixture
def backend_parts(tmp_path: Path) -> tuple[CommandSpec, Toolchains, Runtime]:
    toolchains = discover()
    spec = CommandSpec(command="true", workspace=tmp_path / "tree", home=tmp_path / "home", timeout_seconds=1)
    return spec, toolchains, Runtime.lay_out(tmp_path / "runtime", toolchains)
