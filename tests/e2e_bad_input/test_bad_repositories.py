"""Repositories that are missing, odd or hostile: each run has its clear end."""

from pathlib import Path

import pytest

from libs.testkit.product import ENDED
from tests.e2e_bad_input.hostile import ADDER, DONE, FIX, WAITING, Case, Link, git, repository

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(180)]
SECRET = "/etc/passwd"


def _nothing(place: Path) -> str:
    return str(place)


def _plain_folder(place: Path) -> str:
    place.mkdir(parents=True)
    (place / "adder.py").write_text("x = 1\n")
    return str(place)


def _file(place: Path) -> str:
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text("not a folder")
    return str(place)


def _empty(place: Path) -> str:
    place.mkdir(parents=True)
    git(place, "init", "-q")
    return str(place)


def _bare(place: Path) -> str:
    source = repository(place.with_name(place.name + "-work"), ADDER)
    git(source, "clone", "-q", "--bare", ".", str(place))
    return str(place)


def _detached(place: Path) -> str:
    repository(place, ADDER)
    git(place, "checkout", "-q", "--detach")
    (place / "later.txt").write_text("later\n")
    git(place, "add", "-A")
    git(place, "commit", "-q", "-m", "Later")
    return str(place)


def _trunk(place: Path) -> str:
    return str(repository(place, ADDER, branch="trunk"))


def _submodule(place: Path) -> str:
    inner = repository(place.with_name(place.name + "-inner"), {"inner.txt": "inner\n"})
    repository(place, ADDER)
    git(place, "submodule", "--quiet", "add", str(inner), "vendor/inner")
    git(place, "commit", "-q", "-m", "Add a submodule")
    return str(place)


def _subfolder(place: Path) -> str:
    repository(place, {"deep/adder.py": "x = 1\n"})
    return str(place / "deep")


def _shallow(place: Path) -> str:
    source = _detached(place.with_name(place.name + "-work"))
    git(Path(source), "clone", "-q", "--depth", "1", f"file://{source}", str(place))
    return str(place)


def _corrupt(place: Path) -> str:
    repository(place, ADDER)
    for thing in (place / ".git/objects").rglob("*"):
        if thing.is_file():
            thing.chmod(0o600)
            thing.write_bytes(b"rubbish")
    return str(place)


def _hooks(place: Path) -> str:
    repository(place, ADDER)
    for name in ("post-checkout", "pre-commit", "reference-transaction"):
        hook = place / ".git/hooks" / name
        hook.write_text(f"#!/bin/sh\ntouch {place}-hook-ran\n")
        hook.chmod(0o755)
    git(place, "config", "core.fsmonitor", f"touch {place}-hook-ran")
    git(place, "config", "uploadpack.packObjectsHook", f"touch {place}-hook-ran")
    (place.with_name(place.name + "-hook-ran")).unlink(missing_ok=True)
    return str(place)


def _odd_names(place: Path) -> str:
    repository(
        place, {**ADDER, "nämé ☃.py": "x = 1\n", "中文.py": "y = 1\n", '"quote"\ttab.txt': "q\n", "-rf": "dash\n", "new\nline.txt": "n\n"}
    )
    raw = bytes(place) + b"/latin-\xe9.txt"
    Path(raw.decode("utf-8", "surrogateescape")).write_bytes(b"caf\xe9\n")
    git(place, "add", "-A")
    git(place, "commit", "-q", "-m", "Add a name that is not UTF-8")
    return str(place)


