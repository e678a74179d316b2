"""One repository on GitHub, as the App sees it. Each method asks for a token with no more than the permission that it needs."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import quote

from services.forge.errors import NotFound, NotInstalled, Refused
from services.forge.tokens import Token

if TYPE_CHECKING:
    from services.forge.app import GitHubApp

Json = Any
Permission = Literal["admin", "write", "read", "none"]
READ: Mapping[str, str] = {"metadata": "read"}
ISSUES: Mapping[str, str] = {"issues": "write"}
PULLS: Mapping[str, str] = {"pull_requests": "write"}
CHECKS: Mapping[str, str] = {"checks": "read"}
STATUSES: Mapping[str, str] = {"statuses": "read"}
CONTENTS: Mapping[str, str] = {"contents": "read"}
MERGE: Mapping[str, str] = {"contents": "write", "pull_requests": "write"}
_ROLES: Mapping[str, Permission] = {
    "admin": "admin",
    "maintain": "write",
    "write": "write",
    "push": "write",
    "triage": "read",
    "read": "read",
    "pull": "read",
}
_PAGE, _PAGES = 100, 30
READY = "mutation($id: ID!) { markPullRequestReadyForReview(input: {pullRequestId: $id}) { pullRequest { isDraft } } }"


class RepositoryClient:
    """What the forge does in one repository. Every method raises GitHubError, NotConfigured or Retryable."""

    def __init__(self, app: "GitHubApp", installation_id: int, full_name: str, repository_id: int | None = None) -> None:
        self.app = app
        self.installation_id = installation_id
        self.full_name = full_name
        self.repository_id = repository_id

    async def describe(self) -> Json:
        """The repository as it is called now: `full_name`, `default_branch`, `archived`; found by its id after a rename."""
        path = f"/repositories/{self.repository_id}" if self.repository_id else f"/repos/{quote(self.full_name)}"
        found = await self.app.with_token(await self.token(READ), "GET", path)
        self.full_name, self.repository_id = str(found["full_name"]), int(found["id"])
        return found

    async def token(self, permissions: Mapping[str, str]) -> Token:
        """A token for this repository and nothing else, also when the App was removed and installed again meanwhile."""
        if self.repository_id is None and permissions != READ:
            await self.describe()
        try:
            return await self.app.token(self.installation_id, self.repository_id, permissions)
        except NotInstalled:
            self.installation_id = await self.app.installation_of(self.full_name)
            return await self.app.token(self.installation_id, self.repository_id, permissions)

    async def call(self, needs: Mapping[str, str], verb: str, path: str, body: Json = None, **parameters: str) -> Json:
        """One request below `/repos/{owner}/{name}`."""
        return await self.app.with_token(await self.token(needs), verb, f"/repos/{quote(self.full_name)}{path}", parameters, body)

    async def pages(self, needs: Mapping[str, str], path: str, key: str = "", **parameters: str) -> list[Json]:
        """All items of a listing, 3,000 at most; `key` names the list where the answer is an object."""
        found: list[Json] = []
        for number in range(1, _PAGES + 1):
            answer = await self.call(needs, "GET", path, per_page=str(_PAGE), page=str(number), **parameters)
            page = answer.get(key, []) if key else answer
            found.extend(page)
            if len(page) < _PAGE:
                break
        return found

    async def permission_of(self, login: str) -> Permission:
        """What a user may do here: `maintain` (and `push`, as roles were once called) counts as `write`, `triage` as `read`."""
        try:
            found = await self.call(READ, "GET", f"/collaborators/{quote(login, safe='')}/permission")
        except NotFound:
            return "none"
        return _ROLES.get(str(found.get("permission")), "none")

    async def may_write(self, login: str) -> bool:
        """Whether a user has write permission here."""
        return await self.permission_of(login) in ("admin", "write")

    async def create_comment(self, number: int, body: str) -> int:
        """A new comment on an issue or pull request; its id."""
        return int((await self.call(ISSUES, "POST", f"/issues/{number}/comments", {"body": body}))["id"])

    async def edit_comment(self, comment_id: int, body: str) -> None:
        """Change a comment of ours. Raises NotFound when somebody deleted it."""
        await self.call(ISSUES, "PATCH", f"/issues/comments/{comment_id}", {"body": body})

    async def find_comment(self, number: int, marker: str) -> int | None:
        """The id of our own comment that holds a marker; a stranger's comment with the same text does not count."""
        us = await self.app.login()
        for comment in await self.pages(ISSUES, f"/issues/{number}/comments"):
            by = (comment.get("user") or {}).get("login")
            if by == us and marker in (comment.get("body") or ""):
                return int(comment["id"])
        return None

    async def has_branch(self, name: str) -> bool:
        """Whether there is a branch of that name."""
        try:
            await self.call(CONTENTS, "GET", f"/branches/{quote(name)}")
        except NotFound:
            return False
        return True

    async def find_pull(self, branch: str, sha: str) -> Json | None:
        """Our pull request of a branch of this very repository: the one whose head is `sha`, else the open one."""
        owner = self.full_name.partition("/")[0]
        found = await self.pages(PULLS, "/pulls", state="all", head=f"{owner}:{branch}")
        ours = [p for p in found if p["head"]["ref"] == branch and (p["head"].get("repo") or {}).get("id") == self.repository_id]
        return next((p for p in ours if p["head"]["sha"] == sha), None) or next((p for p in ours if p["state"] == "open"), None)

    async def pull(self, number: int) -> Json:
        """One pull request."""
        return await self.call(PULLS, "GET", f"/pulls/{number}")

    async def create_pull(self, **fields: Any) -> Json:
        """Open a pull request: `title`, `body`, `head`, `base`, `draft`."""
        return await self.call(PULLS, "POST", "/pulls", fields)

    async def edit_pull(self, number: int, **fields: Any) -> Json:
        """Change a pull request's title or body."""
        return await self.call(PULLS, "PATCH", f"/pulls/{number}", fields)

    async def mark_ready(self, node_id: str) -> None:
        """Turn a draft into a pull request that is ready for review; only GraphQL can."""
        request = {"query": READY, "variables": {"id": node_id}}
        answer = await self.app.with_token(await self.token(PULLS), "POST", "/graphql", body=request)
        if answer.get("errors"):
            raise Refused(200, str(answer["errors"][0].get("message", "no reason given"))[:500])

    async def check_runs(self, sha: str) -> list[Json]:
        """The newest check run of each name on a commit."""
        return await self.pages(CHECKS, f"/commits/{sha}/check-runs", "check_runs", filter="latest")

    async def statuses(self, sha: str) -> list[Json]:
        """The newest status of each context on a commit."""
        return list((await self.call(STATUSES, "GET", f"/commits/{sha}/status", per_page=str(_PAGE)))["statuses"])

    async def merge(self, number: int, sha: str, method: str) -> str:
        """Merge exactly `sha`; the sha of the commit that the merge made. Raises Refused 405 or 409 when GitHub will not."""
        merged = await self.call(MERGE, "PUT", f"/pulls/{number}/merge", {"sha": sha, "merge_method": method})
        return str(merged["sha"])
