"""Pushes one commit to a branch elsewhere, over HTTPS and never by force.

Invariant: what the remote had is still in it afterwards, and asking twice leaves what asking once left.
"""

import ipaddress
import re
from dataclasses import replace
from urllib.parse import urlsplit

from services.artifact.credentials import presenting
from services.artifact.domain import Limits, Login
from services.artifact.errors import Contended, GitTimedOut, NotFastForward, PushRefused, SourceRefused, SourceUnreachable
from services.artifact.git import Git
from services.artifact.importing import explain
from services.artifact.names import RemoteSource, check_sha, parse_source
from services.artifact.repositories import Repositories

_WORDS_KEPT = 1500


class Pusher:
    """Carries commits to other servers."""

    def __init__(self, repositories: Repositories) -> None:
        self._repositories = repositories

    async def push(self, name: str, url: str, branch: str, sha: str, login: Login) -> bool:
        """Points `branch` of the repository at `url` to `sha`; False when it was there already.

        Raises SourceRefused (no https URL), UnknownCommit, NotFastForward, PushRefused (the remote's words), AuthenticationRequired,
        RepositoryNotFound, SourceUnreachable and Contended (retryable).
        """
        place = _remote(url)
        git = self._repositories.git(name)
        await self._repositories.commit(name, check_sha(sha))
        if (await git.run("check-ref-format", f"refs/heads/{branch}", ok=(0, 1))).code or branch.startswith("-"):
            raise PushRefused(f"{branch[:200]!r} is no name of a branch.")
        limits = self._repositories.limits
        connected = replace(git, protocols=(place.protocol,), timeout_seconds=limits.import_timeout_seconds)
        return await _push(connected, place.url, branch, sha, login, limits)


async def _push(git: Git, url: str, branch: str, sha: str, login: Login, limits: Limits) -> bool:
    ref = f"refs/heads/{branch}"
    try:
        with presenting(git, url, login) as able:
            result = await able.run("push", "--porcelain", "--no-verify", "--recurse-submodules=no", url, f"{sha}:{ref}", ok=range(256))
    except GitTimedOut:
        raise SourceUnreachable(f"The push to {url} did not end within {git.timeout_seconds:g} seconds. It will be tried again.") from None
    flag, summary = _outcome(result.stdout.decode("utf-8", "replace"), ref)
    if flag in ("*", " ", "="):
        return flag != "="
    if flag is None and "error: 403" in result.stderr:
        raise PushRefused(f"{url} refused the push to {branch}: {_words('', result.stderr)}")
    if flag is None:
        raise explain(result.stderr, url, limits)
    if re.search(r"non-fast-forward|fetch first|stale info|needs force", summary):
        raise NotFastForward(
            f"{branch} at {url} holds commits that this change does not build on. Merge or remove them there, or work on the branch anew."
        )
    if "cannot lock ref" in result.stderr or "failed to update ref" in summary:
        raise Contended(f"Somebody else pushed to {branch} at {url} at the same time. It will be tried again.")
    raise PushRefused(f"{url} refused the push to {branch}: {_words(summary, result.stderr)}")


def _outcome(porcelain: str, ref: str) -> tuple[str | None, str]:
    """Flag and summary of the one reference (git-push(1), OUTPUT); (None, "") when git did not come that far."""
    for line in porcelain.splitlines():
        flag, _, rest = line.partition("\t")
        if rest.partition("\t")[0].endswith(f":{ref}"):
            return flag or " ", rest.partition("\t")[2]
    return None, ""


def _words(summary: str, stderr: str) -> str:
    """What the remote said, its `remote:` lines first."""
    said = [line.removeprefix("remote:").strip() for line in stderr.splitlines() if line.startswith("remote:")]
    return " ".join(filter(None, [summary, *said]))[:_WORDS_KEPT] or "it gave no reason"


def _remote(url: str) -> RemoteSource:
    """The address of a push: https, or http to this machine (tests, a proxy beside us)."""
    place = parse_source(url, allow_local_paths=False)
    if isinstance(place, RemoteSource) and (place.protocol == "https" or (place.protocol == "http" and _loopback(place.url))):
        return place
    raise SourceRefused("Commits are pushed to https addresses only.")


def _loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
