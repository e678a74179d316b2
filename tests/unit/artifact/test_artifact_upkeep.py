"""The store outlives cancelled commands, crashes and time."""

import time
from pathlib import Path

import pytest

from libs.testkit.broker import until
from services.artifact.domain import Limits
from services.artifact.errors import GitFailed, GitTimedOut, RepositoryExists, RepositoryNotFound
from services.artifact.git import Git, end
from services.artifact.importing import Importer
from services.artifact.repositories import Repositories
from services.artifact.store import Store
from tests.unit.artifact.sample import Sample, run_git

YEAR = 365 * 86_400.0


async def test_repositories_are_made_listed_and_removed(repositories: Repositories) -> None:
    for name in ("b", "a/x", "a/y"):
        await repositories.create(name)
    with pytest.raises(RepositoryExists):
        await repositories.create("b")
    assert repositories.names() == ["a/x", "a/y", "b"]
    await repositories.delete("a/x")
    assert repositories.names() == ["a/y", "b"]
    with pytest.raises(RepositoryNotFound):
        await repositories.delete("a/x")


async def test_a_command_at_its_deadline_ends_with_its_children(repositories: Repositories, tmp_path: Path) -> None:
    await repositories.create("a")
    git = Git(
        repositories.path("a"), timeout_seconds=0.3, config=(("alias.hang", f"!sleep 60 & echo $! > {tmp_path}/child; trap '' TERM; wait"),)
    )
    with pytest.raises(GitTimedOut, match=r"git hang did not end within 0\.3 seconds"):
        await git.run("hang")
    child = int((tmp_path / "child").read_text())
    await until(lambda: ended(child))


async def test_a_command_that_is_ended_removes_its_lock(repositories: Repositories, source: Sample) -> None:
    await repositories.create("a")
    git = repositories.git("a")
    run_git(git.directory, "fetch", "-q", str(source.path), "main:main")
    process = await git.start("update-ref", "--stdin")
    assert process.stdin
    assert process.stdout
    process.stdin.write(f"start\ncreate refs/heads/x {source.head}\nprepare\n".encode())
    await process.stdin.drain()
    assert [await process.stdout.readline() for _ in range(2)] == [b"start: ok\n", b"prepare: ok\n"]
    assert list((git.directory / "refs").rglob("*.lock"))
    await end(process)
    assert list((git.directory / "refs").rglob("*.lock")) == []


async def test_locks_and_imports_that_a_crash_left_are_cleared(repositories: Repositories, importer: Importer, source: Sample) -> None:
    name = (await importer.import_source(str(source.path))).repository
    lock = repositories.path(name) / "refs" / "heads" / "main.lock"
    left = repositories.root / "work" / "left"
    lock.touch()
    left.mkdir()
    assert repositories.clear_leftovers(time.time()) == 0
    assert repositories.clear_leftovers(time.time() + 700) == 1
    assert repositories.clear_leftovers(time.time() + YEAR) == 1
    assert not lock.exists()
    assert not left.exists()


async def test_a_sweep_keeps_what_runs_hold_and_drops_it_when_its_time_is_over(tmp_path: Path, source: Sample) -> None:
    store = Store.on_disk(tmp_path / "store", Limits(), allow_local_paths=True, max_blob_bytes=1000)
    name = (await store.importer.import_source(str(source.path))).repository
    git = store.repositories.git(name)
    await git.run("update-ref", "refs/runs/run-1/1", source.head)
    await git.run("update-ref", "refs/runs/run-1/2", source.head)
    await store.sweep(100 * YEAR)
    assert set(await store.repositories.refs(git, "refs/runs/")) == {"run-1/1", "run-1/2"}
    await store.sweep(0)
    assert await store.repositories.refs(git, "refs/runs/") == {}
    assert set(await store.repositories.refs(git, "refs/heads/")) == {"main"}


async def test_many_loose_objects_are_packed(repositories: Repositories, importer: Importer, source: Sample) -> None:
    name = (await importer.import_source(str(source.path))).repository
    folder = repositories.path(name)
    lines = "".join(f"blob\nmark :{number}\ndata <<E\n{number}\nE\n" for number in range(1, 200))
    tree = "".join(f"M 100644 :{number} file{number}\n" for number in range(1, 200))
    stream = f"{lines}commit refs/heads/many\ncommitter x <x@y> 1 +0000\ndata 1\nx\n{tree}".encode()
    await repositories.git(name).run("-c", "fastimport.unpackLimit=100000", "fast-import", "--quiet", stdin=stream)
    before = len(list((folder / "objects").glob("??/*")))
    await repositories.maintain(name)
    assert len(list((folder / "objects").glob("??/*"))) <= before
    assert run_git(folder, "fsck", "--strict").returncode == 0


async def test_the_last_words_of_git_are_in_the_error(repositories: Repositories) -> None:
    await repositories.create("a")
    with pytest.raises(GitFailed, match="not a git command"):
        await repositories.git("a").run("no-such-command")


async def test_a_machine_without_git_says_so(repositories: Repositories, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    await repositories.create("a")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(GitFailed, match="Install git"):
        await repositories.git("a").run("version")


async def test_nothing_of_the_surroundings_reaches_git(repositories: Repositories, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    await repositories.create("a")
    hostile = tmp_path / "gitconfig"
    hostile.write_text(f"[core]\n\tfsmonitor = touch {tmp_path}/ran\n[user]\n\tname = intruder\n")
    for name, value in {
        "GIT_CONFIG_GLOBAL": str(hostile),
        "GIT_DIR": "/nowhere",
        "HOME": str(tmp_path),
        "GIT_EXEC_PATH": "/nowhere",
    }.items():
        monkeypatch.setenv(name, value)
    listed = await repositories.git("a").text("config", "--list")
    assert "intruder" not in listed


def ended(pid: int) -> bool:
    """Whether a process is gone or only waits to be reaped."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except FileNotFoundError:
        return True
