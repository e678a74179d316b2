"""Commits travel as bundles: out to a plain git, back in after every check, and never half."""

import asyncio
import contextlib
from pathlib import Path

import pytest

from services.artifact.domain import Limits
from services.artifact.errors import BundleRefused, FileTooLarge, InvalidName, MissingPrerequisite, TooLarge, UnknownCommit
from services.artifact.importing import Importer
from services.artifact.repositories import Repositories
from services.artifact.transport import BUNDLE_REF, Transport
from tests.unit.artifact.sample import Sample, run_git

RUN_REF = "refs/runs/run-1/3"


@pytest.fixture
async def name(importer: Importer, source: Sample) -> str:
    return (await importer.import_source(str(source.path))).repository


@pytest.fixture
def transport(repositories: Repositories) -> Transport:
    return Transport(repositories)


async def save(transport: Transport, name: str, commit: str, target: Path, have: tuple[str, ...] = ()) -> Path:
    target.write_bytes(b"".join([piece async for piece in transport.bundle(name, commit, have)]))
    return target


def runs(repositories: Repositories, name: str) -> dict[str, str]:
    listed = run_git(repositories.path(name), "for-each-ref", "--format=%(refname) %(objectname)", "refs/runs/").stdout
    return dict(line.split(" ") for line in listed.splitlines())


async def test_a_bundle_is_a_bundle_to_plain_git(transport: Transport, name: str, source: Sample, tmp_path: Path) -> None:
    bundle = await save(transport, name, source.head, tmp_path / "out.bundle")
    run_git(tmp_path, "clone", "-q", str(bundle), "clone")
    assert run_git(tmp_path / "clone", "rev-parse", "HEAD").stdout.strip() == source.head


async def test_a_bundle_leaves_out_what_the_asker_has(
    transport: Transport, importer: Importer, name: str, source: Sample, tmp_path: Path
) -> None:
    old = source.head
    run_git(tmp_path, "clone", "-q", str(source.path), "clone")
    head = source.commit({"b.py": "b = 1\n"})
    await importer.import_source(str(source.path))
    whole = await save(transport, name, head, tmp_path / "whole")
    part = await save(transport, name, head, tmp_path / "part", (old, "0" * 40, "nonsense"))
    assert part.stat().st_size < whole.stat().st_size
    assert f"-{old}\n".encode() in part.read_bytes()
    run_git(tmp_path / "clone", "fetch", "-q", str(part), f"{BUNDLE_REF}:refs/heads/new")
    assert run_git(tmp_path / "clone", "rev-parse", "new").stdout.strip() == head
    none = await save(transport, name, head, tmp_path / "none", (head,))
    run_git(tmp_path / "clone", "fetch", "-q", str(none), BUNDLE_REF)


async def test_a_bundle_of_an_unknown_commit_is_refused(transport: Transport, name: str, tmp_path: Path) -> None:
    with pytest.raises(UnknownCommit):
        await save(transport, name, "0" * 40, tmp_path / "out")


async def test_a_received_commit_is_kept_under_its_hidden_reference(
    transport: Transport, repositories: Repositories, name: str, source: Sample, tmp_path: Path
) -> None:
    base = source.head
    head = source.commit({"nämé ☃.py": "x\r\n", "folder/with space": "y\n"})
    bundle = source.bundle(tmp_path / "in", head, f"^{base}")
    await asyncio.gather(*(transport.receive_bundle(name, RUN_REF, bundle, head) for _ in range(3)))
    assert runs(repositories, name) == {RUN_REF: head}
    store = repositories.path(name)
    assert run_git(store, "show", f"{head}:nämé ☃.py").stdout == "x\n"
    assert run_git(store, "fsck", "--strict").returncode == 0
    assert list((store / "objects").glob("tmp_objdir*")) == []


async def test_a_run_keeps_its_commits_through_collection_until_it_is_pruned(
    transport: Transport, repositories: Repositories, name: str, source: Sample, tmp_path: Path
) -> None:
    base = source.head
    head = source.commit({"a": "a\n"})
    await transport.receive_bundle(name, RUN_REF, source.bundle(tmp_path / "in", head, f"^{base}"), head)
    store = repositories.path(name)
    run_git(store, "gc", "-q", "--prune=now")
    assert run_git(store, "cat-file", "-t", head).stdout.strip() == "commit"
    assert await repositories.prune_run(name, "run-1") == 1
    run_git(store, "gc", "-q", "--prune=now")
    assert run_git(store, "cat-file", "-t", head, check=False).returncode != 0


async def test_a_second_commit_of_a_number_keeps_the_first(
    transport: Transport, repositories: Repositories, name: str, source: Sample, tmp_path: Path
) -> None:
    base = source.head
    made = []
    for number in range(3):
        source.git("checkout", "-q", "--detach", base)
        made.append(source.commit({"a": f"{number}\n"}))
        await transport.receive_bundle(name, RUN_REF, source.bundle(tmp_path / "in", made[-1], f"^{base}"), made[-1])
    assert runs(repositories, name) == {RUN_REF: made[2], f"{RUN_REF}.{made[0][:12]}": made[0], f"{RUN_REF}.{made[1][:12]}": made[1]}


