"""Git's smart HTTP protocol (gitprotocol-http(5)) around `git http-backend`, one process a request.

Invariant: only the three smart requests reach git, only with a token that allows them, and the process ends with its response.
"""

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO
from urllib.parse import parse_qs, urlencode

from services.artifact.errors import GitFailed, InvalidName, RepositoryNotFound, TokenRefused
from services.artifact.git import OWN_CONFIG, Git, end, feed, read_tail
from services.artifact.repositories import Repositories
from services.artifact.tokens import TokenStore

_SERVICES = ("git-upload-pack", "git-receive-pack")
_REQUEST_HEADERS = {"content-type": "CONTENT_TYPE", "content-encoding": "HTTP_CONTENT_ENCODING", "git-protocol": "HTTP_GIT_PROTOCOL"}
_HEAD_BYTES = 65_536
_CHUNK_BYTES = 65_536
_HOOK = '#!/bin/sh\nexec "$AGENT_CODER_PYTHON" -I "$AGENT_CODER_PUSH_CHECK"\n'
_ASK_FOR_TOKEN = ("WWW-Authenticate", 'Basic realm="agent-coder", charset="UTF-8"')


@dataclass(frozen=True)
class GitHttpRequest:
    """`service_path` is what follows `<repository>.git/`; `token` is the password of basic authentication; a large body is a file.

    `trusted`: the one who asks has shown the owner's own credential.
    """

    method: str
    service_path: str
    query: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | Path = b""
    token: str | None = field(default=None, repr=False)
    trusted: bool = False


class Body:
    """The pieces of a response. `aclose` ends the git process behind it, also when nothing was read."""

    def __init__(self, pieces: AsyncIterator[bytes], process: asyncio.subprocess.Process | None = None) -> None:
        self._pieces = pieces
        self._process = process
        self.tasks: list[asyncio.Task[object]] = []

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._pieces

    async def aclose(self) -> None:
        """Ends what runs for the response."""
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        if self._process is not None:
            await end(self._process)


@dataclass(frozen=True)
class GitHttpResponse:
    """Status, headers, and a body whose `aclose` the reader must await."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: Body


class SmartHttp:
    """Serves the store's repositories to git clients."""

    def __init__(self, repositories: Repositories, tokens: TokenStore) -> None:
        self._repositories = repositories
        self._tokens = tokens

    async def serve(self, request: GitHttpRequest, repository: str) -> GitHttpResponse:
        """One request to one repository. What is refused is refused as HTTP: 400, 401, 403, 404 or 413 with a line of text."""
        service = _service(request)
        if service is None:
            return _say(403, "Only git's smart HTTP protocol is served here: use a git client, version 1.6.6 or newer.")
        try:
            scope = "write" if request.trusted else await self._tokens.check(request.token or "", repository)
            self._repositories.require(repository)
        except TokenRefused as refused:
            return _say(401, str(refused), _ASK_FOR_TOKEN)
        except (InvalidName, RepositoryNotFound) as missing:
            return _say(404, str(missing))
        if service == "git-receive-pack" and scope != "write":
            return _say(403, "This token allows reading only. Ask for one with the scope write.")
        size = request.body.stat().st_size if isinstance(request.body, Path) else len(request.body)
        if size > self._repositories.limits.max_push_bytes:
            return _say(413, f"The push is over the limit of {self._repositories.limits.max_push_bytes:,} bytes. Push in smaller parts.")
        with ExitStack() as opened:
            body = opened.enter_context(request.body.open("rb")) if isinstance(request.body, Path) else request.body
            return await self._run(self._backend(request, repository, service, size), repository, service, body)

    def _backend(self, request: GitHttpRequest, repository: str, service: str, size: int) -> Git:
        """Git with the CGI variables (RFC 3875) that http-backend reads; `service` comes from a fixed list, never from the query."""
        path = self._repositories.path(repository)
        variables = {
            "GIT_PROJECT_ROOT": str(path.parent),
            "PATH_INFO": f"/{path.name}/{request.service_path}",
            "GIT_HTTP_EXPORT_ALL": "1",
            "REQUEST_METHOD": request.method,
            "QUERY_STRING": urlencode({"service": service}) if request.method == "GET" else "",
            "CONTENT_LENGTH": str(size),
            "REMOTE_ADDR": "127.0.0.1",
        }
        given = {name.lower(): value for name, value in request.headers.items()}
        variables |= {variable: given[name] for name, variable in _REQUEST_HEADERS.items() if name in given}
        config = (*OWN_CONFIG, ("uploadpack.allowFilter", "true"), ("receive.autogc", "false"))
        if service == "git-receive-pack":
            # http-backend lets a push in when the web server has named a user.
            variables |= {"REMOTE_USER": "token", **self._repositories.push_environment()}
            limit = self._repositories.limits.max_push_bytes
            config = (*config, ("receive.maxInputSize", str(limit)), ("core.hooksPath", str(hooks_directory(self._repositories.root))))
        return replace(self._repositories.git(repository), config=config, variables=variables)

    async def _run(self, git: Git, repository: str, service: str, body: bytes | IO[bytes]) -> GitHttpResponse:
        process = await git.start("http-backend", stdin=body)
        response = Body(self._pieces(process, repository, service), process)
        complaints = asyncio.create_task(read_tail(process.stderr))
        response.tasks = [asyncio.create_task(feed(process, body if isinstance(body, bytes) else b"")), complaints]
        try:
            status, headers = parse_head(await _read_head(process))
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError) as broken:
            words = await complaints
            await response.aclose()
            raise GitFailed(f"git http-backend gave no response: {words.strip()[-1000:]}") from broken
        except BaseException:
            await response.aclose()
            raise
        return GitHttpResponse(status, headers, response)

    async def _pieces(self, process: asyncio.subprocess.Process, repository: str, service: str) -> AsyncIterator[bytes]:
        while process.stdout is not None and (piece := await process.stdout.read(_CHUNK_BYTES)):
            yield piece
        await process.wait()
        if service == "git-receive-pack":
            await self._repositories.settle_head(self._repositories.git(repository))