LINKS = {
    **ADDER,
    "passwd": Link(SECRET),
    "etc": Link("/etc"),
    "up": Link("../../../../../../../etc/passwd"),
    "loop": Link("loop"),
    "inside": Link("adder.py"),
}
THROUGH_LINKS = [
    ("read", {"path": "passwd"}),
    ("read", {"path": "etc/passwd"}),
    ("read", {"path": "up"}),
    ("read", {"path": "loop"}),
    ("read", {"path": "inside"}),
    ("ls", {"path": "etc"}),
    ("glob", {"pattern": "etc/*"}),
    ("grep", {"pattern": "root:", "path": "etc"}),
    ("grep", {"pattern": "root:"}),
    ("write", {"path": "etc/agent-coder-was-here", "content": "x"}),
    ("write", {"path": "passwd", "content": "x"}),
    ("edit", {"path": "etc/passwd", "old": "root", "new": "toor"}),
    ("patch", {"diff": "--- a/etc/hosts\n+++ b/etc/hosts\n@@ -1 +1 @@\n-127.0.0.1 localhost\n+127.0.0.1 evil\n"}),
    ("patch", {"diff": "--- a/etc/new\n+++ b/etc/new\n@@ -0,0 +1 @@\n+evil\n"}),
]

CASES = {
    "missing-path": Case(prepare=_nothing),
    "plain-folder": Case(prepare=_plain_folder),
    "a-file": Case(prepare=_file),
    "empty-repository": Case(prepare=_empty),
    "bare": Case(prepare=_bare),
    "trunk": Case(prepare=_trunk),
    "detached": Case(prepare=_detached),
    "submodule": Case(prepare=_submodule),
    "subfolder": Case(prepare=_subfolder),
    "shallow": Case(prepare=_shallow),
    "corrupt": Case(prepare=_corrupt),
    "hooks": Case(prepare=_hooks),
    "unknown-base": Case(request={"base": "no-such-branch"}),
    "no-artifact": Case(prepare=lambda _: "no-such/artifact"),
    "no-host": Case(prepare=lambda _: "https://does-not-exist.invalid/team/app.git"),
    "no-server": Case(prepare=lambda _: "http://127.0.0.1:9/team/app.git"),
    "no-tests-ask": Case(files={"adder.py": ADDER["adder.py"]}, turns=[FIX[:1], DONE], policy={"no_tests": "ask"}),
    "no-tests-fail": Case(files={"adder.py": ADDER["adder.py"]}, turns=[FIX[:1], DONE], policy={"no_tests": "fail"}),
    "no-test-passes": Case(
        files={**ADDER, "test_adder.py": ADDER["test_adder.py"].replace("0), 0", "1), 1")},
        turns=[[("edit", {"path": "adder.py", "old": "a - b", "new": "a * b"})], DONE],
    ),
    "odd-names": Case(
        prepare=_odd_names,
        turns=[
            [
                *FIX,
                ("edit", {"path": "nämé ☃.py", "old": "x = 1", "new": "x = '☃'"}),
                ("write", {"path": "中文.py", "content": "y = '中文'\n"}),
            ],
            [("write", {"path": "新/файл ☃.txt", "content": "new\n"}), ("edit", {"path": "-rf", "old": "dash", "new": "DASH"})],
            [("edit", {"path": "new\nline.txt", "old": "n", "new": "m"}), ("ls", {"path": "."}), ("grep", {"pattern": "caf"})],
            DONE,
        ],
    ),
    "links": Case(files=LINKS, turns=[THROUGH_LINKS, FIX, DONE]),
    "broken-toml": Case(files={**ADDER, ".agent-coder.toml": "[test\ncommands = 3"}),
    "odd-toml": Case(files={**ADDER, ".agent-coder.toml": b"\xff\xfe\x00[test]"}),
    "binary-readme": Case(files={**ADDER, "README.md": bytes(range(256)) * 40, "AGENTS.md": b"\xff\xfe# test\n\x00"}),
    "link-readme": Case(files={**ADDER, "README.md": Link(SECRET), "AGENTS.md": Link("/etc"), ".agent-coder.toml": Link("/etc/shadow")}),
}


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("missing-path", ("no directory", "check the path")),
        ("plain-folder", ("git init",)),
        ("a-file", ("no directory",)),
        ("empty-repository", ("empty",)),
        ("subfolder", ("top directory",)),
        ("shallow", ("--unshallow",)),
        ("corrupt", ()),
        ("unknown-base", ("no-such-branch", "base")),
        ("no-artifact", ("no-such/artifact",)),
        ("no-host", ("check the address",)),
        ("no-server", ("check the address",)),
        ("no-tests-fail", ("no tests found",)),
        ("broken-toml", (".agent-coder.toml",)),
        ("odd-toml", (".agent-coder.toml",)),
    ],
)
async def test_a_repository_that_cannot_be_used_ends_the_run_with_a_reason(served, name, words):
    shown = await served.failed(name, *words)
    assert "Traceback" not in shown["why"]
    assert "Error:" not in shown["why"]