async def test_a_commit_that_is_here_already_needs_no_objects(
    transport: Transport, repositories: Repositories, name: str, source: Sample, tmp_path: Path
) -> None:
    empty = await save(transport, name, source.head, tmp_path / "empty", (source.head,))
    await transport.receive_bundle(name, RUN_REF, empty, source.head)
    assert runs(repositories, name) == {RUN_REF: source.head}


@pytest.mark.parametrize("ref", ["refs/heads/main", "refs/runs/../heads/main/1", "refs/runs/x/y", "HEAD"])
async def test_only_hidden_references_are_written(ref: str, transport: Transport, name: str, source: Sample, tmp_path: Path) -> None:
    with pytest.raises(InvalidName):
        await transport.receive_bundle(name, ref, source.bundle(tmp_path / "in", source.head), source.head)


async def test_a_large_file_is_refused_by_name_and_limit(repositories: Repositories, name: str, source: Sample, tmp_path: Path) -> None:
    repositories.limits = Limits(max_file_bytes=1000)
    base = source.head
    head = source.commit({"data/big one.bin": "x" * 1001, "ok": "y" * 1000})
    with pytest.raises(FileTooLarge, match=r"'data/big one.bin' has 1,001 bytes, over the limit of 1,000 bytes"):
        await Transport(repositories).receive_bundle(name, RUN_REF, source.bundle(tmp_path / "in", head, f"^{base}"), head)
    assert runs(repositories, name) == {}
    assert run_git(repositories.path(name), "cat-file", "-t", head, check=False).returncode != 0


async def test_a_large_file_that_was_there_before_is_no_hindrance(importer: Importer, source: Sample, tmp_path: Path) -> None:
    base = source.commit({"old.bin": "x" * 5000})
    name = (await importer.import_source(str(source.path))).repository
    head = source.commit({"a": "a\n"})
    strict = Repositories(tmp_path / "store", Limits(max_file_bytes=1000))
    await Transport(strict).receive_bundle(name, RUN_REF, source.bundle(tmp_path / "in", head, f"^{base}"), head)


async def test_a_bundle_over_the_limit_is_refused(repositories: Repositories, name: str, source: Sample, tmp_path: Path) -> None:
    repositories.limits = Limits(max_push_bytes=200)
    base = source.head
    head = source.commit({"a": "".join(map(str, range(2000)))})
    with pytest.raises(TooLarge, match="200 bytes"):
        await Transport(repositories).receive_bundle(name, RUN_REF, source.bundle(tmp_path / "in", head, f"^{base}"), head)


@pytest.mark.parametrize("path", [".git", ".GIT", ".git ", "git~1", ".g\u200cit", "..", "."])
async def test_a_path_that_would_write_into_git_itself_is_refused(
    path: str, transport: Transport, repositories: Repositories, name: str, source: Sample, tmp_path: Path
) -> None:
    blob = source.git("rev-parse", "HEAD:calc.py")
    (tmp_path / "tree").write_bytes(b"100644 " + path.encode() + b"\0" + bytes.fromhex(blob))
    tree = source.git("hash-object", "-t", "tree", "--literally", "-w", str(tmp_path / "tree"))
    head = source.git("commit-tree", tree, "-p", "HEAD", "-m", "bad")
    bundle = source.bundle(tmp_path / "in", head, "^HEAD")
    with pytest.raises(BundleRefused):
        await transport.receive_bundle(name, RUN_REF, bundle, head)
    assert runs(repositories, name) == {}


async def test_a_bundle_that_builds_on_something_unknown_is_refused(
    transport: Transport, name: str, source: Sample, tmp_path: Path
) -> None:
    unknown = source.commit({"a": "a\n"})
    head = source.commit({"b": "b\n"})
    with pytest.raises(MissingPrerequisite, match=unknown):
        await transport.receive_bundle(name, RUN_REF, source.bundle(tmp_path / "in", head, f"^{unknown}"), head)


async def test_a_bundle_without_the_promised_commit_is_refused(transport: Transport, name: str, source: Sample, tmp_path: Path) -> None:
    bundle = source.bundle(tmp_path / "in", source.head)
    later = source.commit({"a": "a\n"})
    with pytest.raises(BundleRefused, match="does not complete"):
        await transport.receive_bundle(name, RUN_REF, bundle, later)


@pytest.mark.parametrize("cut", [0, 5, 30, 200, -1, -30])
async def test_damaged_bundles_are_refused_whole(
    cut: int, transport: Transport, repositories: Repositories, name: str, source: Sample, tmp_path: Path
) -> None:
    base = source.head
    head = source.commit({"a": "".join(map(str, range(200)))})
    data = source.bundle(tmp_path / "in", head, f"^{base}").read_bytes()
    (tmp_path / "in").write_bytes(data[:cut])
    with pytest.raises(BundleRefused):
        await transport.receive_bundle(name, RUN_REF, tmp_path / "in", head)
    assert runs(repositories, name) == {}
    assert list((repositories.path(name) / "objects").glob("tmp_objdir*")) == []


async def test_a_broken_off_transfer_leaves_no_process(transport: Transport, repositories: Repositories, name: str, source: Sample) -> None:
    pieces = transport.bundle(name, source.head)
    async with contextlib.aclosing(pieces):
        await anext(pieces)
        await anext(pieces)
    assert processes_in(repositories.path(name)) == []


def processes_in(folder: Path) -> list[Path]:
    """The processes whose working directory is `folder`."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (process / "cwd").resolve() == folder:
                found.append(process)
    return found
