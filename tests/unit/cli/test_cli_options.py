"""What commands make of their options."""

import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from services.cli import solving
from services.cli.app import app
from services.cli.errors import ApiProblem, CliError, Unreachable, Usage

COMMANDS = [
    "up",
    "demo",
    "doctor",
    "token",
    "version",
    "chat",
    "solve",
    "runs",
    "show",
    "watch",
    "diff",
    "fetch",
    "cancel",
    "approve",
    "deny",
    "retry",
]


def test_the_same_title_gives_the_same_issue_id_in_any_language():
    assert solving.issue_id("Fix the Login!") == solving.issue_id("Fix the Login!")
    assert solving.issue_id("Fix the Login!").startswith("fix-the-login-")
    assert solving.issue_id("修复登录") != solving.issue_id("修复注销")
    assert solving.issue_id("修复登录").isascii()
    assert not solving.issue_id("修复登录").startswith("issue")  # the branch is fix/issue-<id>


def test_policy_values_are_json_or_text():
    found = solving.policy(["max_attempts=5", "plan-approval=true", "no_tests=fail", "test_commands=pytest -q", "test_commands=make check"])
    assert found == {"max_attempts": 5, "plan_approval": True, "no_tests": "fail", "test_commands": ["pytest -q", "make check"]}


def test_a_list_of_commands_may_be_given_whole():
    assert solving.policy(['setup_commands=["a", "b"]']) == {"setup_commands": ["a", "b"]}


@pytest.mark.parametrize("pairs", [["nonsense"], ["=1"], ["max_attempts=1", "max_attempts=2"]])
def test_a_wrong_policy_is_a_wrong_call(pairs):
    with pytest.raises(Usage):
        solving.policy(pairs)


def test_the_body_comes_from_one_place(tmp_path):
    file = tmp_path / "nämé ☃.md"
    file.write_text("正文", encoding="utf-8")
    assert solving.body(None, str(file)) == "正文"
    assert solving.body("text", None) == "text"
    with pytest.raises(Usage):
        solving.body("text", str(file))
    with pytest.raises(Usage):
        solving.body(None, str(tmp_path / "missing"))


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_and_json(name):
    said = CliRunner().invoke(app, [name, "--help"], env={"COLUMNS": "200"}).output
    assert "--json" in said


def test_the_version_is_that_of_the_project():
    said = json.loads(CliRunner().invoke(app, ["version", "--json"]).output)["version"]
    assert f'version = "{said}"' in (solving.Path(__file__).parents[3] / "pyproject.toml").read_text()


def test_help_imports_neither_a_service_nor_the_bus():
    code = (
        "import sys; from services.cli.app import app\n"
        "heavy = [m for m in sys.modules if m.startswith(('libs.', 'nats', 'fastapi', 'httpx', 'pydantic', 'services.')) "
        "and not m.startswith('services.cli')]\n"
        "print(heavy)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_errors_have_their_exit_codes():
    assert (CliError("x").code, Usage("x").code, Unreachable("x").code) == (1, 2, 3)
    assert ApiProblem(422, "Unprocessable", "title: must not be empty").code == 2
    assert ApiProblem(503, "Service Unavailable", "").code == 1


@pytest.mark.parametrize(
    ("problem", "message", "hint"),
    [
        (
            (409, "Conflict", "the run is finished already", "POST …/retry sends a step", "run-ended"),
            "the run is finished already",
            "retry",
        ),
        ((409, "Conflict", "the run waits", "POST …/approve or …/deny first", "waiting"), "the run waits", "agent-coder approve"),
        ((422, "Unprocessable", "query.status: wrong", "GET /openapi.json has the schema", "invalid-request"), "--status: wrong", "--help"),
        (
            (404, "Not Found", "there is no dead letter 9", "GET /api/dead lists them", "not-found"),
            "there is no dead letter 9",
            "dead list",
        ),
        ((404, "Not Found", "there is no run X", "GET /api/runs lists them", "not-found"), "there is no run X", "agent-coder runs"),
        ((401, "Unauthorized", "this token is not valid here", "send 'Authorization: Bearer T'", ""), "not valid", "AGENT_CODER_TOKEN"),
        ((502, "Bad Gateway", "unreachable", "check the URL", "unreachable"), "unreachable", "check the URL"),
    ],
)
def test_a_problem_of_the_server_is_told_in_words_of_the_command_line(problem, message, hint):
    found = ApiProblem(*problem)
    assert message in found.message
    assert hint in found.hint
    assert "GET " not in found.hint
    assert "POST " not in found.hint


@pytest.mark.parametrize(("encoding", "shown"), [("gbk", "?5 修复"), ("ascii", "?5 ??"), ("utf-8", "¥5 修复")])
def test_a_terminal_that_lacks_a_letter_shows_a_question_mark_for_it(encoding, shown):
    code = "import sys; from services.cli import __main__ as m; m.app = lambda **_: print('¥5 修复'); sys.exit(m.main())"
    environment = {"PYTHONIOENCODING": encoding, "PATH": "/usr/bin:/bin"}
    root = solving.Path(__file__).parents[3]
    done = subprocess.run([sys.executable, "-c", code], env=environment, cwd=root, capture_output=True, check=True)
    assert done.stdout.decode(encoding).strip() == shown


def test_json_for_a_terminal_that_lacks_letters_is_escaped():
    code = "from services.cli.context import show; show({'title': '修复 ☃'}, True, lambda: None)"
    environment = {"PYTHONIOENCODING": "gbk", "PATH": "/usr/bin:/bin"}
    root = solving.Path(__file__).parents[3]
    done = subprocess.run([sys.executable, "-c", code], env=environment, cwd=root, capture_output=True, check=True)
    assert done.stdout.isascii()
    assert json.loads(done.stdout) == {"title": "修复 ☃"}


def test_without_a_server_the_exit_code_is_three_and_the_way_to_start_one_is_told(tmp_path):
    done = _program(tmp_path, "runs", url="http://127.0.0.1:1")
    assert done.returncode == 3
    assert "agent-coder up" in done.stderr


def test_a_wrong_call_ends_with_two(tmp_path):
    assert _program(tmp_path, "runs", "--nonsense").returncode == 2
    assert _program(tmp_path, "solve", str(tmp_path), "--title", "x").returncode == 2
    assert "git init" in _program(tmp_path, "solve", str(tmp_path), "--title", "x").stderr


def test_a_wrong_variable_is_named(tmp_path):
    done = _program(tmp_path, "runs", url="nonsense")
    assert done.returncode == 2
    assert "AGENT_CODER_URL" in done.stderr


def _program(home, *arguments, url="http://127.0.0.1:1"):
    environment = {"AGENT_CODER_HOME": str(home), "AGENT_CODER_URL": url, "PATH": "/usr/bin:/bin", "COLUMNS": "200"}
    root = solving.Path(__file__).parents[3]
    return subprocess.run(
        [sys.executable, "-m", "services.cli", *arguments],
        env=environment,
        cwd=root,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
