"""Git clients clone and push over HTTP; whoever may not is told so."""

import asyncio
import contextlib
import gzip
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from libs.testkit.broker import until
from services.artifact.domain import Limits
from services.artifact.smart_http import GitHttpRequest
from tests.integration.artifact.git_web import HOUR, NAME, Web, serving
from tests.unit.artifact.sample import Sample, run_git


@pytest.fixture
async def web(tmp_path: Path) -> AsyncIterator[Web]:
    async with serving(tmp_path / "store") as running:
        yield running


@pytest.fixture
def source(tmp_path: Path) -> Sample:
    sample = Sample(tmp_path / "work", branch="trunk")
    sample.commit({"calc.py": "x = 1\r\n", "nämé ☃.py": "y\n"})
    return sample


async def git(folder: Path, *arguments: str, check: bool = True):
    return await asyncio.to_thread(run_git, folder, *arguments, check=check)


async def pushed(web: Web, source: Sample, *refs: str) -> None:
    await git(source.path, "push", "-q", await web.url(), *(refs or ("trunk",)))


async def test_what_is_pushed_is_cloned(web: Web, source: Sample, tmp_path: Path) -> None:
    await pushed(web, source)
    await git(tmp_path, "clone", "-q", await web.url("read"), "copy")
    assert (tmp_path / "copy" / "calc.py").read_bytes() == b"x = 1\r\n"
    assert (tmp_path / "copy" / "nämé ☃.py").exists()
    assert (await git(tmp_path / "copy", "branch", "--show-current")).stdout.strip() == "trunk"
    await git(tmp_path / "copy", "fsck", "--strict")


@pytest.mark.parametrize("version", ["0", "1", "2"])
async def test_every_protocol_version_fetches_and_pushes(version: str, web: Web, source: Sample, tmp_path: Path) -> None:
    await git(source.path, "-c", f"protocol.version={version}", "push", "-q", await web.url(), "trunk")
    await git(tmp_path, "-c", f"protocol.version={version}", "clone", "-q", await web.url("read"), "copy")
    head = source.commit({"more": "more\n"})
    await pushed(web, source)
    await git(tmp_path / "copy", "-c", f"protocol.version={version}", "pull", "-q", "--ff-only")
    assert (await git(tmp_path / "copy", "rev-parse", "HEAD")).stdout.strip() == head


async def test_version_2_is_spoken_when_asked_for(web: Web, source: Sample) -> None:
    await pushed(web, source)
    token = (await web.tokens.issue(NAME, "read", HOUR)).token
    async with httpx.AsyncClient(auth=("x", token)) as client:
        answer = await client.get(web.plain("info/refs?service=git-upload-pack"), headers={"Git-Protocol": "version=2"})
        assert b"version 2" in answer.content
        assert answer.headers["content-type"] == "application/x-git-upload-pack-advertisement"
        listing = b"0014command=ls-refs\n0001" + b"0009peel\n" + b"0000"
        headers = {"Git-Protocol": "version=2", "Content-Type": "application/x-git-upload-pack-request", "Content-Encoding": "gzip"}
        refs = await client.post(web.plain("git-upload-pack"), content=gzip.compress(listing), headers=headers)
    assert source.head.encode() in refs.content


async def test_a_shallow_clone_is_shallow_and_deepens(web: Web, source: Sample, tmp_path: Path) -> None:
    for number in range(5):
        source.commit({"n": f"{number}\n"})
    await pushed(web, source)
    await git(tmp_path, "clone", "-q", "--depth=2", await web.url("read"), "copy")
    assert (await git(tmp_path / "copy", "rev-list", "--count", "HEAD")).stdout.strip() == "2"
    await git(tmp_path / "copy", "fetch", "-q", "--unshallow")
    assert (await git(tmp_path / "copy", "rev-list", "--count", "HEAD")).stdout.strip() == "6"


async def test_a_partial_clone_fetches_what_it_needs(web: Web, source: Sample, tmp_path: Path) -> None:
    await pushed(web, source)
    await git(tmp_path, "clone", "-q", "--filter=blob:none", await web.url("read"), "copy")
    assert (tmp_path / "copy" / "calc.py").exists()


async def test_a_large_history_travels_in_both_directions(web: Web, source: Sample, tmp_path: Path) -> None:
    noise = Path("/dev/urandom")
    with noise.open("rb") as random:
        source.commit({f"data/{number}.bin": random.read(400_000) for number in range(8)})
    await pushed(web, source)
    await git(tmp_path, "clone", "-q", await web.url("read"), "copy")
    assert len(list((tmp_path / "copy" / "data").iterdir())) == 8


@pytest.mark.parametrize("kind", ["none", "wrong", "expired", "other repository", "revoked"])
async def test_without_a_valid_token_the_client_is_asked_for_one(kind: str, web: Web) -> None:
    await web.repositories.create("other")
    issued = await web.tokens.issue("other" if kind == "other repository" else NAME, "write", HOUR)
    token = {"none": None, "wrong": "act_wrong"}.get(kind, issued.token)
    if kind == "expired":
        web.now += HOUR
    if kind == "revoked":
        await web.tokens.revoke(issued.token)
    async with httpx.AsyncClient(auth=("x", token) if token else None) as client:
        answer = await client.get(web.plain("info/refs?service=git-upload-pack"))
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"].startswith("Basic realm=")


