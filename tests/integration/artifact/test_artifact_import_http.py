"""Import over HTTP: from a real git server, with and without a credential, and from servers that are something else."""

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
import uvicorn

from services.artifact.domain import Limits
from services.artifact.errors import (
    AuthenticationRequired,
    EmptyRepository,
    NotARepository,
    RepositoryNotFound,
    SourceRefused,
    SourceUnreachable,
    TooLarge,
)
from services.artifact.importing import Importer
from services.artifact.repositories import Repositories
from tests.integration.artifact.git_web import HOUR, NAME, Web, serving
from tests.unit.artifact.sample import Sample, run_git


@pytest.fixture
async def web(tmp_path: Path) -> AsyncIterator[Web]:
    async with serving(tmp_path / "remote") as running:
        yield running


@pytest.fixture
def source(tmp_path: Path) -> Sample:
    sample = Sample(tmp_path / "work", branch="trunk")
    sample.commit({"calc.py": "x = 1\n"})
    return sample


@pytest.fixture
def repositories(tmp_path: Path) -> Repositories:
    return Repositories(tmp_path / "store")


@pytest.fixture
def importer(repositories: Repositories) -> Importer:
    return Importer(repositories, allow_local_paths=False)


async def push(web: Web, source: Sample, *refs: str) -> None:
    await asyncio.to_thread(run_git, source.path, "push", "-q", "--force", await web.url(), *(refs or ("trunk",)))


@contextlib.asynccontextmanager
async def site(status: int, body: bytes = b"", headers: tuple[tuple[bytes, bytes], ...] = ()) -> AsyncIterator[str]:
    """A web server that gives every request the same answer."""

    async def app(scope, receive, send) -> None:
        await send({"type": "http.response.start", "status": status, "headers": list(headers)})
        await send({"type": "http.response.body", "body": body})

    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="off"))
    running = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/repo.git"
    finally:
        server.should_exit = True
        await running
        listener.close()