def hooks_directory(root: Path) -> Path:
    """The directory with our hook, made when it is not there. Raises GitFailed where nothing can be executed: git would skip the check."""
    folder, hook = root / "hooks", root / "hooks" / "pre-receive"
    if not hook.is_file() or hook.read_text() != _HOOK:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=folder, delete=False) as fresh:
            fresh.write(_HOOK)
        Path(fresh.name).chmod(0o755)
        Path(fresh.name).rename(hook)
    if not os.access(hook, os.X_OK):
        raise GitFailed(f"{hook} cannot be executed, so pushes cannot be checked. Put the data directory on a file system without noexec.")
    return folder


def _service(request: GitHttpRequest) -> str | None:
    """The smart service that a request is for, None for anything else."""
    if request.method == "GET" and request.service_path == "info/refs":
        asked = parse_qs(request.query).get("service", [""])
        return asked[0] if len(asked) == 1 and asked[0] in _SERVICES else None
    return request.service_path if request.method == "POST" and request.service_path in _SERVICES else None


def parse_head(head: bytes) -> tuple[int, tuple[tuple[str, str], ...]]:
    """Status and headers of a CGI response (RFC 3875, section 6). Raises ValueError."""
    status, headers = 200, []
    for line in head.decode("latin-1").splitlines():
        if not line:
            continue
        name, colon, value = line.partition(":")
        if not colon:
            raise ValueError("not a CGI header")
        if name.lower() == "status":
            status = int(value.split()[0])
        else:
            headers.append((name, value.strip()))
    return status, tuple(headers)


async def _read_head(process: asyncio.subprocess.Process) -> bytes:
    head = b""
    while process.stdout is not None and not head.endswith((b"\n\r\n", b"\n\n")):
        if len(head) > _HEAD_BYTES:
            raise ValueError("the head is too long")
        head += await process.stdout.readuntil(b"\n")
    return head


def _say(status: int, text: str, *headers: tuple[str, str]) -> GitHttpResponse:
    async def pieces() -> AsyncIterator[bytes]:
        yield f"{text}\n".encode()

    return GitHttpResponse(status, (("Content-Type", "text/plain; charset=utf-8"), ("Cache-Control", "no-cache"), *headers), Body(pieces()))
