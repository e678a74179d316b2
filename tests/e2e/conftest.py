"""The cases are laid out once a session; each test works on a copy."""

import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from libs.testkit.cases import Case, prepare

CopyCase = Callable[[str, Path], Awaitable[Case]]


@pytest.fixture(scope="session")
def copy_case(tmp_path_factory: pytest.TempPathFactory) -> CopyCase:
    """`await copy_case(name, place)`: a case of one's own in `place`."""
    shelf = tmp_path_factory.mktemp("cases")
    originals: dict[str, Case] = {}

    async def copy(name: str, place: Path) -> Case:
        if name not in originals:
            originals[name] = await prepare(name, shelf / name)
        shutil.copytree(shelf / name, place, symlinks=True)
        return Case(place, originals[name].row)

    return copy