async def test_a_url_is_imported_with_its_credential_and_keeps_no_trace_of_it(
    web: Web, source: Sample, importer: Importer, repositories: Repositories, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    await push(web, source)
    url = await web.url("read")
    secret = url.split(":")[2].split("@")[0]
    imported = await importer.import_source(url)
    assert (imported.base_branch, imported.base_commit, imported.default_branch) == ("trunk", source.head, "trunk")
    assert imported.repository.startswith("calc-")
    kept = [path for path in repositories.root.rglob("*") if path.is_file() and secret.encode() in path.read_bytes()]
    assert kept == []
    assert secret not in repr(imported)
    assert secret not in caplog.text


async def test_a_second_import_brings_only_what_is_new(web: Web, source: Sample, importer: Importer, repositories: Repositories) -> None:
    await push(web, source)
    first = await importer.import_source(await web.url("read"))
    source.git("branch", "side")
    head = source.commit({"more.py": "y = 2\n"})
    await push(web, source, "trunk", "side")
    second = await importer.import_source(await web.url("read"), "trunk")
    assert (second.repository, second.base_commit) == (first.repository, head)
    assert set(await repositories.refs(repositories.git(second.repository), "refs/heads/")) == {"trunk", "side"}
    await push(web, source, ":side")
    await importer.import_source(await web.url("read"))
    assert set(await repositories.refs(repositories.git(second.repository), "refs/heads/")) == {"trunk"}


async def test_imports_of_one_source_at_the_same_time_agree(
    web: Web, source: Sample, importer: Importer, repositories: Repositories
) -> None:
    await push(web, source)
    url = await web.url("read")
    found = await asyncio.gather(*(importer.import_source(url) for _ in range(5)))
    assert {(item.repository, item.base_commit) for item in found} == {(found[0].repository, source.head)}
    assert repositories.names() == [found[0].repository]


async def test_a_commit_that_no_branch_leads_to_is_asked_for_by_name(web: Web, source: Sample, importer: Importer) -> None:
    await push(web, source)
    lost = source.commit({"lost.py": "z\n"})
    await push(web, source)
    source.git("reset", "-q", "--hard", "HEAD~1")
    await push(web, source)
    imported = await importer.import_source(await web.url("read"), lost)
    assert (imported.base_branch, imported.base_commit) == (None, lost)


@pytest.mark.parametrize("credential", ["", "x:act_wrong-secret@"])
async def test_a_missing_or_wrong_credential_is_asked_for_and_not_repeated(credential: str, web: Web, importer: Importer) -> None:
    with pytest.raises(AuthenticationRequired) as refused:
        await importer.import_source(f"http://{credential}127.0.0.1:{web.port}/git/{NAME}.git")
    assert "wrong-secret" not in str(refused.value)


async def test_an_empty_remote_is_named_as_such(web: Web, importer: Importer, repositories: Repositories) -> None:
    with pytest.raises(EmptyRepository):
        await importer.import_source(await web.url("read"))
    assert repositories.names() == []


@pytest.mark.parametrize(
    ("status", "body", "error"),
    [
        (404, b"no such page", RepositoryNotFound),
        (401, b"", AuthenticationRequired),
        (403, b"", AuthenticationRequired),
        (500, b"oops", SourceUnreachable),
        (503, b"", SourceUnreachable),
        (429, b"", SourceUnreachable),
        (200, b"<html>\nhello\n</html>\n", NotARepository),
        (200, b"<html>on one line</html>", EmptyRepository),
    ],
)
async def test_what_a_server_says_becomes_an_error_with_a_next_step(
    status: int, body: bytes, error: type[Exception], importer: Importer, repositories: Repositories
) -> None:
    async with site(status, body, ((b"content-type", b"text/html"),)) as url:
        with pytest.raises(error, match=r"127\.0\.0\.1"):
            await importer.import_source(url)
    assert repositories.names() == []


async def test_a_redirect_leads_to_no_other_transport(importer: Importer, source: Sample) -> None:
    for target in (f"file://{source.path}", "ext::sh -c true"):
        async with site(302, b"", ((b"location", target.encode()),)) as url:
            with pytest.raises(SourceRefused):
                await importer.import_source(url)


async def test_a_source_that_never_answers_ends_at_the_deadline(tmp_path: Path) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        importer = Importer(Repositories(tmp_path / "s", Limits(import_timeout_seconds=0.5)), allow_local_paths=False)
        with pytest.raises(SourceUnreachable, match=r"0\.5 seconds"):
            await importer.import_source(f"http://127.0.0.1:{silent.getsockname()[1]}/repo.git")


async def test_a_cancelled_import_leaves_neither_process_nor_files(tmp_path: Path) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        repositories = Repositories(tmp_path / "s")
        importer = Importer(repositories, allow_local_paths=False)
        task = asyncio.create_task(importer.import_source(f"http://127.0.0.1:{silent.getsockname()[1]}/repo.git"))
        silent.setblocking(False)
        async with asyncio.timeout(20):
            connection, _ = await asyncio.get_running_loop().sock_accept(silent)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        connection.setblocking(False)
        async with asyncio.timeout(20):
            while await asyncio.get_running_loop().sock_recv(connection, 65536):
                pass
        connection.close()
    assert list((repositories.root / "work").iterdir()) == []


async def test_a_remote_over_the_limit_is_cut_off(web: Web, source: Sample, tmp_path: Path) -> None:
    with Path("/dev/urandom").open("rb") as random:
        source.commit({"big.bin": random.read(3_000_000)})
    await push(web, source)
    small = Repositories(tmp_path / "small", Limits(max_repository_bytes=500_000))
    with pytest.raises(TooLarge, match="500,000 bytes"):
        await Importer(small, allow_local_paths=False).import_source(await web.url("read"))
    assert list((small.root / "work").iterdir()) == []


async def test_what_was_imported_can_be_cloned_from_here(
    web: Web, source: Sample, importer: Importer, repositories: Repositories, tmp_path: Path
) -> None:
    await push(web, source)
    imported = await importer.import_source(await web.url("read"))
    async with serving(tmp_path / "store") as here:
        token = (await here.tokens.issue(imported.repository, "read", HOUR)).token
        url = f"http://x:{token}@127.0.0.1:{here.port}/git/{imported.repository}.git"
        await asyncio.to_thread(run_git, tmp_path, "clone", "-q", url, "copy")
        async with httpx.AsyncClient(auth=("x", token)) as client:
            listed = await client.get(here.plain("info/refs?service=git-upload-pack", imported.repository))
    assert (tmp_path / "copy" / "calc.py").exists()
    assert b"refs/remotes" not in listed.content
