"""GitHub as the forge's way out needs it, on loopback: REST with tokens of limited permissions, GraphQL's one mutation, git over HTTP.

Each request is held to the permission that GitHub's documentation names for it; limits and refusals are set by a test.
"""

import itertools
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import jwt
from aiohttp import web

from libs.testkit.broker import free_port
from libs.testkit.git_http import GitHttp

BOT = "agent-coder[bot]"
Answer = tuple[int, Any, dict[str, str]]
_NEEDS = (
    (r"GET /repositories/\d+", "metadata", "read"),
    (r"GET /repos/[^/]+/[^/]+", "metadata", "read"),
    (r"GET .*/collaborators/.*/permission", "metadata", "read"),
    (r"GET .*/branches/.*", "contents", "read"),
    (r"(GET|POST|PATCH) .*/issues/.*comments.*", "issues", "write"),
    (r"(GET|POST|PATCH) .*/pulls(/\d+)?", "pull_requests", "write"),
    (r"PUT .*/pulls/\d+/merge", "contents", "write"),
    (r"GET .*/pulls/\d+/reviews", "pull_requests", "read"),
    (r"GET .*/check-runs", "checks", "read"),
    (r"GET .*/status", "statuses", "read"),
    (r"POST /graphql", "pull_requests", "write"),
)


@dataclass
class Repo:
    """A repository. `old_names` lead here, as GitHub leads on after a rename."""

    id: int
    full_name: str
    default_branch: str = "main"
    archived: bool = False
    old_names: set[str] = field(default_factory=set)
    pulls: dict[int, dict[str, Any]] = field(default_factory=dict)
    comments: dict[int, list[dict[str, Any]]] = field(default_factory=dict)
    permissions: dict[str, str] = field(default_factory=dict)
    reviews: dict[int, list[dict[str, Any]]] = field(default_factory=dict)
    check_runs: dict[str, list[dict[str, Any]]] = field(default_factory=dict)


@dataclass
class Fault:
    """An answer in place of the real one, `times` times, for requests that match; `after` does the work first."""

    match: str
    answer: Answer
    times: int = 1
    after: bool = False


