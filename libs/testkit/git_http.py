"""Git over HTTP as a forge serves it: `git http-backend` (git-http-backend(1)) behind basic authentication with tokens."""

import asyncio
import base64
import os
import subprocess
from collections.abc import Awaitable, Callable
from pathlib import Path

from aiohttp import web

Allowed = Callable[[str, str, bool], bool]
Pushed = Callable[[str], Awaitable[None]]


class GitHttp:
    """Bare repositories below `root`, reached at `/<owner>/<name>.git/…`.

    `allowed(full_name, token, writes)` decides about each request; `pushed(full_name)` is awaited after a push that went through.
    """

    def __init__(self, root: Path, allowed: Allowed, pushed: Pushed | None = None) -> None:
        self.root = root
        self._allowed = allowed
        self._pushed = pushed

    def path(self, full_name: str) -> Path:
        """Where a repository lies."""
        return self.root / f"{full_name}.git"

    def create(self, full_name: str, source: Path | None = None) -> Path:
        """A repository, empty or with the branches of another one."""
        place = self.path(full_name)
        place.parent.mkdir(parents=True, exist_ok=True)
        command = ["git", "clone", "-q", "--bare", str(source), str(place)] if source else ["git", "init", "-q", "--bare", str(place)]
        subprocess.run(command, check=True, capture_output=True)
        return place

    def git(self, full_name: str, *arguments: str) -> str:
        """What git says in a repository."""
        command = ["git", "-C", str(self.path(full_name)), *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    def branches(self, full_name: str) -> dict[str, str]:
        """The branches and their commits."""
        lines = self.git(full_name, "for-each-ref", "--format=%(refname:lstrip=2) %(objectname)", "refs/heads/").splitlines()
        return dict(line.rsplit(" ", 1) for line in lines)

    async def handle(self, request: web.Request) -> web.Response:
        """One request of a git client."""
        full_name, _, rest = request.path.strip("/").partition(".git/")
        writes = "git-receive-pack" in (rest, request.query.get("service"))
        if not self._allowed(full_name, _token(request.headers.get("Authorization", "")), writes):
            return web.Response(status=401, headers={"WWW-Authenticate": 'Basic realm="git"'})
        if not self.path(full_name).is_dir():
            return web.Response(status=404, text="Repository not found.")
        answer = await self._backend(request, f"/{full_name}.git/{rest}", await request.read())
        if rest == "git-receive-pack" and self._pushed:
            await self._pushed(full_name)
        return answer

    async def _backend(self, request: web.Request, path: str, body: bytes) -> web.Response:
        variables = {
            "PATH": os.environ["PATH"],
            "GIT_PROJECT_ROOT": str(self.root),
            "GIT_HTTP_EXPORT_ALL": "1",
            "REMOTE_USER": "token",
            "REQUEST_METHOD": request.method,
            "PATH_INFO": path,
            "QUERY_STRING": request.query_string,
            "CONTENT_TYPE": request.headers.get("Content-Type", ""),
            "CONTENT_LENGTH": str(len(body)),
            "GIT_PROTOCOL": request.headers.get("Git-Protocol", ""),
        }
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec("git", "http-backend", env=variables, stdin=pipe, stdout=pipe, stderr=pipe)
        output, _ = await process.communicate(body)
        head, _, content = output.partition(b"\r\n\r\n")
        headers = dict(line.split(": ", 1) for line in head.decode().split("\r\n") if ": " in line)
        status = int(headers.pop("Status", "200").split()[0])
        return web.Response(status=status, body=content, headers=headers)


def _token(header: str) -> str:
    if not header.startswith("Basic "):
        return ""
    return base64.b64decode(header.removeprefix("Basic ")).decode().partition(":")[2]
