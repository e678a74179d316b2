"""Fixtures of the artifact tests: a store, an importer, and a source repository."""

from pathlib import Path

import pytest

from services.artifact.importing import Importer
from services.artifact.reading import Reader
from services.artifact.repositories import Repositories
from tests.unit.artifact.sample import Sample


@pytest.fixture
def repositories(tmp_path: Path) -> Repositories:
    return Repositories(tmp_path / "store")


@pytest.fixture
def importer(repositories: Repositories) -> Importer:
    return Importer(repositories, allow_local_paths=True)


@pytest.fixture
def reader(repositories: Repositories) -> Reader:
    return Reader(repositories)


@pytest.fixture
def source(tmp_path: Path) -> Sample:
    sample = Sample(tmp_path / "calculator")
    sample.commit({"README.md": "# Calculator\n", "calc.py": "def add(a, b):\n    return a - b\n"}, "first")
    return sample
