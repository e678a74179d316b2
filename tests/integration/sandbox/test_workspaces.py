"""Workspaces with real git and real sandboxes: laid out, changed, saved, restored."""

import asyncio
import os
import subprocess
from pathlib import Path

import pytest

from libs.contracts.sandbox import FileWrite
from services.sandbox.backends import Limits
from services.sandbox.errors import BadPath, BadPattern, FilesTooLarge, GitFailed, StaleLease, WorkspaceMissing
from services.sandbox.snapshots import Author
from services.sandbox.workspaces import Workspaces

ME = Author("agent-coder", "agent-coder@localhost")


class Origin:
    """A repository on the host that workspaces are laid out from."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self.git("init", "-q", "-b", "main")

    def git(self, *arguments: str) -> str:
        identity = ("-c", "user.name=Origin", "-c", "user.email=origin@localhost", "-c", "protocol.file.allow=always")
        return subprocess.run(["git", *identity, *arguments], cwd=self.folder, check=True, capture_output=True, text=True).stdout.strip()

    def commit(self, **files: str) -> str:
        for name, text in files.items():
            path = self.folder / name.replace("__", "/").replace("_dot_", ".")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        self.git("add", "-A")
        self.git("commit", "-q", "--allow-empty", "-m", "change")
        return self.git("rev-parse", "HEAD")

    async def bundle(self, path: Path) -> None:
        self.git("bundle", "create", "-q", str(path), "HEAD", "--all")

    def show(self, commit: str) -> dict[str, str]:
        lines = self.git("ls-tree", "-r", commit).splitlines()
        return {line.split("\t")[1]: line.split(" ")[0] for line in lines}


@pytest.fixture
def origin(tmp_path: Path) -> Origin:
    return Origin(tmp_path / "origin")


@pytest.fixture
def workspaces(tmp_path: Path, backend) -> Workspaces:
    return Workspaces(tmp_path / "workspaces", backend, Limits(), max_file_bytes=1_000_000)


@pytest.fixture
async def workspace(workspaces, origin):
    base = origin.commit(a_dot_py="a = 1\n", src__b_dot_py="b = 1\n", _dot_gitignore="*.log\n")
    made = workspaces.open("ws-1")
    await made.lay_out("origin", base, origin.bundle)
    return made


async def taken_home(workspace, origin, commit):
    """Bring a snapshot into the origin, as the artifact store does."""
    bundle = await workspace.pack(commit, workspace.identity.commit)
    origin.git("fetch", "-q", str(bundle), "+refs/workspace/snapshot:refs/heads/incoming")
    bundle.unlink()
    assert origin.git("rev-parse", "incoming") == commit


async def run(workspace, command, name=""):
    return await workspace.execute(f"op-{name or abs(hash(command))}", command, 60, 10_000)


async def test_commit_is_laid_out_and_visible_in_the_sandbox(workspace):
    result = await run(
        workspace, "cat a.py src/b.py; git status --short; git log --format=%s; git describe --always >/dev/null && echo described"
    )
    assert (result.exit_code, result.stdout) == (0, "a = 1\nb = 1\nchange\ndescribed\n")


async def test_snapshot_holds_changes_and_new_files_and_nothing_that_is_ignored(workspace, origin):
    await workspace.write("w", [FileWrite(path="src/b.py", content=b"b = 2\n"), FileWrite(path="nämé ☃.py", content=b"new\n")])
    await run(
        workspace,
        "rm a.py; mkdir -p __pycache__ .venv node_modules/x; touch debug.log __pycache__/a.pyc .venv/y node_modules/x/z"
        "; printf x > run.sh; chmod +x run.sh; ln -s src/b.py link",
    )
    saved = await workspace.snapshot("fix", ME)
    await taken_home(workspace, origin, saved.commit)
    assert origin.git("-c", "core.quotePath=false", "ls-tree", "-r", "--name-only", saved.commit).splitlines() == [
        ".gitignore",
        "link",
        "nämé ☃.py",
        "run.sh",
        "src/b.py",
    ]
    modes = origin.show(saved.commit)
    assert (modes["run.sh"], modes["link"], modes["src/b.py"]) == ("100755", "120000", "100644")
    assert origin.git("rev-parse", f"{saved.commit}^") == workspace.identity.commit


async def test_same_tree_gives_the_same_commit(workspace):
    await run(workspace, "echo 2 > a.py")
    first = await workspace.snapshot("fix", ME)
    assert await workspace.snapshot("fix", ME) == first


async def test_changes_and_diff_show_renames_modes_and_counts(workspace):
    base = workspace.identity.commit
    await run(
        workspace,
        "printf 'a = 1\\nmore\\n' > a.py; mv src/b.py src/c.py; printf '\\0\\1' > bin; chmod +x .gitignore; git status --short | head -1",
    )
    changes = {change.path: change for change in await workspace.changes(base)}
    assert (changes["a.py"].status, changes["a.py"].added_lines, changes["a.py"].deleted_lines) == ("modified", 1, 0)
    assert (changes["src/c.py"].status, changes["src/c.py"].renamed_from) == ("renamed", "src/b.py")
    assert (changes["bin"].status, changes["bin"].added_lines) == ("added", None)
    assert changes[".gitignore"].status == "mode_changed"
    assert b"+more\n" in await workspace.diff(base)


async def test_folder_that_became_a_link_and_file_that_became_a_folder_are_saved(workspace, origin):
    await run(workspace, "mv src other; ln -s other src; rm a.py; mkdir a.py; echo x > a.py/x")
    saved = await workspace.snapshot("swap", ME)
    await taken_home(workspace, origin, saved.commit)
    assert origin.show(saved.commit) == {".gitignore": "100644", "a.py/x": "100644", "other/b.py": "100644", "src": "120000"}


async def test_files_over_the_limit_are_refused_by_name(workspace):
    await run(workspace, "head -c 2000000 /dev/zero > big.bin")
    with pytest.raises(FilesTooLarge, match=r"big\.bin \(2000000 bytes\)"):
        await workspace.snapshot("x", ME)


async def test_submodule_stays_as_it_is(workspaces, origin, tmp_path):
    other = Origin(tmp_path / "other")
    linked = other.commit(x="x")
    origin.git("submodule", "add", "-q", str(other.folder), "lib")
    base = origin.commit(a_dot_py="1")
    workspace = workspaces.open("ws")
    await workspace.lay_out("origin", base, origin.bundle)
    await run(workspace, "echo 2 > a.py; rm -rf lib; mkdir lib; echo hostile > lib/file")
    saved = await workspace.snapshot("x", ME)
    await taken_home(workspace, origin, saved.commit)
    assert origin.git("ls-tree", saved.commit, "lib").split() == ["160000", "commit", linked, "lib"]


async def test_nothing_of_a_hostile_tree_is_run_by_the_hosts_git(workspace, tmp_path):
    """Hooks, filters, file system monitors and nested repositories with a configuration of their own."""
    mark = tmp_path / "pwned"
    hostile = (
        f"mkdir -p nested && cd nested && git init -q . && git config core.fsmonitor 'touch {mark}' "
        f"&& git config filter.x.clean 'touch {mark}'"
        f" && printf '#!/bin/sh\\ntouch {mark}\\n' > .git/hooks/post-checkout"
        " && chmod +x .git/hooks/post-checkout && echo x > file && git add file; cd .."
        f"; echo '* filter=x diff=x' > .gitattributes; printf '[core]\\n\\tfsmonitor = touch {mark}\\n' > .gitconfig; echo 3 > a.py"
    )
    assert (await run(workspace, hostile)).exit_code == 0
    saved = await workspace.snapshot("x", ME)
    await workspace.changes(workspace.identity.commit, saved.commit)
    await workspace.diff(workspace.identity.commit)
    await workspace.lay_out("origin", saved.commit, no_bundle)
    assert not mark.exists()
    assert not (workspace.folder / "tree" / "nested").exists()


async def no_bundle(_path: Path) -> None:
    raise AssertionError("the commit is here already")


async def test_reset_brings_back_the_commit_whatever_was_done_to_the_tree(workspace, origin):
    await run(
        workspace,
        "rm -rf src; ln -s /etc src; rm a.py; mkdir -p a.py/deep; echo x > new; mkdir -m 0 closed"
        "; mkdir .venv; touch .venv/kept; chmod 0 .gitignore",
    )
    await workspace.lay_out("origin", workspace.identity.commit, no_bundle)
    tree = workspace.folder / "tree"
    assert (tree / "a.py").read_text() == "a = 1\n"
    assert (tree / "src" / "b.py").read_text() == "b = 1\n"
    assert not (tree / "new").exists()
    assert (tree / ".venv" / "kept").exists()
    assert await workspace.changes(workspace.identity.commit) == ()


async def test_layout_that_breaks_off_leaves_no_half_workspace(workspaces, workspace, origin):
    new = origin.commit(a_dot_py="a = 9\n")

    async def breaks(_path: Path) -> None:
        raise ConnectionResetError("the store went away")

    with pytest.raises(ConnectionResetError):
        await workspace.lay_out("origin", new, breaks)
    with pytest.raises(WorkspaceMissing):
        workspaces.get("ws-1")
    await workspace.lay_out("origin", new, origin.bundle)
    assert workspaces.get("ws-1").identity.commit == new


async def test_lost_workspace_is_laid_anew_from_a_snapshot(workspaces, workspace, origin):
    await run(workspace, "echo 5 > a.py")
    saved = await workspace.snapshot("x", ME)
    await taken_home(workspace, origin, saved.commit)
    generation = workspace.identity.generation
    await workspaces.remove("ws-1")
    with pytest.raises(WorkspaceMissing):
        workspaces.get("ws-1")
    again = workspaces.open("ws-1")
    await again.lay_out("origin", saved.commit, origin.bundle)
    assert (await again.read("a.py", 100)).content == b"5\n"
    assert again.identity.generation != generation


async def test_thin_bundle_carries_only_what_is_new(workspace, origin):
    new = origin.commit(a_dot_py="a = 9\n")
    base = workspace.identity.commit

    async def thin(path: Path) -> None:
        origin.git("bundle", "create", "-q", str(path), "HEAD", f"^{base}")

    await workspace.lay_out("origin", new, thin)
    assert (await workspace.read("a.py", 100)).content == b"a = 9\n"


async def test_bundle_that_is_cut_off_is_refused(workspaces, origin):
    base = origin.commit(a_dot_py="1")

    async def cut(path: Path) -> None:
        await origin.bundle(path)
        os.truncate(path, path.stat().st_size - 10)

    workspace = workspaces.open("ws")
    with pytest.raises(GitFailed):
        await workspace.lay_out("origin", base, cut)
    assert workspace.identity is None


async def test_glob_finds_files_that_git_does_not_ignore(workspace):
    await run(workspace, "mkdir -p src/deep node_modules; touch src/deep/c.py node_modules/d.py x.log 'sp ace.py' src/ü.py; rm a.py")
    assert (await workspace.glob("*.py", 100)).paths == ("sp ace.py", "src/b.py", "src/deep/c.py", "src/ü.py")
    assert (await workspace.glob("src/**/*.py", 100)).paths == ("src/b.py", "src/deep/c.py", "src/ü.py")
    assert (await workspace.glob("src/*.py", 1)).truncated


async def test_grep_finds_lines_with_their_numbers(workspace):
    await run(workspace, "printf 'one\\ntwo 22\\n你好\\n' > 'n ü.txt'; printf 'two 22\\n\\0' > binary; echo 'two 22' > x.log")
    found = await workspace.grep(r"two \d+|你", ".", 10)
    assert [(match.path, match.line, match.text) for match in found.matches] == [("n ü.txt", 2, "two 22"), ("n ü.txt", 3, "你好")]
    assert (await workspace.grep("= 1", "src", 10)).matches[0].path == "src/b.py"
    assert (await workspace.grep("no such text", ".", 10)).matches == ()
    assert (await workspace.grep("1|2", ".", 1)).truncated


@pytest.mark.parametrize("pattern", ["(", "[a-", "*("])
async def test_pattern_that_is_wrong_is_refused_with_gits_words(workspace, pattern):
    with pytest.raises(BadPattern):
        await workspace.grep(pattern, ".", 10)


async def test_pattern_that_would_run_for_ever_ends(workspace):
    await workspace.write("w", [FileWrite(path="a.txt", content=b"a" * 40_000 + b"!\n")])
    with pytest.raises(BadPattern):
        await workspace.grep("(a+)+$", ".", 10)


async def test_search_outside_is_refused(workspace):
    for path in ("/etc", "../x", "src/../../x"):
        with pytest.raises(BadPath):
            await workspace.grep("root", path, 10)


async def test_link_to_the_outside_gives_nothing_to_a_search(workspace):
    await run(workspace, "ln -s /etc etc")
    assert (await workspace.grep("root", ".", 10)).matches == ()
    assert (await workspace.glob("etc/*", 10)).paths == ()


async def test_operation_is_done_once(workspace):
    first = await workspace.execute("op-x", "echo run >> count; cat count", 60, 1000)
    again = await workspace.execute("op-x", "echo run >> count; cat count", 60, 1000)
    assert (first.stdout, first.replayed) == ("run\n", False)
    assert (again.stdout, again.replayed) == ("run\n", True)


async def test_newer_token_ends_what_an_older_one_began(workspace):
    await workspace.authorize(3)
    begun = asyncio.Event()

    async def on_output(_stream, _data):
        begun.set()

    running = asyncio.create_task(workspace.execute("op-x", "echo; sleep 600", 900, 1000, on_output))
    await asyncio.wait_for(begun.wait(), 20)
    await workspace.authorize(4)
    assert ((await running).outcome, workspace.busy) == ("unknown", False)
    with pytest.raises(StaleLease):
        await workspace.authorize(3)
    assert (await workspace.execute("op-x", "echo; sleep 600", 900, 1000)).outcome == "unknown"


async def test_output_is_cut_to_its_tail_with_a_note(workspace):
    result = await workspace.execute("op-x", "seq 1 10000", 60, 400)
    assert len(result.stdout) <= 400
    assert "characters left out" in result.stdout
    assert result.stdout.endswith("10000\n")


async def test_idle_workspaces_are_swept_and_busy_ones_stay(workspaces, workspace):
    await run(workspace, "d=deep; for i in $(seq 300); do mkdir $d 2>/dev/null && cd $d; done; mkdir -m 0 closed")
    assert await workspaces.sweep(3600) == []
    begun = asyncio.Event()

    async def on_output(_stream, _data):
        begun.set()

    running = asyncio.create_task(workspace.execute("op-x", "echo; until [ -e /workspace/stop ]; do sleep 0.01; done", 60, 10, on_output))
    await asyncio.wait_for(begun.wait(), 20)
    assert await workspaces.sweep(0) == []
    (workspace.folder / "tree" / "stop").touch()
    await running
    assert await workspaces.sweep(0) == ["ws-1"]
    assert not workspace.folder.exists()