async def test_a_name_that_is_unknown_or_bad_tells_nothing_without_a_token(web: Web) -> None:
    async with httpx.AsyncClient() as client:
        for name in ("nowhere", "../x", "%2e%2e/x"):
            assert (await client.get(web.plain("info/refs?service=git-upload-pack", name))).status_code in (401, 404)
    answer = await web.http.serve(GitHttpRequest("GET", "info/refs", "service=git-upload-pack", trusted=True), "nowhere")
    assert answer.status == 404


async def test_a_token_for_reading_does_not_push(web: Web, source: Sample) -> None:
    refused = await git(source.path, "push", "-q", await web.url("read"), "trunk", check=False)
    assert refused.returncode != 0
    assert "403" in refused.stderr
    assert await web.repositories.refs(web.repositories.git(NAME), "refs/") == {}


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "HEAD"),
        ("GET", "info/refs"),
        ("GET", "info/refs?service=git-upload-archive"),
        ("GET", "info/refs?service=git-upload-pack&service=git-receive-pack"),
        ("GET", "objects/info/packs"),
        ("GET", "config"),
        ("POST", "git-upload-archive"),
        ("POST", "info/refs?service=git-upload-pack"),
        ("PUT", "git-receive-pack"),
    ],
)
async def test_nothing_but_the_smart_protocol_is_served(method: str, path: str, web: Web) -> None:
    token = (await web.tokens.issue(NAME, "write", HOUR)).token
    async with httpx.AsyncClient(auth=("x", token)) as client:
        answer = await client.request(method, web.plain(path))
    assert (answer.status_code, "smart HTTP" in answer.text) == (403, True)


async def test_hidden_references_are_neither_shown_nor_pushed_to(web: Web, source: Sample) -> None:
    await pushed(web, source)
    await web.repositories.git(NAME).run("update-ref", "refs/runs/run-1/1", source.head)
    listed = (await git(source.path, "ls-remote", await web.url())).stdout
    assert "refs/heads/trunk" in listed
    assert "refs/runs" not in listed
    for ref in ("refs/runs/run-1/2", "refs/remotes/origin/x", "refs/elsewhere/x"):
        refused = await git(source.path, "push", await web.url(), f"trunk:{ref}", check=False)
        assert refused.returncode != 0
        assert "hidden ref" in refused.stderr or "takes no push" in refused.stderr
    assert set(await web.repositories.refs(web.repositories.git(NAME), "refs/")) == {"heads/trunk", "runs/run-1/1"}


async def test_branches_tags_and_deletions_are_pushed(web: Web, source: Sample) -> None:
    source.git("tag", "-a", "v1", "-m", "one")
    await pushed(web, source, "trunk", "trunk:fix/issue-1", "v1")
    await pushed(web, source, ":fix/issue-1")
    assert set(await web.repositories.refs(web.repositories.git(NAME), "refs/")) == {"heads/trunk", "tags/v1"}


async def test_a_large_file_is_refused_with_its_name_and_the_limit(tmp_path: Path, source: Sample) -> None:
    async with serving(tmp_path / "strict", Limits(max_file_bytes=1000)) as web:
        source.commit({"daten/groß ☃.bin": "x" * 1001})
        refused = await git(source.path, "push", await web.url(), "trunk", check=False)
        assert refused.returncode != 0
        assert "refused: 'daten/groß ☃.bin' has 1,001 bytes, over the limit of 1,000 bytes" in refused.stderr
        assert await web.repositories.refs(web.repositories.git(NAME), "refs/") == {}


async def test_a_push_over_the_limit_is_refused(tmp_path: Path, source: Sample) -> None:
    async with serving(tmp_path / "strict", Limits(max_push_bytes=3000)) as web:
        source.commit({"a.bin": Path("/bin/true").read_bytes()})
        refused = await git(source.path, "push", await web.url(), "trunk", check=False)
        assert refused.returncode != 0
        assert await web.repositories.refs(web.repositories.git(NAME), "refs/") == {}


async def test_a_path_into_git_itself_is_refused(web: Web, source: Sample, tmp_path: Path) -> None:
    blob = source.git("rev-parse", "HEAD:calc.py")
    (tmp_path / "tree").write_bytes(b"100644 .git\0" + bytes.fromhex(blob))
    tree = source.git("hash-object", "-t", "tree", "--literally", "-w", str(tmp_path / "tree"))
    bad = source.git("commit-tree", tree, "-m", "bad")
    refused = await git(source.path, "push", await web.url(), f"{bad}:refs/heads/bad", check=False)
    assert refused.returncode != 0
    assert "hasDotgit" in refused.stderr


async def test_a_client_that_leaves_takes_its_process_along(web: Web, source: Sample) -> None:
    with Path("/dev/urandom").open("rb") as random:
        source.commit({f"{number}.bin": random.read(1_000_000) for number in range(6)})
    await pushed(web, source)
    request = GitHttpRequest(
        "POST",
        "git-upload-pack",
        headers={"Content-Type": "application/x-git-upload-pack-request"},
        body=f"0032want {source.head}\n00000009done\n".encode(),
        trusted=True,
    )
    answer = await web.http.serve(request, NAME)
    assert answer.status == 200
    assert await anext(aiter(answer.body))
    assert processes_in(web.repositories.path(NAME)) != []
    await answer.body.aclose()
    await until(lambda: processes_in(web.repositories.path(NAME)) == [])


def processes_in(folder: Path) -> list[Path]:
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (process / "cwd").resolve() == folder:
                found.append(process)
    return found
