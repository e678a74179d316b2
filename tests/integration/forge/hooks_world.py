"""A broker, a GitHub, the forge's intake, and a person who does things on GitHub."""

import asyncio
import hashlib
import hmac
import json
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from libs.bus import Service
from libs.bus.connection import Connection
from libs.bus.journal import Journal
from libs.bus.kv import Kv
from libs.bus.topology import ADMIN
from libs.contracts import run as events
from libs.contracts.fold import RunState
from libs.contracts.github import ReceiveWebhook
from libs.contracts.ids import derived_id
from libs.contracts.team import RunFollowedUp
from libs.settings import BusSettings
from libs.testkit.broker import broker
from services.forge import incoming
from services.forge.app import GitHubApp
from services.forge.rows import Rows, run_marker
from services.forge.settings import ForgeSettings
from tests.integration.forge.github_server import BOT, REPO, GitHubServer, dump, forge_settings, github_server

SHA, NEXT, MERGED = "a" * 40, "b" * 40, "c" * 40
REPOSITORY = {"id": 1, "full_name": REPO, "clone_url": f"https://github.example/{REPO}.git", "default_branch": "main"}


def user(login: str) -> dict[str, str]:
    return {"login": login, "type": "Bot" if login.endswith("[bot]") else "User"}


def issue(number: int, by: str = "reporter", body: str = "add(1, 2) is -1.", *, pull: bool = False) -> dict[str, Any]:
    url = f"https://github.example/{REPO}/{'pull' if pull else 'issues'}/{number}"
    return {"number": number, "title": "add subtracts", "body": body, "user": user(by), "html_url": url} | (
        {"pull_request": {}} if pull else {}
    )


def pull(number: int, run_id: str, sha: str = SHA) -> dict[str, Any]:
    head = {"ref": f"fix/issue-{number - 100}", "sha": sha, "repo": REPOSITORY}
    return issue(number, BOT, f"What was done.\n\n{run_marker(run_id)}") | {"head": head, "state": "open", "merged": False}


async def settled(admin: Connection, seconds: float = 150) -> None:
    """Wait until every kept webhook is settled."""
    async with asyncio.timeout(seconds):
        while True:
            info = await admin.api("CONSUMER.INFO.HOOKS.forge-hooks", {})
            if info["num_pending"] == info["num_ack_pending"] == 0:
                return
            await asyncio.sleep(0.02)


