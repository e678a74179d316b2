"""What is found out about small trees, and that the commands found really run."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from libs.repository import Command, ConfigError, Override, Project, Snapshot, detect, files_to_read, is_test_path
from services.verifier.reports import parse_report

UNITTEST = "import unittest\n\nclass T(unittest.TestCase):\n    def test_ok(self):\n        self.assertEqual(1, 1)\n"
PYTEST = "def test_ok():\n    assert True\n"


def project(files: dict[str, str], override: Override | None = None) -> Project:
    return detect(Snapshot(list(files), files), override)


def commands_of(files: dict[str, str], override: Override | None = None) -> list[str]:
    return [command.run for command in project(files, override).test_commands]


def setup_of(files: dict[str, str]) -> str:
    return "\n".join(command.run for command in project(files).setup_commands)


def test_empty_tree_has_neither_commands_nor_languages() -> None:
    assert project({}) == Project()


def test_unittest_needs_nothing_installed() -> None:
    files = {"calc.py": "x = 1\n", "tests/test_calc.py": UNITTEST}
    assert commands_of(files) == ["\"$HOME/venv/bin/python\" -m unittest discover -v -s tests -p 'test*.py'"]
    assert "install" not in setup_of(files)


def test_unittest_package_is_discovered_from_the_root() -> None:
    assert " -s tests -t . " in commands_of({"tests/__init__.py": "", "tests/test_a.py": UNITTEST})[0]


def test_unittest_beside_the_sources() -> None:
    assert commands_of({"calc.py": "", "test_calc.py": UNITTEST}) == ['"$HOME/venv/bin/python" -m unittest discover -v']


@pytest.mark.parametrize(
    "files",
    [
        {"tests/test_a.py": PYTEST},
        {"tests/test_a.py": UNITTEST, "tox.ini": "[testenv]\ncommands = pytest\n"},
        {"tests/test_a.py": UNITTEST, "tests/conftest.py": ""},
        {"tests/test_a.py": UNITTEST, "requirements-dev.txt": "pytest==8\n"},
        {"tests/test_a.py": UNITTEST, "pyproject.toml": "[tool.pytest.ini_options]\n"},
        {"tests/test_a.py": UNITTEST, "tests/test_b.py": "import pytest\n"},
    ],
)
def test_pytest_is_chosen_when_the_project_names_or_needs_it(files: dict[str, str]) -> None:
    command = project(files).test_commands[0]
    assert "-m pytest" in command.run
    assert command.report_file == "$HOME/report.xml"
    assert "install -q --disable-pip-version-check --no-input --retries 2 pytest" in setup_of(files)


def test_python_requirements_extras_and_groups_are_installed() -> None:
    files = {
        "pyproject.toml": '[project]\nname = "a"\ndependencies = ["attrs"]\n[project.optional-dependencies]\ntest = ["x"]\n'
        '[dependency-groups]\ndev = ["hypothesis>=6", {include-group = "x"}]\n',
        "requirements.txt": "attrs\n",
        "src/a/__init__.py": "",
        "tests/test_a.py": PYTEST,
    }
    text = setup_of(files)
    assert "-r requirements.txt 'hypothesis>=6'" in text
    assert '"$HOME/package[test]"' in text
    assert '"$PWD/src"' in text


def test_package_install_may_fail_without_ending_the_run() -> None:
    commands = project({"setup.py": "setup(install_requires=['a'])", "tests/test_a.py": PYTEST}).setup_commands
    assert [command.optional for command in commands if "$HOME/package" in command.run] == [True]


def test_failing_optional_command_succeeds_as_a_script() -> None:
    script = Command(run="exit 3", optional=True).script
    done = subprocess.run(["sh", "-c", script], check=False, capture_output=True, text=True)
    assert done.returncode == 0
    assert "optional" in done.stderr


def test_compiled_package_is_installed_in_place() -> None:
    assert '-e "."' in setup_of({"setup.py": "setup(ext_modules=[Extension('a', ['a.c'])])", "tests/test_a.py": PYTEST})


@pytest.mark.parametrize(
    ("script", "command"),
    [
        ("tap test/*.js", "npm test"),
        ("jest", "npm test -- --verbose"),
        ("eslint . && cross-env A=1 vitest run", "npm test -- --reporter=verbose"),
        ('echo "Error: no test specified" && exit 1', "node --test --test-reporter=tap"),
    ],
)
def test_javascript_script_or_node_runner(script: str, command: str) -> None:
    manifest = json.dumps({"scripts": {"test": script}, "devDependencies": {"tape": "4"}})
    found = project({"package.json": manifest, "test/a.js": "", "package-lock.json": "{}"})
    assert [item.run for item in found.test_commands] == [command]
    assert found.setup_commands[0].run.startswith("npm ci")
    assert "package-lock.json" in found.lock_files


def test_javascript_without_dependencies_needs_no_setup() -> None:
    assert project({"package.json": "{}", "a.test.js": ""}).setup_commands == ()


@pytest.mark.parametrize("manifest", ["{", "[1]", '{"scripts": "x"}', '{"scripts": {"test": 3}}'])
def test_malformed_package_json_is_survived(manifest: str) -> None:
    assert commands_of({"package.json": manifest, "test/a.js": ""}) == ["node --test --test-reporter=tap"]


@pytest.mark.parametrize(
    ("files", "command"),
    [
        ({"go.mod": "module x", "a_test.go": ""}, "go test -json ./..."),
        ({"Cargo.toml": "", "src/lib.rs": "#[test]\nfn a() {}"}, 'CARGO_TARGET_DIR="$HOME/target" cargo test --offline --no-fail-fast'),
        ({"pom.xml": "", "src/test/java/x/ATest.java": ""}, 'mvn -B -o -Dmaven.repo.local="$HOME/.m2/repository" test'),
        ({"Makefile": "build:\n\ttrue\ntest: build\n\t./check\n"}, "make -k test"),
    ],
)
def test_other_languages(files: dict[str, str], command: str) -> None:
    assert commands_of(files) == [command]


def test_gradle_wrapper_is_used() -> None:
    files = {"build.gradle.kts": "", "gradlew": "", "src/test/java/ATest.java": ""}
    assert "sh ./gradlew --console=plain --offline test" in commands_of(files)[0]


def test_makefile_is_not_asked_when_the_language_has_its_own_runner() -> None:
    assert len(commands_of({"Makefile": "test:\n\tpytest\n", "tests/test_a.py": PYTEST})) == 1


def test_projects_in_folders_are_tested_in_their_folders() -> None:
    files = {
        "back end/pyproject.toml": "",
        "back end/tests/test_a.py": PYTEST,
        "web/package.json": '{"scripts": {"test": "mocha"}}',
        "README.md": "",
    }
    commands = commands_of(files)
    assert commands[0].startswith("cd 'back end'\n")
    assert commands[1] == "cd web\nnpm test"


def test_own_configuration_goes_before_agents_md_and_files() -> None:
    files = {
        ".agent-coder.toml": '[setup]\ncommands = []\n[test]\ncommands = ["./check"]\ntimeout_seconds = 60\n[verify]\nno_tests = "ask"\n',
        "AGENTS.md": "- Test: `other`\n",
        "tests/test_a.py": PYTEST,
    }
    found = project(files)
    assert (found.source, found.no_tests, found.setup_commands) == ("config", "ask", ())
    assert [(command.run, command.timeout_seconds) for command in found.test_commands] == [("./check", 60)]


def test_policy_goes_before_everything_and_still_gets_its_runner_installed() -> None:
    files = {".agent-coder.toml": '[test]\ncommands = ["./check"]\n', "a.py": ""}
    found = project(files, Override(test=("python -m pytest -q tests",)))
    assert found.source == "override"
    assert any("pytest" in command.run for command in found.setup_commands)


def test_policy_of_set_up_alone_leaves_the_tests_to_detection() -> None:
    found = project({"tests/test_a.py": PYTEST}, Override(setup=("./prepare",)))
    assert [command.run for command in found.setup_commands] == ["./prepare"]
    assert found.source == "detected"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[test]\ncomands = []\n", ["unknown key 'test.comands'", "commands, timeout_seconds"]),
        ("[tests]\n", ["unknown key 'tests'", "setup, test, verify"]),
        ("[test]\ntimeout_seconds = 0\ncommands = 'x'\n", ["'test.timeout_seconds'", "'test.commands'"]),
        ("[verify]\nno_tests = 'maybe'\n", ["'verify.no_tests'", "'fail' or 'ask'"]),
        ("[test\n", ["not valid TOML"]),
    ],
)
def test_faults_of_the_configuration_are_named(text: str, words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        project({".agent-coder.toml": text})
    assert all(word in str(caught.value) for word in words)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("tests/test_a.py", True),
        ("a_test.go", True),
        ("src/button.test.tsx", True),
        ("test/proto.js", True),
        ("src/test/java/x/ATest.java", True),
        ("tests/nämé_test ☃.py", False),
        ("tests/samples/a.diff", False),
        ("tests/conftest.py", False),
        ("node_modules/x/test/a.js", False),
        ("src/latest.py", False),
        ("contest.js", False),
    ],
)
def test_test_files_are_known_by_their_names(path: str, expected: bool) -> None:
    assert is_test_path(path) is expected


def test_files_to_read_begin_with_what_decides_and_leave_vendored_code_out() -> None:
    paths = ["node_modules/a/package.json", "src/a.py", "tests/test_a.py", "pyproject.toml", "AGENTS.md", "requirements/dev.txt"]
    assert files_to_read(paths) == ("AGENTS.md", "pyproject.toml", "requirements/dev.txt", "tests/test_a.py")


def _lay_out(root: Path, files: dict[str, str]) -> None:
    for path, text in files.items():
        target = root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)


def test_detected_unittest_commands_run_for_real_on_the_sources_of_the_tree(tmp_path: Path) -> None:
    root, home = tmp_path / "work space", tmp_path / "home"
    home.mkdir()
    files = {
        "pyproject.toml": '[project]\nname = "calc"\nversion = "1"\n',
        "src/calc/__init__.py": "ONE = 1\n",
        "tests/test_calc.py": UNITTEST.replace("import unittest", "import unittest\nfrom calc import ONE").replace("(1, 1)", "(ONE, 1)"),
    }
    _lay_out(root, files)
    found = project(files)
    environment = {"HOME": str(home), "PATH": os.environ["PATH"]}
    for command in found.setup_commands:
        subprocess.run(["sh", "-c", command.script], cwd=root, env=environment, check=True, capture_output=True)
    done = subprocess.run(
        ["sh", "-c", found.test_commands[0].script], cwd=root, env=environment, check=False, capture_output=True, text=True
    )
    report = parse_report(found.test_commands[0].run, done.stdout + done.stderr)
    assert (done.returncode, report.passed) == (0, {"test_calc.T.test_ok"})
    assert sorted(path.name for path in root.iterdir()) == ["pyproject.toml", "src", "tests"]