@pytest.mark.parametrize("name", ["bare", "trunk", "detached", "submodule", "hooks", "binary-readme", "link-readme"])
async def test_an_odd_repository_is_solved(served, name):
    shown = await served.finished(name)
    assert served.changed(shown) == ["adder.py", "test_adder.py"]
    assert served.blob(shown, "adder.py") == b"def add(a, b):\n    return a + b\n"
    assert not list((served.place / "repos").glob("*-hook-ran"))


async def test_a_detached_head_is_the_base_that_was_checked_out(served):
    shown = await served.finished("detached")
    assert served.blob(shown, "later.txt") == b"later\n"


async def test_a_submodule_stays_as_it_is(served):
    shown = await served.finished("submodule")
    tree = git(served.artifact(shown), "ls-tree", "-r", shown["commit"]["sha"])
    assert "160000 commit" in tree


async def test_without_tests_a_person_is_asked_and_yes_commits(served):
    shown = await served.ended("no-tests-ask", statuses=WAITING | ENDED)
    assert shown["status"] == "waiting", shown["why"]
    assert "no tests" in shown["pending"]["question"].lower()
    answer = await served.running.client.post(f"/api/runs/{served.runs['no-tests-ask']}/approve", json={})
    assert answer.status_code == 200, answer.text
    shown = await served.finished("no-tests-ask")
    assert "no tests found" in " ".join(shown["verdict"]["reasons"])


async def test_where_no_test_passes_the_question_says_so(served):
    shown = await served.ended("no-test-passes", statuses=WAITING | ENDED)
    assert shown["status"] == "waiting", shown["why"]
    assert "no test passes, before the change or after it" in shown["pending"]["question"]


async def test_names_of_every_kind_are_edited_and_committed(served):
    shown = await served.finished("odd-names")
    assert served.blob(shown, "nämé ☃.py").decode() == "x = '☃'\n"
    assert served.blob(shown, "中文.py").decode() == "y = '中文'\n"
    assert served.blob(shown, "新/файл ☃.txt") == b"new\n"
    assert served.blob(shown, "-rf") == b"DASH\n"
    assert served.blob(shown, "new\nline.txt") == b"m\n"
    names = git(served.artifact(shown), "ls-tree", "-r", "--name-only", "-z", shown["commit"]["sha"])
    assert "latin-\udce9.txt" in names
    diff = await served.running.client.get(f"/api/runs/{served.runs['odd-names']}/diff", headers={"Accept": "application/json"})
    assert {"nämé ☃.py", "中文.py"} <= {f["path"] for f in diff.json()["changed_files"]}


async def test_nothing_outside_is_read_or_written_through_links(served):
    before = Path("/etc/passwd").read_text()
    shown = await served.finished("links")
    for tool, ok, text in (await served.results("links"))[: len(THROUGH_LINKS)]:
        assert "root:x:0:0" not in text, (tool, text)
        assert "root:" not in text or not ok or tool == "grep", (tool, text)
    assert not Path("/etc/agent-coder-was-here").exists()
    assert not Path("/etc/new").exists()
    assert Path("/etc/passwd").read_text() == before
    tree = git(served.artifact(shown), "ls-tree", shown["commit"]["sha"])
    assert "120000 blob" in next(line for line in tree.splitlines() if line.endswith("\tpasswd"))
