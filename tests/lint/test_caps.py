"""The house rules find what they are there for, and name the place."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import caps

BODY = "    x = 1\n"

REGISTRY = "gro.detsohnohtyp.selif"[::-1]  # backwards, as no file may name it


def said(path: str, text: str, root: Path) -> list[str]:
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
    return [str(f) for f in caps.faults(root, [path])]


@pytest.mark.parametrize(
    ("path", "text", "fault"),
    [
        ("libs/a.py", "x = 1\n" * 401, "libs/a.py:1: 401 lines, the cap is 400"),
        ("tests/unit/test_a.py", "x = 1\n" * 601, "tests/unit/test_a.py:1: 601 lines, the cap is 600"),
        ("libs/a.py", "\n\ndef long():\n" + BODY * 40, "libs/a.py:3: function long has 41 lines, the cap is 40"),
        ("libs/a.py", "class A:\n    def long(self):\n" + "        x = 1\n" * 40, "libs/a.py:2: function long has 41 lines, the cap is 40"),
        (
            "services/s/handlers.py",
            "async def plan():\n" + BODY * 25,
            "services/s/handlers.py:1: handler plan has 26 lines, the cap is 25",
        ),
        (
            "services/s/handlers/plan.py",
            "async def plan():\n" + BODY * 25,
            "services/s/handlers/plan.py:1: handler plan has 26 lines, the cap is 25",
        ),
        (
            "services/s/__main__.py",
            "def build():\n    @service.answer(Q)\n    async def ask():\n" + "        x = 1\n" * 25,
            "services/s/__main__.py:3: handler ask has 26 lines, the cap is 25",
        ),
        ("libs/a.py", "x = 1  # noqa\n", "libs/a.py:1: name rule and reason: `# noqa: RULE - reason`"),
        ("libs/a.py", "x = 1  # noqa: E501\n", "libs/a.py:1: name rule and reason: `# noqa: RULE - reason`"),
        ("libs/a.py", "x = 1  # type: ignore\n", "libs/a.py:1: name rule and reason: `# type: ignore[rule]  # reason`"),
        ("libs/a.py", "x = 1  # type: ignore[misc]\n", "libs/a.py:1: name rule and reason: `# type: ignore[rule]  # reason`"),
        ("libs/a.py", "from . import b\n", "libs/a.py:1: relative import: write the package out"),
        ("services/s/a.py", "import nats.errors\n", "services/s/a.py:1: only libs/bus imports nats"),
        ("services/editor/a.py", "def f():\n    import litellm\n", "services/editor/a.py:2: only services/inference imports litellm"),
        (
            "libs/contracts/a.py",
            "import httpx\n",
            "libs/contracts/a.py:1: libs/contracts imports the standard library and libs.contracts, pydantic only, not httpx",
        ),
        (
            "docs/a.md",
            f"see\nhttps://{REGISTRY}/x\n",
            f"docs/a.md:2: the name of a package registry's host: {REGISTRY}",
        ),
        ("docs/a.md", "look in /ro" + "ot/secret\n", "docs/a.md:1: a path of one machine: /root/"),
    ],
)
def test_an_offence_is_named_with_its_place(tmp_path, path, text, fault):
    assert said(path, text, tmp_path) == [fault]


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("libs/a.py", "def f():\n" + '    """' + "word\n" * 50 + '    """\n' + BODY * 30),
        ("services/s/handlers.py", "async def _helper():\n" + BODY * 30),
        ("services/s/handlers.py", "def pure():\n" + BODY * 30),
        ("libs/a.py", "x = 1  # noqa: E501, B008 - a table\n"),
        ("libs/a.py", "x = 1  # type: ignore[misc, arg-type]  # the stub is wrong\n"),
        ("libs/a.py", 'x = "# noqa"\n'),
        ("libs/contracts/a.py", "import json\nfrom pydantic import Field\nfrom libs.contracts.run import Plan\n"),
        ("libs/bus/a.py", "import nats\n"),
        ("docs/a.md", "https://example.org/work/1, ./work/x, /workspace/a and ~/work/x\n"),
    ],
)
def test_what_is_in_order_is_passed(tmp_path, path, text):
    assert said(path, text, tmp_path) == []


def test_a_service_over_its_cap_is_named_and_a_raised_cap_needs_its_page(tmp_path, monkeypatch):
    files = [f"services/big/f{i}.py" for i in range(4)]
    for file in files:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text("x = 1\n" * 400)
    assert "1600 lines of Python, the cap is 1500" in str(caps.faults(tmp_path, files)[0])
    monkeypatch.setitem(caps.RAISED, "big", (2000, "docs/decisions/big.md"))
    assert "a page that is not there" in str(caps.faults(tmp_path, files)[0])
    (tmp_path / "docs/decisions").mkdir(parents=True)
    (tmp_path / "docs/decisions/big.md").write_text("why")
    assert caps.faults(tmp_path, files) == []


def test_every_service_is_held_apart_from_the_others():
    config = tomllib.loads((caps.ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    apart = next(c for c in config if c["type"] == "independence")["modules"]
    services = {p.parent.name for p in caps.ROOT.glob("services/*/__init__.py")}
    assert {f"services.{s}" for s in services - {"cli"}} == set(apart)


def test_every_library_is_kept_out_of_the_contracts():
    config = tomllib.loads((caps.ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    kept_out = next(c for c in config if c["name"] == "the contracts know no other library")["forbidden_modules"]
    libraries = {p.stem for p in (caps.ROOT / "libs").iterdir() if p.is_dir() or p.suffix == ".py"} - {
        "__init__",
        "__pycache__",
        "contracts",
    }
    assert {f"libs.{name}" for name in libraries} == set(kept_out)


@pytest.mark.parametrize(
    ("path", "line", "contract"),
    [
        ("libs/settings.py", "import services.planner", "libraries know no service"),
        ("services/planner/__init__.py", "import services.editor", "services do not know each other"),
        ("services/planner/__init__.py", "import services.cli", "nobody knows the command line"),
        ("libs/contracts/run.py", "import libs.bus", "the contracts know no other library"),
        ("services/editor/__init__.py", "import libs.testkit", "services are built without the tests' tools"),
    ],
)
def test_an_import_in_the_wrong_direction_breaks_the_dependency_rule(tmp_path, path, line, contract):
    for source in [*caps.ROOT.glob("libs/**/*.py"), *caps.ROOT.glob("services/**/*.py"), caps.ROOT / "pyproject.toml"]:
        target = tmp_path / source.relative_to(caps.ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(source.read_text())
    with (tmp_path / path).open("a") as file:
        file.write(f"\n{line}\n")
    linter = Path(sys.executable).with_name("lint-imports")
    result = subprocess.run([linter, "--no-cache"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.returncode == 1, result.stdout
    assert f"{contract} BROKEN" in result.stdout
