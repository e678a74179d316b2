"""AGENTS.md gives commands only where it clearly means to."""

import pytest

from libs.repository.agents_md import AgentsCommands, parse_agents_md


def test_code_blocks_under_headings_are_taken() -> None:
    setup = "# Guide\n## Setup\n```sh\n$ npm ci\nadded 3 packages\n```\n"
    text = setup + "## Running tests\nUse:\n```bash\n# all of them\nnpm test\nmake check \\\n  V=1\n```\n"
    assert parse_agents_md(text) == AgentsCommands(setup=("npm ci",), test=("npm test", "make check    V=1"))


def test_chinese_headings_and_labels_are_taken() -> None:
    text = "## 安装依赖\n```\npip install -r requirements.txt\n```\n## 测试\n```\npytest -q\n```\n- 测试：`make e2e`\n"
    assert parse_agents_md(text) == AgentsCommands(setup=("pip install -r requirements.txt",), test=("pytest -q", "make e2e"))


@pytest.mark.parametrize(
    "line", ["- Test: `make check`", "* **Tests:** `make check`", "Run tests: `make check`.", "1. test command: `make check`"]
)
def test_labelled_lines_are_taken(line: str) -> None:
    assert parse_agents_md(line).test == ("make check",)


@pytest.mark.parametrize(
    "text",
    [
        "Before you test: never run `rm -rf /` on it, please.",
        "## Test\nRun `pytest` when you feel like it.\n",
        "## Style\n```sh\nblack .\n```\n",
        "## Tests\n```python\nassert run() == 1\n```\n",
        "## Tests\n```sh\npytest <path to the test>\nnpm test -- --watch\n```\n",
        "## Tests\n```sh\npytest\n",
    ],
)
def test_prose_other_code_and_placeholders_are_left(text: str) -> None:
    assert parse_agents_md(text) == AgentsCommands()


def test_lines_that_need_each_other_stay_one_command() -> None:
    assert parse_agents_md("## Test\n```\ncd web\nnpm test\n```\n").test == ("set -e\ncd web\nnpm test",)