class GitHubOut:
    """The server. Installation 5 covers the repositories in `installed`."""

    def __init__(self, root: Path, public_key: Any) -> None:
        self.git = GitHttp(root / "github", self._git_allowed)
        self.public_key = public_key
        self.repos: list[Repo] = []
        self.installed: set[int] = set()
        self.granted = {
            "metadata": "read",
            "contents": "write",
            "issues": "write",
            "pull_requests": "write",
            "checks": "read",
            "statuses": "read",
        }
        self.events = ["issues"]
        self.hook = {"url": "", "content_type": "json"}
        self.tokens: dict[str, dict[str, Any]] = {}
        self.calls: Counter[str] = Counter()
        self.faults: list[Fault] = []
        self.drafts = True
        self.url = ""
        self._ids = itertools.count(1)

    def repo(self, full_name: str) -> Repo:
        return next(r for r in self.repos if r.full_name == full_name or full_name in r.old_names)

    def create(self, full_name: str, source: Path) -> Repo:
        """A repository with the branches of `source`, in the installation."""
        self.git.create(full_name, source)
        made = Repo(len(self.repos) + 1, full_name)
        self.repos.append(made)
        self.installed.add(made.id)
        return made

    def rename(self, repo: Repo, full_name: str) -> None:
        """The old name still leads to it."""
        self.git.path(repo.full_name).rename(self.git.path(full_name))
        repo.old_names.add(repo.full_name)
        repo.full_name = full_name

    def fault(self, match: str, status: int, message: str, times: int = 1, *, after: bool = False, **headers: str) -> None:
        """The next `times` requests that match get this answer."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        self.faults.append(Fault(match, (status, {"message": message}, named), times, after))

    def _git_allowed(self, full_name: str, token: str, writes: bool) -> bool:
        minted = self.tokens.get(token)
        repo = next((r for r in self.repos if r.full_name == full_name), None)
        if minted is None or repo is None or minted["repository_ids"] != [repo.id]:
            return False
        return minted["permissions"].get("contents") in (("write",) if writes else ("read", "write"))

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Any request."""
        if ".git/" in request.path:
            return await self.git.handle(request)
        line = f"{request.method} {request.path}"
        self.calls[line] += 1
        fault = next((f for f in self.faults if re.search(f.match, line)), None)
        if fault and not fault.after:
            return self._hurt(fault)
        status, data, headers = await self._answer(request, line)
        return self._hurt(fault) if fault else web.json_response(data, status=status, headers=headers)

    def _hurt(self, fault: Fault) -> web.Response:
        fault.times -= 1
        if fault.times <= 0:
            self.faults.remove(fault)
        status, data, headers = fault.answer
        return web.json_response(data, status=status, headers=headers)

    async def _answer(self, request: web.Request, line: str) -> Answer:
        body = await request.json() if request.can_read_body else {}
        given = request.headers.get("Authorization", "").partition(" ")[2]
        if request.path.startswith("/app") or request.path.endswith("/installation"):
            claims = jwt.decode(given, self.public_key, algorithms=["RS256"])
            assert claims["iss"] == "77"
            assert claims["exp"] - claims["iat"] < 600
            return self._app(request, body)
        minted = self.tokens.get(given)
        if minted is None:
            return _no(401, "Bad credentials")
        _, name, level = next(n for n in _NEEDS if re.fullmatch(n[0], line))
        if minted["permissions"].get(name) not in (level, "write"):
            return _no(403, "Resource not accessible by integration")
        if request.path == "/graphql":
            return self._graphql(body)
        if match := re.fullmatch(r"/repositories/(\d+)", request.path):
            return _yes(_about(next(r for r in self.repos if r.id == int(match[1]))))
        full_name, rest = _split(request.path)
        repo = next((r for r in self.repos if full_name in (r.full_name, *r.old_names)), None)
        if repo is None or (minted["repository_ids"] not in ([], [repo.id])):
            return _no(404, "Not Found")
        if full_name in repo.old_names:
            return 301, {"message": "Moved Permanently"}, {"Location": f"{self.url}/repos/{repo.full_name}/{'/'.join(rest)}".rstrip("/")}
        return self._repository(request, repo, rest, body)

    def _app(self, request: web.Request, body: Any) -> Answer:
        path = request.path
        if path == "/app":
            return _yes(
                {"slug": "agent-coder", "id": 77, "permissions": self.granted, "events": self.events, "html_url": f"{self.url}/apps/x"}
            )
        if path == "/app/hook/config":
            return _yes(self.hook)
        if path == "/app/installations":
            return _yes([{"id": 5, "account": {"login": "octo"}, "permissions": self.granted, "suspended_at": None}])
        if path == "/app/hook/deliveries":
            return _yes([])
        if path.endswith("/access_tokens"):
            return self._mint(body)
        full_name, _ = _split(path)
        repo = next((r for r in self.repos if full_name in (r.full_name, *r.old_names)), None)
        return _yes({"id": 5}) if repo and repo.id in self.installed else _no(404, "Not Found")

    def _mint(self, body: Any) -> Answer:
        asked = body["permissions"]
        if any(self.granted.get(name) not in (level, "write") for name, level in asked.items()):
            return _no(422, "The permissions requested are not granted to this installation.")
        token = f"ghs_{next(self._ids):036d}"
        self.tokens[token] = {"permissions": asked, "repository_ids": body.get("repository_ids", [])}
        return 201, {"token": token, "expires_at": (datetime.now(UTC) + timedelta(hours=1)).isoformat()}, {}

    def _graphql(self, body: Any) -> Answer:
        pull = next((p for r in self.repos for p in r.pulls.values() if p["node_id"] == body["variables"]["id"]), None)
        if pull is None:
            return _yes({"errors": [{"message": "Could not resolve to a node"}]})
        pull["draft"] = False
        return _yes({"data": {}})

    def _repository(self, request: web.Request, repo: Repo, rest: list[str], body: Any) -> Answer:
        verb, page = request.method, int(request.query.get("page", "1"))
        match rest:
            case []:
                return _yes(_about(repo))
            case ["collaborators", login, "permission"]:
                return _yes({"permission": repo.permissions.get(login, "none")})
            case ["branches", *name]:
                return _yes({}) if "/".join(name) in self.git.branches(repo.full_name) else _no(404, "Branch not found")
            case ["issues", "comments", wanted]:
                found = next((c for of in repo.comments.values() for c in of if c["id"] == int(wanted)), None)
                return _yes(found.update(body) or found) if found else _no(404, "Not Found")
            case ["issues", number, "comments"] if verb == "POST":
                return self._comment(repo, int(number), body["body"])
            case ["issues", number, "comments"]:
                return _yes(repo.comments.get(int(number), []) if page == 1 else [])
            case ["commits", sha, "check-runs"]:
                return _yes({"check_runs": repo.check_runs.get(sha, []) if page == 1 else []})
            case ["commits", _, "status"]:
                return _yes({"statuses": []})
            case ["pulls", *which]:
                return self._pulls(request, repo, which, body)
        return _no(404, "Not Found")

    def _comment(self, repo: Repo, number: int, text: str) -> Answer:
        if len(text) > 65_536:
            return _no(422, "Validation Failed: body is too long (maximum is 65536 characters)")
        made = {"id": next(self._ids), "body": text, "user": {"login": BOT}}
        repo.comments.setdefault(number, []).append(made)
        return 201, made, {}

    def _pulls(self, request: web.Request, repo: Repo, which: list[str], body: Any) -> Answer:
        verb = request.method
        match which:
            case [] if verb == "GET":
                owner, _, branch = request.query["head"].partition(":")
                found = [self._shown(repo, p) for p in repo.pulls.values() if p["head"]["ref"] == branch and p["owner"] == owner]
                return _yes(found if request.query.get("page", "1") == "1" else [])
            case []:
                return self._open(repo, body)
            case [number] if verb == "PATCH":
                repo.pulls[int(number)].update(body)
            case [number, "reviews"]:
                return _yes(repo.reviews.get(int(number), []))
            case [number, "merge"]:
                return self._merge(repo, repo.pulls[int(number)], body)
        return _yes(self._shown(repo, repo.pulls[int(which[0])]))

    def _shown(self, repo: Repo, pull: dict[str, Any]) -> dict[str, Any]:
        """As GitHub shows it: the head is where the branch is now."""
        sha = (
            self.git.branches(repo.full_name).get(pull["head"]["ref"], pull["head"]["sha"])
            if pull["state"] == "open"
            else pull["head"]["sha"]
        )
        pull["head"]["sha"] = sha
        return pull

    def _open(self, repo: Repo, body: Any) -> Answer:
        sha = self.git.branches(repo.full_name).get(body["head"])
        if len(body["body"]) > 65_536:
            return _no(422, "body is too long (maximum is 65536 characters)")
        if sha is None or body["base"] not in self.git.branches(repo.full_name):
            return _no(422, "Validation Failed")
        if body["draft"] and not self.drafts:
            return _no(422, "Draft pull requests are not supported in this repository.")
        if any(
            p["head"]["ref"] == body["head"] and p["state"] == "open" and p["owner"] == repo.full_name.partition("/")[0]
            for p in repo.pulls.values()
        ):
            return 422, {"message": "Validation Failed", "errors": [{"message": f"A pull request already exists for {body['head']}."}]}, {}
        return 201, self.add_pull(repo, body["head"], sha, **body), {}

    def add_pull(self, repo: Repo, branch: str, sha: str, owner: str = "", repo_id: int = 0, **fields: Any) -> dict[str, Any]:
        """A pull request as it stands in the repository."""
        number = 100 + next(self._ids)
        pull = {
            "number": number,
            "node_id": f"PR_{number}",
            "html_url": f"{self.url}/{repo.full_name}/pull/{number}",
            "state": "open",
            "merged": False,
            "draft": False,
            "body": "",
            "owner": owner or repo.full_name.partition("/")[0],
            "user": {"login": BOT},
        }
        repo.pulls[number] = pull | fields | {"head": {"ref": branch, "sha": sha, "repo": {"id": repo_id or repo.id}}}
        return repo.pulls[number]

    def _merge(self, repo: Repo, pull: dict[str, Any], body: Any) -> Answer:
        if pull["merged"] or pull["draft"]:
            return _no(405, "Pull Request is not mergeable")
        if self._shown(repo, pull)["head"]["sha"] != body["sha"]:
            return _no(409, "Head branch was modified. Review and try the merge again.")
        merge_sha = "c" * 40
        pull.update(merged=True, state="closed", merged_by={"login": BOT}, merge_commit_sha=merge_sha, method=body["merge_method"])
        return _yes({"sha": merge_sha, "merged": True})


def _about(repo: Repo) -> dict[str, Any]:
    return {"id": repo.id, "full_name": repo.full_name, "default_branch": repo.default_branch, "archived": repo.archived}


def _split(path: str) -> tuple[str, list[str]]:
    _, _, owner, name, *rest = path.split("/")
    return f"{owner}/{name}", rest


def _yes(data: Any) -> Answer:
    return 200, data, {}


def _no(status: int, message: str) -> Answer:
    return status, {"message": message}, {}


@asynccontextmanager
async def serving(make: Callable[[], GitHubOut]) -> AsyncIterator[GitHubOut]:
    """The server on a port of loopback, while the block runs."""
    github, port = make(), free_port()
    app = web.Application(client_max_size=100_000_000)
    app.router.add_route("*", "/{path:.*}", github.handle)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    github.url = f"http://127.0.0.1:{port}"
    try:
        yield github
    finally:
        await runner.cleanup()
