"""What the documentation of repositories and policies promises."""

import re
from pathlib import Path

import pytest

from libs.contracts.run import Policy
from libs.repository.config import parse_config

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "repositories.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("key", Policy.model_fields)
def test_every_key_of_a_policy_is_documented(key):
    assert f"`{key}`" in PAGE


def test_the_documented_file_of_a_repository_can_be_read():
    found = parse_config(re.search(r"```toml\n(.*?)```", PAGE, re.DOTALL)[1])
    assert found.setup.commands == ["npm ci"]
    assert (found.test.commands, found.test.timeout_seconds, found.verify.no_tests) == (["npm test"], 300, "fail")
