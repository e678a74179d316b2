"""GitHub as the intake of webhooks needs it. Each call may raise Retryable (away, a rate limit), GitHubError or NotConfigured."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from services.forge.app import GitHubApp
from services.forge.errors import NotFound, NotInstalled
from services.forge.repository import RepositoryClient

Json = Mapping[str, Any]
_ISSUES, _PULLS = {"issues": "read"}, {"pull_requests": "read"}
_PASSED = frozenset({"success", "neutral", "skipped"})
_FAILED = frozenset({"failure", "error", "timed_out", "startup_failure"})


@dataclass(frozen=True)
class Place:
    """A repository (`owner/name`) and the installation that reaches it."""

    installation_id: int
    repository: str
    repository_id: int


@dataclass(frozen=True)
class Review:
    """A review as GitHub has it now; `state` is `APPROVED`, `CHANGES_REQUESTED`, `COMMENTED`, `DISMISSED` or `PENDING`."""

    id: int
    login: str
    state: str
    body: str
    sha: str
    url: str


@dataclass(frozen=True)
class ReviewComment:
    """A comment of a review, on a line of a file; `line` is absent on a file as a whole and on lines that are gone."""

    path: str
    line: int | None
    body: str


@dataclass(frozen=True)
class Checks:
    """What check runs and commit statuses of a commit say together; `failures` names each that failed, with its summary."""

    outcome: Literal["none", "pending", "passed", "failed"]
    failures: tuple[str, ...] = ()


@dataclass(frozen=True)
class HookDelivery:
    """One try of GitHub to deliver a webhook of the App; all tries of one event have the same `guid`."""

    id: int
    guid: str
    at: datetime
    ok: bool


def together(check_runs: Sequence[Json], statuses: Sequence[Json]) -> Checks:
    """One verdict; nothing has failed while something still runs, or was stopped by a person."""
    said = [_said(str(c.get("name")), c.get("conclusion") or c.get("status"), (c.get("output") or {}).get("summary")) for c in check_runs]
    said += [_said(str(s.get("context")), s.get("state"), s.get("description")) for s in statuses]
    outcomes = {outcome for outcome, _ in said}
    if "pending" in outcomes or not said:
        return Checks("pending" if said else "none")
    return Checks("failed", tuple(words for outcome, words in said if outcome == "failed")) if "failed" in outcomes else Checks("passed")


def _said(name: str, word: Any, summary: Any) -> tuple[str, str]:
    outcome = "passed" if word in _PASSED else "failed" if word in _FAILED else "pending"
    return outcome, f"{name}: {word}" + (f", {' '.join(str(summary).split())[:1000]}" if summary else "")


class GitHub:
    """GitHub, by the App's client."""

    def __init__(self, app: GitHubApp) -> None:
        self._app = app

    async def slug(self) -> str:
        """The App's name in addresses; its user is `<slug>[bot]`."""
        return await self._app.slug()

    async def installation_of(self, repository: str) -> int | None:
        """The installation that reaches a repository; None when there is none."""
        try:
            return await self._app.installation_of(repository)
        except NotInstalled:
            return None

    async def may_write(self, place: Place, login: str) -> bool:
        """Whether a user has write permission."""
        return await self.at(place).may_write(login)

    async def issue(self, place: Place, number: int) -> Json | None:
        """An issue; None when it is gone."""
        try:
            found: Json = await self.at(place).call(_ISSUES, "GET", f"/issues/{number}")
        except NotFound:
            return None
        return found

    async def head_of(self, place: Place, number: int) -> str | None:
        """The newest commit of a pull request that is open; None when it is not."""
        try:
            found = await self.at(place).pull(number)
        except NotFound:
            return None
        return str(found["head"]["sha"]) if found["state"] == "open" else None

    async def reviews(self, place: Place, number: int) -> tuple[Review, ...]:
        """All reviews of a pull request, oldest first."""
        found = await self.at(place).pages(_PULLS, f"/pulls/{number}/reviews")
        return tuple(
            Review(
                id=int(r["id"]),
                login=str((r.get("user") or {}).get("login") or ""),
                state=str(r.get("state") or "").upper(),
                body=str(r.get("body") or ""),
                sha=str(r.get("commit_id") or ""),
                url=str(r.get("html_url") or ""),
            )
            for r in found
        )

    async def review_comments(self, place: Place, number: int, review_id: int) -> tuple[ReviewComment, ...]:
        """The comments of one review, in GitHub's order."""
        found = await self.at(place).pages(_PULLS, f"/pulls/{number}/reviews/{review_id}/comments")
        lines = ((c.get("line") or c.get("original_line"), c) for c in found)
        return tuple(ReviewComment(str(c.get("path") or ""), line, str(c.get("body") or "")) for line, c in lines)

    async def checks(self, place: Place, sha: str) -> Checks:
        """What the checks of a commit say."""
        there = self.at(place)
        return together(await there.check_runs(sha), await there.statuses(sha))

    async def deliveries(self) -> tuple[HookDelivery, ...]:
        """The newest tries of the App's webhook, the newest first."""
        found = await self._app.deliveries()
        return tuple(
            HookDelivery(int(d["id"]), str(d["guid"]), datetime.fromisoformat(str(d["delivered_at"])), 200 <= int(d["status_code"]) < 300)
            for d in found
        )

    async def redeliver(self, delivery_id: int) -> None:
        """Ask GitHub to deliver once more."""
        await self._app.redeliver(delivery_id)

    def forget(self, installation_id: int) -> None:
        """Drop the tokens of an installation that was suspended, removed or changed."""
        self._app.drop_tokens(installation_id)

    def at(self, place: Place) -> RepositoryClient:
        """The client of a repository."""
        return self._app.repository(place.installation_id, place.repository, place.repository_id)
