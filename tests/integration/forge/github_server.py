"""As much of GitHub's REST API as the intake asks for, on loopback, with a state that a test sets."""

import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from aiohttp import web
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from libs.testkit.broker import free_port
from services.forge.settings import ForgeSettings

BOT = "agent-coder[bot]"
REPO = "octo/app"


@dataclass
class GitHubServer:
    """One repository `octo/app` of id 1, reached by installation 5."""

    url: str = ""
    permissions: dict[str, str] = field(default_factory=lambda: {"maintainer": "write", "lead": "admin", "stranger": "read"})
    issues: dict[int, dict[str, Any]] = field(default_factory=dict)
    pulls: dict[int, dict[str, Any]] = field(default_factory=dict)
    reviews: dict[int, list[dict[str, Any]]] = field(default_factory=dict)
    review_comments: dict[int, list[dict[str, Any]]] = field(default_factory=dict)
    check_runs: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    comments: dict[int, list[dict[str, Any]]] = field(default_factory=dict)
    deliveries: list[dict[str, Any]] = field(default_factory=list)
    redelivered: list[int] = field(default_factory=list)
    calls: Counter[str] = field(default_factory=Counter)
    down: bool = False

    def said(self, number: int, marker: str) -> list[str]:
        """The bot's comments under an issue or pull request that hold a marker."""
        return [c["body"] for c in self.comments.get(number, []) if c["user"]["login"] == BOT and f"<!-- agent-coder:{marker}" in c["body"]]

    async def handle(self, request: web.Request) -> web.Response:
        """Any request."""
        path, verb = request.path, request.method
        self.calls[f"{verb} {path}"] += 1
        if self.down:
            return web.json_response({"message": "maintenance"}, status=503)
        body = await request.json() if request.can_read_body else {}
        found = self._app(verb, path)
        if found is None and path.startswith(f"/repos/{REPO}/"):
            found = self._repository(verb, path.removeprefix(f"/repos/{REPO}/").split("/"), body, int(request.query.get("page", "1")))
        return web.json_response({"message": "Not Found"}, status=404) if found is None else web.json_response(found)

    def _app(self, verb: str, path: str) -> Any:
        if path == "/app":
            return {"slug": "agent-coder", "id": 77, "permissions": {}, "events": []}
        if path.endswith("/access_tokens"):
            return {"token": "ghs_test", "expires_at": (datetime.now(UTC) + timedelta(hours=1)).isoformat()}
        if path == "/app/hook/deliveries":
            return self.deliveries
        if path.startswith("/app/hook/deliveries/") and verb == "POST":
            self.redelivered.append(int(path.split("/")[4]))
            return {}
        return {"id": 5} if path == f"/repos/{REPO}/installation" else None

    def _repository(self, verb: str, parts: list[str], body: Any, page: int) -> Any:
        match parts:
            case ["collaborators", login, "permission"]:
                return {"permission": self.permissions.get(login, "none")}
            case ["issues", number, "comments"] if verb == "POST":
                made = {"id": sum(map(len, self.comments.values())) + 1, "body": body["body"], "user": {"login": BOT}}
                self.comments.setdefault(int(number), []).append(made)
                return made
            case ["issues", "comments", wanted] if verb == "PATCH":
                return next((c.update(body) or c for of in self.comments.values() for c in of if c["id"] == int(wanted)), None)
            case ["issues", number, "comments"]:
                return self.comments.get(int(number), []) if page == 1 else []
            case ["issues", number]:
                return self.issues.get(int(number))
            case ["pulls", number]:
                return self.pulls.get(int(number))
            case ["pulls", number, "reviews"]:
                return self.reviews.get(int(number), []) if page == 1 else []
            case ["pulls", _, "reviews", review, "comments"]:
                return self.review_comments.get(int(review), []) if page == 1 else []
            case ["commits", sha, "check-runs"]:
                return {"check_runs": self.check_runs.get(sha, []) if page == 1 else []}
            case ["commits", _, "status"]:
                return {"statuses": []}
        return None


@asynccontextmanager
async def github_server() -> AsyncIterator[GitHubServer]:
    """The server, while the block runs."""
    state, port = GitHubServer(), free_port()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", state.handle)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    state.url = f"http://127.0.0.1:{port}"
    try:
        yield state
    finally:
        await runner.cleanup()


def forge_settings(home: Path, server: GitHubServer, **more: Any) -> ForgeSettings:
    """A configured App with a key of its own."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    path = home / "forge" / "private-key.pem"
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    path.touch(mode=0o600)
    path.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption())
    )
    return ForgeSettings(
        home=home, github_base_url=server.url, github_app_id=77, github_webhook_secret="secret", github_redelivery_seconds=3600, **more
    )


def environment(settings: ForgeSettings) -> dict[str, str]:
    """The same for a process of its own."""
    return {
        "AGENT_CODER_HOME": str(settings.home),
        "AGENT_CODER_GITHUB_BASE_URL": settings.github_base_url,
        "AGENT_CODER_GITHUB_APP_ID": "77",
        "AGENT_CODER_GITHUB_WEBHOOK_SECRET": "secret",
    }


def dump(value: Any) -> bytes:
    """A body as GitHub sends it."""
    return json.dumps(value, ensure_ascii=False).encode()
