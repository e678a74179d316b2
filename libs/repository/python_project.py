"""Set-up and test commands of a Python project.

Invariant: nothing is written into the tree. The environment is `$HOME/venv`; a package is installed from a copy, for its dependencies and
entry points, and a path file makes every interpreter of the environment prefer the sources of the tree over that copy.
"""

import re
import shlex
import tomllib
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from libs.repository.languages import is_test_path, language_of
from libs.repository.project import Command, Tree

MANIFESTS = ("pyproject.toml", "setup.py", "setup.cfg", "tox.ini", "pytest.ini", "conftest.py", "tests/conftest.py", "test/conftest.py")
REPORT_FILE = "$HOME/report.xml"

_PYTHON = '"$HOME/venv/bin/python"'
_CREATE_BARE = 'python3 -m venv --without-pip "$HOME/venv"'
_CREATE = 'python3 -m venv "$HOME/venv" 2>/dev/null || python3 -m venv --without-pip --clear "$HOME/venv"'
_PIP = f"if {_PYTHON} -m pip --version >/dev/null 2>&1; then set -- {_PYTHON} -m pip; else set -- python3 -m pip --python {_PYTHON}; fi\n"
_INSTALL = '"$@" install -q --disable-pip-version-check --no-input --retries 2'
_REQUIREMENTS = re.compile(
    r"^(?:requirements/)?(?:(?:test|dev|tests)[-_])?requirements?(?:[-_](?:dev|test|tests|testing))?\.txt$|^requirements/(?:base|dev|test|tests|testing)\.txt$"
)
_TEST_EXTRAS = ("test", "tests", "testing", "dev")
_PYTEST_USE = re.compile(r"^[ \t]*(?:import|from)[ \t]+pytest\b|^(?:async )?def test_\w*\(", re.MULTILINE)
_UNITTEST_USE = re.compile(r"\bTestCase\b|^[ \t]*(?:import|from)[ \t]+unittest\b", re.MULTILINE)
_OWN_METADATA = re.compile(r"importlib[._]metadata|pkg_resources")
_COMPILED = re.compile(r"ext_modules|cffi_modules|rust_extensions|maturin|scikit_build_core|mesonpy|Extension\(|cythonize")


@dataclass(frozen=True)
class _Facts:
    texts: dict[str, str]
    pyproject: dict[str, Any]
    requirements: tuple[str, ...]
    tests: tuple[str, ...]
    runner: str | None


def detect_python(tree: Tree, override_text: str = "") -> tuple[list[Command], list[Command]]:
    """Return the set-up and test commands; both are empty when the tree holds no Python project.

    override_text: test commands that somebody named; pytest is installed when they mention it.
    """
    facts = _facts(tree)
    if not facts.texts.keys() - {"conftest.py"} and not facts.requirements and not facts.tests and "python" not in override_text:
        return [], []
    needs_pytest = facts.runner == "pytest" or "pytest" in override_text or "tox" in override_text
    return _setup(facts, tree, needs_pytest), _test(facts, tree)


def _facts(tree: Tree) -> _Facts:
    paths = tree.paths
    texts = {path: text for path in MANIFESTS if path in set(paths) and (text := tree.read(path)) is not None}
    tests = tuple(path for path in paths if language_of(path) == "Python" and is_test_path(path))
    try:
        pyproject = tomllib.loads(texts.get("pyproject.toml", ""))
    except (tomllib.TOMLDecodeError, RecursionError):
        pyproject = {}
    requirements = tuple(sorted(path for path in paths if _REQUIREMENTS.match(path)))
    return _Facts(texts, pyproject, requirements, tests, _runner(tree, texts, requirements, tests))


def _runner(tree: Tree, texts: dict[str, str], requirements: tuple[str, ...], tests: tuple[str, ...]) -> str | None:
    """Choose pytest when the project names it or its tests cannot run without it; unittest needs nothing installed."""
    if not tests:
        return None
    named = [*texts.values(), *(tree.read(path) or "" for path in requirements)]
    if any("pytest" in text for text in named) or any(path.endswith("conftest.py") for path in texts):
        return "pytest"
    sources = [text for path in tests[:40] if (text := tree.read(path))]
    if sources and all(_UNITTEST_USE.search(text) and not _PYTEST_USE.search(text) for text in sources):
        return "unittest"
    return "pytest"


def _setup(facts: _Facts, tree: Tree, needs_pytest: bool) -> list[Command]:
    commands: list[Command] = []
    arguments = [f"-r {shlex.quote(path)}" for path in facts.requirements] + [shlex.quote(name) for name in _listed_dependencies(facts)]
    if arguments:
        commands.append(Command(run=f"{_PIP}{_INSTALL} {' '.join(arguments)}"))
    if _needs_install(facts, tree):
        commands.append(Command(run=_install_package(facts), optional=True))
    if needs_pytest:
        commands.append(Command(run=f"{_PIP}{_PYTHON} -m pytest --version >/dev/null 2>&1 || {_INSTALL} pytest"))
    if facts.texts.keys() & {"pyproject.toml", "setup.py", "setup.cfg"}:
        path = Command(run=_prefer_tree("src" if _has_src_layout(tree) else ""), optional=True)
        return [Command(run=_CREATE if commands else _CREATE_BARE), *commands, path]
    return [Command(run=_CREATE if commands else _CREATE_BARE), *commands]


