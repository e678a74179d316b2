"""Pushes to a real git server over HTTP: what arrives, what is refused and in which words, and where the credential is not."""

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from services.artifact.domain import Limits, Login
from services.artifact.errors import (
    AuthenticationRequired,
    Contended,
    NotFastForward,
    PushRefused,
    RepositoryNotFound,
    SourceRefused,
    SourceUnreachable,
    UnknownBase,
    UnknownCommit,
)
from services.artifact.importing import Importer
from services.artifact.pushing import Pusher
from services.artifact.repositories import Repositories
from tests.integration.artifact.git_web import HOUR, NAME, Web, serving
from tests.unit.artifact.sample import Sample, run_git


class World:
    """A repository of the store with one commit, and an empty repository on a server."""

    def __init__(self, web: Web, source: Sample, repositories: Repositories, name: str) -> None:
        self.web, self.source, self.name = web, source, name
        self.repositories = repositories
        self.importer = Importer(repositories, allow_local_paths=True)
        self.pusher = Pusher(repositories)
        self.url = f"http://127.0.0.1:{web.port}/git/{NAME}.git"

    async def login(self, scope: str = "write") -> Login:
        return Login("x-access-token", (await self.web.tokens.issue(NAME, scope, HOUR)).token)

    async def push(self, branch: str, sha: str, url: str = "", login: Login | None = None) -> bool:
        return await self.pusher.push(self.name, url or self.url, branch, sha, login or await self.login())

    async def commit(self, text: str) -> str:
        self.source.commit({"calc.py": text})
        await self.importer.import_source(str(self.source.path))
        return self.source.head

    def remote(self, *arguments: str) -> str:
        return run_git(self.web.repositories.path(NAME), *arguments).stdout.strip()


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    source = Sample(tmp_path / "work", branch="trunk")
    source.commit({"calc.py": "x = 1\n"})
    repositories = Repositories(tmp_path / "store", Limits())
    imported = await Importer(repositories, allow_local_paths=True).import_source(str(source.path))
    async with serving(tmp_path / "remote") as web:
        yield World(web, source, repositories, imported.repository)


async def test_a_commit_arrives_once_and_the_branch_follows(world: World) -> None:
    first = world.source.head
    assert await world.push("fix/issue-1", first) is True
    assert await world.push("fix/issue-1", first) is False
    second = await world.commit("x = 2\n")
    assert await world.push("fix/issue-1", second) is True
    assert world.remote("rev-parse", "refs/heads/fix/issue-1") == second


async def test_pushes_of_the_same_commit_at_the_same_time_agree_or_are_tried_again(world: World) -> None:
    head = world.source.head
    found = await asyncio.gather(*(world.push("fix/issue-1", head) for _ in range(6)), return_exceptions=True)
    assert all(isinstance(one, bool | Contended) for one in found), found
    assert world.remote("rev-parse", "refs/heads/fix/issue-1") == head
    assert await world.push("fix/issue-1", head) is False


async def test_what_the_branch_holds_there_is_never_overwritten(world: World) -> None:
    base = world.source.head
    theirs = await world.commit("x = 'theirs'\n")
    await world.push("fix/issue-1", theirs)
    world.source.git("reset", "-q", "--hard", base)
    ours = await world.commit("x = 'ours'\n")
    with pytest.raises(NotFastForward, match="holds commits that this change does not build on"):
        await world.push("fix/issue-1", ours)
    assert world.remote("rev-parse", "refs/heads/fix/issue-1") == theirs


async def test_the_words_of_a_server_that_refuses_are_passed_on(world: World) -> None:
    big = await world.commit("x = 1\n" * 4_000_000)
    with pytest.raises(PushRefused, match="over the limit"):
        await world.push("main", big)


