"""A git client against the gateway and the artifact service: make a repository, push to it, clone it, and be refused."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from libs.testkit.broker import broker, free_port
from services.artifact.__main__ import build as build_artifact
from services.gateway.__main__ import build as build_gateway


@dataclass
class Server:
    client: httpx.AsyncClient
    port: int
    token: str

    def url(self, name: str, password: str) -> str:
        return f"http://x:{password}@127.0.0.1:{self.port}/git/{name}.git"


@pytest.fixture
async def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Server]:
    port = free_port()
    monkeypatch.setenv("AGENT_CODER_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("AGENT_CODER_PORT", str(port))
    async with broker(tmp_path / "home") as (_, settings), contextlib.AsyncExitStack() as running:
        await running.enter_async_context(build_artifact().running(settings))
        await running.enter_async_context(build_gateway().running(settings))
        token = (settings.home / "token").read_text().strip()
        headers = {"Authorization": f"Bearer {token}"}
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=30) as client:
            await listening(client)
            yield Server(client, port, token)


async def listening(client: httpx.AsyncClient) -> None:
    async with asyncio.timeout(60):
        while True:
            with contextlib.suppress(httpx.TransportError):
                if (await client.get("/api/repos")).status_code == 200:
                    return
            await asyncio.sleep(0.02)


async def git(*arguments: str, cwd: Path) -> tuple[int, str]:
    """Run git without anybody's configuration or prompt; exit code and everything that it said."""
    environment = {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "HOME": str(cwd),
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_CONFIG_NOSYSTEM": "1",
        "no_proxy": "127.0.0.1",
        **{f"GIT_{who}_{what}": "x@example.org" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")},
    }
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        "git", *arguments, cwd=cwd, env=environment, stdout=pipe, stderr=asyncio.subprocess.STDOUT
    )
    said, _ = await asyncio.wait_for(process.communicate(), 60)
    return process.returncode or 0, said.decode(errors="replace")


async def work_tree(folder: Path) -> Path:
    """A repository with two commits' worth of files: one of 3 MB that does not compress, one with a name in another script."""
    folder.mkdir()
    (folder / "large.bin").write_bytes(random.Random(1).randbytes(3_000_000))
    (folder / "nämé ☃.py").write_text("print('你好')\n")
    for command in (["init", "-q", "-b", "trunk"], ["add", "."], ["commit", "-q", "-m", "第一"]):
        code, said = await git(*command, cwd=folder)
        assert code == 0, said
    return folder


async def test_a_repository_is_made_pushed_to_and_cloned(server: Server, tmp_path: Path) -> None:
    made = await server.client.post("/api/repos", json={"name": "team/app"})
    assert made.status_code == 201, made.text
    tree = await work_tree(tmp_path / "tree")
    code, said = await git("push", "-q", server.url("team/app", server.token), "trunk", cwd=tree)
    assert code == 0, said
    reading = (await server.client.post("/api/repos/team%2Fapp/token", json={"scope": "read"})).json()
    assert reading["clone_url"] == f"http://127.0.0.1:{server.port}/git/team/app.git"
    code, said = await git("clone", "-q", "-b", "trunk", server.url("team/app", reading["token"]), "copy", cwd=tmp_path)
    assert code == 0, said
    assert (tmp_path / "copy" / "large.bin").read_bytes() == (tree / "large.bin").read_bytes()
    assert (tmp_path / "copy" / "nämé ☃.py").read_text() == "print('你好')\n"
    (listed,) = (await server.client.get("/api/repos")).json()["repositories"]
    assert (listed["name"], listed["branches"]) == ("team/app", ["trunk"])


async def test_a_token_opens_what_it_is_for_and_nothing_else(server: Server, tmp_path: Path) -> None:
    for name in ("one", "two"):
        assert (await server.client.post("/api/repos", json={"name": name})).status_code == 201
    tree = await work_tree(tmp_path / "tree")
    read = (await server.client.post("/api/repos/one/token", json={"scope": "read"})).json()["token"]
    write = (await server.client.post("/api/repos/one/token", json={"scope": "write"})).json()["token"]
    refused = [server.url("one", read), server.url("two", write), server.url("one", "wrong")]
    for url in refused:
        code, said = await git("push", url, "trunk", cwd=tree)
        assert code != 0, said
    code, said = await git("push", "-q", server.url("one", write), "trunk", cwd=tree)
    assert code == 0, said
    code, said = await git("ls-remote", server.url("one", read), cwd=tree)
    assert (code, "refs/heads/trunk" in said) == (0, True)


async def test_a_repository_that_is_not_there_is_said(server: Server, tmp_path: Path) -> None:
    code, said = await git("ls-remote", server.url("nowhere", server.token), cwd=tmp_path)
    assert code != 0
    assert "not found" in said
    assert (await server.client.post("/api/repos/nowhere/token")).status_code == 404
    assert (await server.client.post("/api/repos", json={"name": "../up"})).status_code == 422
