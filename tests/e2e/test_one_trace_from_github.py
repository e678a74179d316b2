"""A run that came from GitHub is one trace: the webhook, each step, the push, the pull request, the comment, and what is asked next."""

import asyncio
import hashlib
import hmac
import json
from typing import Any

from libs.testkit.product import FAST, Product, product
from tests.faults.story import script
from tests.integration.forge.github_out import GitHubOut, Repo, serving
from tests.integration.forge.hooks_world import issue, user
from tests.integration.forge.out_world import FULL, key_pair, source

SECRET = "webhook-secret-of-the-test"
EXPECTED = {
    "POST /webhooks/github",
    "process github issues",
    "process run.opened",
    "send run.planned",
    "send run.edited",
    "process run.verified",
    "process run.committed",
    "push fix/issue-7",
    "pull request",
    "process run.published",
    "comment status",
    "send run.follow_up",
}


async def deliver(running: Product, github: GitHubOut, repo: Repo, event: str, guid: str, **payload: Any) -> None:
    """A signed webhook of GitHub about something that `maintainer` did."""
    about = {"id": repo.id, "full_name": repo.full_name, "default_branch": "main", "clone_url": f"{github.url}/{repo.full_name}.git"}
    whole = {"repository": about, "installation": {"id": 5}, "sender": user("maintainer"), **payload}
    body = json.dumps(whole, ensure_ascii=False).encode()
    headers = {
        "X-GitHub-Event": event,
        "X-GitHub-Delivery": guid,
        "X-Hub-Signature-256": f"sha256={hmac.new(SECRET.encode(), body, hashlib.sha256).hexdigest()}",
        "Content-Type": "application/json",
        "Authorization": "",
    }
    answer = await running.client.post("/webhooks/github", content=body, headers=headers)
    assert answer.status_code == 202, answer.text


async def test_a_run_from_github_is_one_trace(tmp_path):
    home = tmp_path / "home"
    public = key_pair(home)
    async with serving(lambda: GitHubOut(tmp_path, public)) as github:
        repo = github.create(FULL, source(tmp_path / "source"))
        repo.permissions["maintainer"] = "write"
        environment = {
            **FAST,
            "AGENT_CODER_GITHUB_BASE_URL": github.url,
            "AGENT_CODER_GITHUB_APP_ID": "77",
            "AGENT_CODER_GITHUB_WEBHOOK_SECRET": SECRET,
        }
        async with product(home, f"scripted:{script(tmp_path)}", "--split", environment=environment) as running:
            await deliver(running, github, repo, "issues", "d-1", action="labeled", issue=issue(7), label={"name": "agent-coder"})
            run_id = ""
            async with asyncio.timeout(60):
                while not run_id:
                    found = (await running.client.get("/api/runs")).json()["runs"]
                    run_id = found[0]["run_id"] if found else ""
                    await asyncio.sleep(0.1)
            shown = await running.wait(run_id)
            assert (shown["status"], len(repo.pulls)) == ("finished", 1), f"{shown['why']}\n{running.log()}"
            said = {"id": 1, "body": "/solve 再写一个注释", "user": user("maintainer"), "html_url": f"{github.url}/c/1"}
            await deliver(running, github, repo, "issue_comment", "d-2", action="created", issue=issue(7), comment=said)
            names: set[str] = set()
            try:
                async with asyncio.timeout(60):
                    while not names >= EXPECTED:
                        trace = (await running.client.get(f"/api/runs/{run_id}/trace")).json().get("spans", [])
                        names = {span["name"] for span in trace}
                        await asyncio.sleep(0.2)
            except TimeoutError:
                raise AssertionError(f"missing: {EXPECTED - names}\n{running.log()}") from None
            assert [s["name"] for s in trace if s.get("parent_id") is None] == ["POST /webhooks/github"]
            assert {s["service"] for s in trace} >= {"gateway", "forge", "planner", "editor", "verifier", "artifact"}
            follow_up = next(s for s in trace if s["name"] == "send run.follow_up")
            assert follow_up["links"], "it leads to the webhook that asked"
