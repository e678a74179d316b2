"""GitHub from outside: the npm package emulate behind a gate that adds what it lacks.

Emulate keeps users, issues, comments, reviews, tokens and merges. The gate serves git over HTTP and shows emulate each pushed commit
(its object ids are git's own), moves the head of a pull request when its branch moves, refuses what GitHub refuses (a second pull
request of a branch, a merge of another sha), answers GraphQL's one mutation, and delivers each webhook as often as a test says, signed,
under a GUID of its own (emulate's is a time in milliseconds).
"""

import asyncio
import base64
import hashlib
import hmac
import json
import os
import subprocess
import uuid
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from aiohttp import web
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from libs.testkit.broker import free_port
from libs.testkit.git_http import GitHttp

REPO = "acme/app"
APP_ID, SECRET = 77, "the-webhook-secret"
TOKENS = {"owner": "tok_owner", "maintainer": "tok_maintainer", "lead": "tok_lead"}
PERMISSIONS = {
    "metadata": "read",
    "contents": "write",
    "issues": "write",
    "pull_requests": "write",
    "checks": "read",
    "statuses": "read",
}
EVENTS = ["issues", "issue_comment", "pull_request", "pull_request_review", "pull_request_review_comment", "check_run", "check_suite"]


@dataclass
class Gate:
    """The server in front of emulate. `hook_url` is where webhooks go, each `times` times at once."""

    emulate: httpx.AsyncClient
    place: Path
    url: str
    times: int = 1
    hook_url: str = ""
    minted: dict[str, Any] = field(default_factory=dict)
    calls: Counter[str] = field(default_factory=Counter)
    sent: list[str] = field(default_factory=list)
    unsent: list[tuple[dict[str, str], bytes]] = field(default_factory=list)
    _mirrored: set[str] = field(default_factory=set)
    _opening: asyncio.Lock = field(default_factory=asyncio.Lock)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.git = GitHttp(self.place / "github", self.allowed, self.pushed)

    def allowed(self, full_name: str, token: str, writes: bool) -> bool:
        """Git's basic authentication: the password is an installation token for this repository."""
        given = self.minted.get(token, {}).get("contents")
        return full_name == REPO and given in (("write",) if writes else ("read", "write"))

    async def api(self, who: str, verb: str, path: str, body: Any = None) -> Any:
        """What a person does on GitHub."""
        async with httpx.AsyncClient(base_url=self.url, trust_env=False, timeout=30) as client:
            answer = await client.request(verb, path, json=body, headers={"Authorization": f"Bearer {TOKENS[who]}"})
        assert answer.status_code < 300, (verb, path, answer.status_code, answer.text)
        return answer.json() if answer.content else None

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Any request."""
        if ".git/" in request.path:
            return await self.git.handle(request)
        self.calls[f"{request.method} {request.path}"] += 1
        body = await request.read()
        if request.path == "/_hook":
            return self._hook(request, body)
        if request.path == "/graphql":
            return await self._ready(json.loads(body))
        if request.path == "/app/hook/config":
            return web.json_response({"url": f"{self.hook_url}/webhooks/github", "secret": "********"})
        if request.path == "/app/hook/deliveries":
            return web.json_response([])
        if request.path.endswith("/status") and "/commits/" in request.path:
            return web.json_response({"statuses": []})
        if request.method == "POST" and request.path.endswith("/pulls"):
            async with self._opening:
                return await self._open(request, body)
        if request.path.endswith("/merge"):
            return await self._merge(request, json.loads(body))
        return await self._pass(request, body)

    async def _pass(self, request: web.Request, body: bytes) -> web.Response:
        headers = {k: v for k, v in request.headers.items() if k.lower() in ("authorization", "accept", "content-type")}
        answer = await self.emulate.request(request.method, str(request.rel_url), content=body, headers=headers)
        if not answer.content or "json" not in answer.headers.get("content-type", ""):
            return web.Response(status=answer.status_code, body=answer.content)
        data = answer.json()
        if request.path.endswith("/access_tokens") and answer.status_code == 201:
            assert len(json.loads(body).get("repository_ids", [1])) == 1
            self.minted[data["token"]] = data["permissions"]
        return web.json_response(self._moved(data), status=answer.status_code)

    def _moved(self, data: Any) -> Any:
        """Heads of open pull requests where their branches are now."""
        branches = self.git.branches(REPO)
        for item in data if isinstance(data, list) else [data]:
            for pull in (item, item.get("pull_request")) if isinstance(item, dict) else ():
                head = pull.get("head") if isinstance(pull, dict) else None
                if isinstance(head, dict) and pull.get("state") == "open":
                    head["sha"] = branches.get(head["ref"], head["sha"])
        return data

    async def _open(self, request: web.Request, body: bytes) -> web.Response:
        head = json.loads(body)["head"]
        found = (await self.emulate.get(f"/repos/{REPO}/pulls", params={"head": f"acme:{head}"}, headers=_as("owner"))).json()
        if found:
            return web.json_response(
                {"message": "Validation Failed", "errors": [{"message": "A pull request already exists."}]}, status=422
            )
        return await self._pass(request, body)

    async def _merge(self, request: web.Request, body: Any) -> web.Response:
        pull = (await self.emulate.get(request.path.removesuffix("/merge"), headers=_as("owner"))).json()
        head = self.git.branches(REPO).get(pull["head"]["ref"])
        if pull["state"] != "open":
            return web.json_response({"message": "Pull Request is not mergeable"}, status=405)
        if body.get("sha") != head:
            return web.json_response({"message": "Head branch was modified. Review and try the merge again."}, status=409)
        answer = await self._pass(request, json.dumps(body | {"sha": pull["head"]["sha"]}).encode())
        if answer.status == 200:
            self.git.git(REPO, "update-ref", "refs/heads/main", str(head))
        return answer

    async def _ready(self, body: Any) -> web.Response:
        pulls = (await self.emulate.get(f"/repos/{REPO}/pulls", headers=_as("owner"))).json()
        number = next(p["number"] for p in pulls if p["node_id"] == body["variables"]["id"])
        await self.emulate.patch(f"/repos/{REPO}/pulls/{number}", json={"draft": False}, headers=_as("owner"))
        return web.json_response({"data": {}})

    def _hook(self, request: web.Request, body: bytes) -> web.Response:
        assert hmac.compare_digest(request.headers["X-Hub-Signature-256"], _sign(body))
        whole = json.dumps(self._moved(json.loads(body)), ensure_ascii=False).encode()
        event, guid = request.headers["X-GitHub-Event"], str(uuid.uuid4())
        self.sent.append(event)
        headers = {
            "Content-Type": "application/json",
            "X-GitHub-Event": event,
            "X-GitHub-Delivery": guid,
            "X-Hub-Signature-256": _sign(whole),
        }
        for _ in range(self.times):
            task = asyncio.create_task(self._deliver(headers, whole))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return web.Response(status=200)

    async def _deliver(self, headers: dict[str, str], body: bytes) -> None:
        """Deliver as GitHub would, and again as the App's owner would: until it was taken."""
        async with httpx.AsyncClient(trust_env=False, timeout=30) as client:
            for _ in range(200):
                try:
                    answer = await client.post(f"{self.hook_url}/webhooks/github", content=body, headers=headers)
                    if answer.status_code < 300:
                        return
                    assert answer.status_code in (429, 503), (answer.status_code, answer.text)
                except httpx.TransportError:
                    pass
                await asyncio.sleep(0.2)
        self.unsent.append((headers, body))

    async def pushed(self, full_name: str) -> None:
        """Show emulate what git has now: objects first, then the branches."""
        for sha in self.git.git(full_name, "rev-list", "--reverse", "--topo-order", "--all").splitlines():
            if sha not in self._mirrored:
                await self._mirror(full_name, sha)
                self._mirrored.add(sha)
        for branch, sha in self.git.branches(full_name).items():
            place = f"/repos/{full_name}/git/refs"
            made = await self.emulate.post(place, json={"ref": f"refs/heads/{branch}", "sha": sha}, headers=_as("owner"))
            if made.status_code != 201:
                await self.emulate.patch(f"{place}/heads/{branch}", json={"sha": sha, "force": True}, headers=_as("owner"))

    async def _mirror(self, full_name: str, sha: str) -> None:
        entries = []
        for line in self.git.git(full_name, "ls-tree", "-r", sha).splitlines():
            about, _, path = line.partition("\t")
            mode, kind, blob = about.split()
            data = subprocess.run(
                ["git", "-C", str(self.git.path(full_name)), "cat-file", "blob", blob], capture_output=True, check=True
            ).stdout
            await self._post(full_name, "blobs", {"content": base64.b64encode(data).decode(), "encoding": "base64"}, blob)
            entries.append({"path": path, "mode": mode, "type": kind, "sha": blob})
        shown = self.git.git(full_name, "show", "-s", "--format=%T%x00%P%x00%an%x00%ae%x00%aI%x00%cn%x00%ce%x00%cI%x00%B", sha)
        tree, parents, *people, message = shown.split("\0")
        await self._post(full_name, "trees", {"tree": entries}, tree)
        author, committer = (dict(zip(("name", "email", "date"), people[n : n + 3], strict=True)) for n in (0, 3))
        body = {"message": message, "tree": tree, "parents": parents.split(), "author": author, "committer": committer}
        await self._post(full_name, "commits", body, sha)

    async def _post(self, full_name: str, kind: str, body: Any, sha: str) -> None:
        answer = await self.emulate.post(f"/repos/{full_name}/git/{kind}", json=body, headers=_as("owner"))
        assert answer.json()["sha"] == sha, (kind, answer.text)