@dataclass
class World:
    """Everything at hand."""

    settings: BusSettings
    forge: ForgeSettings
    github: GitHubServer
    gateway: Service
    admin: Connection

    @property
    def journal(self) -> Journal:
        return Journal(self.admin)

    @property
    def rows(self) -> Rows:
        return Rows(Kv(self.admin, "GITHUB"))

    async def send(self, event: str, by: str, guid: str = "", **payload: Any) -> str:
        """Deliver a webhook, signed; its GUID."""
        guid = guid or str(uuid.uuid4())
        body = dump({"repository": REPOSITORY, "installation": {"id": 5}, "sender": user(by), **payload})
        headers = {
            "content-type": "application/json",
            "x-github-event": event,
            "x-github-delivery": guid,
            "x-hub-signature-256": "sha256=" + hmac.new(b"secret", body, hashlib.sha256).hexdigest(),
        }
        answer = await self.gateway.bus.ask(ReceiveWebhook(headers=headers, body=body))
        assert answer.status == 202, answer
        return guid

    async def label(self, number: int, by: str = "maintainer", name: str = "agent-coder", guid: str = "") -> str:
        return await self.send("issues", by, guid, action="labeled", issue=issue(number), label={"name": name})

    async def comment(self, number: int, by: str, text: str, comment_id: int, *, on: dict[str, Any] | None = None, guid: str = "") -> str:
        about = {"id": comment_id, "body": text, "user": user(by), "html_url": f"https://github.example/c/{comment_id}"}
        return await self.send("issue_comment", by, guid, action="created", issue=on or issue(number), comment=about)

    async def review(self, number: int, run_id: str, review_id: int, guid: str = "", action: str = "submitted") -> str:
        """A review that GitHub holds is told of."""
        held = next(r for r in self.github.reviews[number] if r["id"] == review_id)
        by = held["user"]["login"]
        return await self.send("pull_request_review", by, guid, action=action, review=held, pull_request=pull(number, run_id))

    def reviewed(self, number: int, review_id: int, by: str, state: str, body: str = "", sha: str = SHA) -> None:
        """GitHub holds a review."""
        held = {"id": review_id, "user": user(by), "state": state, "body": body, "commit_id": sha}
        self.github.reviews.setdefault(number, []).append(held | {"html_url": f"https://github.example/r/{review_id}"})

    async def quiet(self) -> None:
        """Wait until every kept webhook is settled."""
        await settled(self.admin)

    async def run_ids(self) -> list[str]:
        """Every run that was ever opened."""
        info = await self.admin.api("STREAM.INFO.RUN", {"subjects_filter": "run.*.opened"})
        return sorted(subject.split(".")[1] for subject in info["state"].get("subjects") or {})

    async def headers(self, stream: str, subject: str) -> dict[str, str]:
        """Those of the newest message under a subject."""
        reply = await self.admin.call(f"$JS.API.DIRECT.GET.{stream}", json.dumps({"last_by_subj": subject}).encode())
        return dict(reply.headers)

    async def state(self, run_id: str) -> RunState:
        return await self.journal.state(run_id)

    async def kinds(self, run_id: str) -> list[str]:
        return [r.event.type.removeprefix("run.") for r in await self.journal.read(run_id)]

    async def append(self, run_id: str, *after: events.RunEvent) -> None:
        """Put events on a journal, as the other services would."""
        for event in after:
            await self.journal.append(event, follows=(await self.state(run_id)).sequence)

    async def at_work(self, number: int, by: str = "maintainer") -> str:
        """A run that was asked for on issue `number` and is planning."""
        run_id = derived_id("github", await self.label(number, by))
        await self.quiet()
        await self.append(run_id, planned(run_id))
        return run_id

    async def with_pull(self, number: int, by: str = "maintainer") -> str:
        """A run that is finished; its pull request has the number of the issue and 100."""
        run_id = await self.at_work(number, by)
        await self.append(run_id, published(run_id, number + 100), finished(run_id))
        await self.rows.put_pull(1, number + 100, run_id, f"fix/issue-{number}")
        self.github.pulls[number + 100] = pull(number + 100, run_id)
        return run_id

    async def letters(self) -> list[str]:
        return [letter.reason for letter in await self.gateway.bus.dead_letters.list()]


def planned(run_id: str, attempt: int = 1) -> events.RunPlanned:
    plan = events.Plan(steps=(events.PlanStep(title="do it"),))
    return events.RunPlanned(run_id=run_id, attempt=attempt, plan=plan, repository="app", base_branch="main", base_commit=SHA)


def published(run_id: str, number: int, sha: str = SHA) -> events.RunPublished:
    url = f"https://github.example/{REPO}/pull/{number}"
    return events.RunPublished(run_id=run_id, url=url, number=number, sha=sha, repository=REPO, repository_id=1)


def finished(run_id: str) -> events.RunFinished:
    return events.RunFinished(run_id=run_id, attempts=1, branch="fix/issue-7", sha=SHA)


def failed(run_id: str, of: int, step: str = "plan") -> events.RunFailed:
    return events.RunFailed.model_validate({"run_id": run_id, "reason": "the model is gone", "step": step, "of": of})


def followed_up(run_id: str, key: str, source: str) -> RunFollowedUp:
    return RunFollowedUp.model_validate({"run_id": run_id, "by": "github:somebody", "source": source, "feedback": "more", "key": key})


def opened(run_id: str) -> events.RunOpened:
    about = events.Issue(id="7", title="add subtracts")
    return events.RunOpened(run_id=run_id, issue=about, repo="app", opened_at=datetime.now(UTC))


@asynccontextmanager
async def world(tmp_path: Any, *, intake: bool = True) -> AsyncIterator[World]:
    """Everything, with the forge's intake in this process unless a test brings its own."""
    home = tmp_path / "home"
    async with github_server() as github, broker(home) as (_, settings):
        forge = forge_settings(home, github)
        gateway, admin = Service("gateway"), await Connection.open(settings, ADMIN)
        async with gateway.running(settings):
            here = World(settings, forge, github, gateway, admin)
            if intake:
                service = Service("forge")
                incoming.register(service, forge, GitHubApp(forge))
                async with service.running(settings):
                    yield here
            else:
                yield here
        await admin.close()