def _table(value: Any, *keys: str) -> dict[str, Any]:
    """The table at `keys` of a parsed file, empty where the file says something else there."""
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _listed_dependencies(facts: _Facts) -> list[str]:
    """Names that pip cannot be asked to install as an extra: dependency groups (PEP 735) and Poetry's groups."""
    groups = _table(facts.pyproject, "dependency-groups")
    listed = [item for name in _TEST_EXTRAS for item in _list(groups.get(name)) if isinstance(item, str)]
    poetry = _table(facts.pyproject, "tool", "poetry")
    for name in _TEST_EXTRAS:
        listed.extend(_table(poetry, "group", name, "dependencies"))
    listed.extend(_table(poetry, "dev-dependencies"))
    return list(dict.fromkeys(name for name in listed if name != "python" and not name.startswith("-")))


def _needs_install(facts: _Facts, tree: Tree) -> bool:
    """An install costs the network; it is left out when it would bring neither a dependency nor metadata that the code reads."""
    project = _table(facts.pyproject, "project")
    static = any(project.get(key) for key in ("dependencies", "optional-dependencies", "scripts", "entry-points"))
    dynamic = {"dependencies", "optional-dependencies"} & {item for item in _list(project.get("dynamic")) if isinstance(item, str)}
    other_backend = _table(facts.pyproject, "tool").keys() & {"poetry", "flit", "pdm"}
    setup = facts.texts.get("setup.py", "") + facts.texts.get("setup.cfg", "")
    if static or dynamic or other_backend or re.search(r"install_requires|tests_require|extras_require|entry_points", setup):
        return True
    if _COMPILED.search(setup + facts.texts.get("pyproject.toml", "")):
        return True
    inits = [path for path in tree.paths if path.endswith("/__init__.py") and path.count("/") <= 2]
    return any(_OWN_METADATA.search(tree.read(path) or "") for path in inits)


def _install_package(facts: _Facts) -> str:
    extras = _table(facts.pyproject, "project", "optional-dependencies")
    wanted = ",".join(name for name in _TEST_EXTRAS if name in extras)
    suffix = f"[{wanted}]" if wanted else ""
    if _COMPILED.search("".join(facts.texts.values())):
        return f'{_PIP}{_INSTALL} -e ".{suffix}"'
    return f'{_PIP}rm -rf "$HOME/package" && cp -R . "$HOME/package" && {_INSTALL} "$HOME/package{suffix}"'


def _has_src_layout(tree: Tree) -> bool:
    paths = set(tree.paths)
    return "src/__init__.py" not in paths and any(path.startswith("src/") and path.endswith(".py") for path in paths)


def _prefer_tree(folder: str) -> str:
    place = f'"$PWD/{folder}"' if folder else '"$PWD"'
    code = (
        "import pathlib, sys, sysconfig; place = sys.argv[1]; "
        "name = 'workspace' + place.replace('/', '_') + '.pth'; "
        "pathlib.Path(sysconfig.get_path('purelib'), name).write_text('import sys; sys.path.insert(0, %r)\\n' % place)"
    )
    return f"{_PYTHON} -c {shlex.quote(code)} {place}"


def _test(facts: _Facts, tree: Tree) -> list[Command]:
    if facts.runner == "pytest":
        run = (
            f'rm -f "{REPORT_FILE}"; {_PYTHON} -m pytest -q -rfEsxXp -p no:cacheprovider -o junit_family=xunit1 --junitxml="{REPORT_FILE}"'
        )
        return [Command(run=run, report_file=REPORT_FILE)]
    if facts.runner != "unittest":
        return []
    paths = set(tree.paths)
    commands = []
    for folder in _unittest_roots(facts.tests):
        if folder == ".":
            commands.append(Command(run=f"{_PYTHON} -m unittest discover -v"))
            continue
        top = " -t ." if f"{folder}/__init__.py" in paths and "/" not in folder else ""
        commands.append(Command(run=f"{_PYTHON} -m unittest discover -v -s {shlex.quote(folder)}{top} -p '{_pattern(facts.tests)}'"))
    return commands


def _unittest_roots(tests: tuple[str, ...]) -> list[str]:
    """Return the topmost folders that hold tests; discovery walks down from each."""
    folders = sorted({str(PurePosixPath(path).parent) for path in tests}, key=lambda folder: (folder.count("/"), folder))
    roots: list[str] = []
    for folder in folders:
        if folder == ".":
            return (
                ["."] if all("/" not in path for path in tests) else [".", *(name for name in folders if name != "." and "/" not in name)]
            )
        if not any(folder == root or folder.startswith(f"{root}/") for root in roots):
            roots.append(folder)
    return roots


def _pattern(tests: tuple[str, ...]) -> str:
    """Return the file pattern for discovery: unittest's own, unless the tests are named the other way round."""
    names = [PurePosixPath(path).name for path in tests]
    return "test*.py" if any(name.startswith("test") for name in names) else "*test*.py"