def _as(who: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {TOKENS[who]}"}


def _sign(body: bytes) -> str:
    return "sha256=" + hmac.new(SECRET.encode(), body, hashlib.sha256).hexdigest()


def key_file(place: Path) -> Path:
    """A private key of the App."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    form = serialization.PrivateFormat.TraditionalOpenSSL
    path = place / "app.pem"
    path.touch(mode=0o600)
    path.write_bytes(key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()))
    return path


def seed(place: Path, key: Path, gate_url: str) -> Path:
    """Emulate's first state: an owner's repository, two people with write permission, the App on it."""
    github = {
        "users": [{"login": name, "email": f"{name}@example.org"} for name in ("acme", "maintainer", "lead")],
        "repos": [{"owner": "acme", "name": "app", "private": True, "auto_init": False}],
        "apps": [
            {
                "app_id": APP_ID,
                "slug": "agent-coder",
                "name": "agent-coder",
                "private_key": key.read_text(),
                "permissions": PERMISSIONS,
                "events": EVENTS,
                "webhook_url": f"{gate_url}/_hook",
                "webhook_secret": SECRET,
                "installations": [{"installation_id": 5, "account": "acme", "repository_selection": "all"}],
            }
        ],
    }
    people = {token: {"login": "acme" if name == "owner" else name, "scopes": ["repo", "user"]} for name, token in TOKENS.items()}
    path = place / "emulate.json"
    path.write_text(json.dumps({"github": github, "tokens": people}))
    return path


@asynccontextmanager
async def github(place: Path, source: Path, times: int = 1) -> AsyncIterator[Gate]:
    """GitHub with the repository `source` in it, while the block runs. `NODE24` and `EMULATE` say where both are."""
    port, behind = free_port(), free_port()
    url = f"http://127.0.0.1:{port}"
    command = [os.environ["NODE24"], os.environ["EMULATE"], "start", "--service", "github", "--port", str(behind)]
    command += ["--seed", str(seed(place, key_file(place), url)), "--base-url", url]
    with (place / "emulate.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(*command, stdout=log, stderr=log, stdin=asyncio.subprocess.DEVNULL)
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{behind}", trust_env=False, timeout=30) as emulate:
        gate = Gate(emulate, place, url, times)
        gate.git.create(REPO, source)
        app = web.Application(client_max_size=50_000_000)
        app.router.add_route("*", "/{path:.*}", gate.handle)
        runner = web.AppRunner(app)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", port).start()
            await _up(emulate, process, place)
            await gate.pushed(REPO)
            for person in ("maintainer", "lead"):
                await gate.api("owner", "PUT", f"/repos/{REPO}/collaborators/{person}", {"permission": "push"})
            yield gate
        finally:
            await runner.cleanup()
            process.terminate()
            await process.wait()


async def _up(emulate: httpx.AsyncClient, process: asyncio.subprocess.Process, place: Path) -> None:
    async with asyncio.timeout(60):
        while process.returncode is None:
            try:
                if (await emulate.get("/zen")).status_code == 200:
                    return
            except httpx.TransportError:
                await asyncio.sleep(0.05)
    raise AssertionError((place / "emulate.log").read_text())