@pytest.mark.parametrize(
    ("url", "error"),
    [
        ("http://example.org/a.git", SourceRefused),
        ("ssh://git@example.org/a.git", SourceRefused),
        ("git://127.0.0.1/a.git", SourceRefused),
        ("somewhere", SourceRefused),
        ("http://127.0.0.1:9/a.git", SourceUnreachable),
    ],
)
async def test_an_address_that_nothing_is_pushed_to(url: str, error: type[Exception], world: World) -> None:
    with pytest.raises(error):
        await world.push("fix/issue-1", world.source.head, url)


async def test_a_wrong_name_or_credential_or_commit_is_told_apart(world: World) -> None:
    head = world.source.head
    with pytest.raises(AuthenticationRequired) as refused:
        await world.push("fix/issue-1", head, login=Login("x-access-token", "act_not-a-real-one"))
    assert "not-a-real-one" not in str(refused.value)
    with pytest.raises((AuthenticationRequired, RepositoryNotFound)):
        await world.push("fix/issue-1", head, url=world.url.replace("calc", "nothing"))
    with pytest.raises(UnknownCommit):
        await world.push("fix/issue-1", "0" * 40)
    for branch in ("-x", "a b", "a..b", "x.lock", ""):
        with pytest.raises(PushRefused, match="no name of a branch"):
            await world.push(branch, head)
    with pytest.raises(SourceRefused, match="line breaks"):
        await world.push("fix/issue-1", head, login=Login("x", "a\nb"))


async def test_the_credential_is_in_no_argument_environment_file_or_log_while_git_works(
    world: World, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    login = await world.login()
    gate = asyncio.Event()
    served = world.web.http.serve
    seen: list[bytes] = []

    async def slowly(request: object, repository: str) -> object:
        await gate.wait()
        return await served(request, repository)  # type: ignore[arg-type]  # passed on as it came

    world.web.http.serve = slowly  # type: ignore[method-assign,assignment]  # the server waits until we have looked
    pushing = asyncio.create_task(world.push("fix/issue-1", world.source.head, login=login))
    async with asyncio.timeout(30):
        while not any(b"git-remote-http" in arguments or b"remote-http" in arguments for arguments in seen):
            seen = [data for pid in children() for data in read(pid)]
            await asyncio.sleep(0.01)
    gate.set()
    while not pushing.done():
        seen += [data for pid in children() for data in read(pid)]
        await asyncio.sleep(0)
    assert await pushing is True
    assert not [data for data in seen if login.password.encode() in data]
    files = [p for p in (tmp_path / "store").rglob("*") if p.is_file() and login.password.encode() in p.read_bytes()]
    assert files == []
    assert login.password not in caplog.text
    assert login.password not in repr(login)


def children() -> list[int]:
    """The processes below this one."""
    found, parents = [os.getpid()], {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
    for _ in range(6):
        found += [pid for pid, parent in parents.items() if parent in found and pid not in found]
    return found[1:]


def read(pid: int) -> list[bytes]:
    """Arguments and environment of a process, as far as it is still there."""
    found = []
    for name in ("cmdline", "environ"):
        with contextlib.suppress(OSError):
            found.append(Path(f"/proc/{pid}/{name}").read_bytes())
    return found


async def test_a_pull_request_of_a_fork_whose_branch_is_called_main_keeps_a_name_of_its_own(world: World) -> None:
    main = world.source.head
    await world.push("main", main)
    theirs = await world.commit("x = 'of the fork'\n")
    await world.push("scratch", theirs)
    world.remote("update-ref", "refs/pull/7/head", theirs)
    login = await world.login("read")
    imported = await world.importer.import_source(world.url, "refs/pull/7/head", lambda _: asyncio.sleep(0, login))
    assert (imported.base_branch, imported.base_commit) == (None, theirs)
    assert (await world.importer.import_source(world.url, "main", lambda _: asyncio.sleep(0, login))).base_commit == main
    with pytest.raises(UnknownBase, match="no pull request 8"):
        await world.importer.import_source(world.url, "pull/8/head", lambda _: asyncio.sleep(0, login))
