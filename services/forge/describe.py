"""Is the GitHub App set up, and does it work? Each thing an administrator did is checked by itself, with what to do when it is wrong."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from libs.bus import Retryable
from libs.contracts.github import Integration, IntegrationCheck
from services.forge.app import GitHubApp
from services.forge.errors import GitHubError, NotConfigured
from services.forge.settings import ForgeSettings

PERMISSIONS: Mapping[str, str] = {
    "metadata": "read",
    "contents": "write",
    "issues": "write",
    "pull_requests": "write",
    "checks": "read",
    "statuses": "read",
}
EVENTS = (
    "issues",
    "issue_comment",
    "pull_request",
    "pull_request_review",
    "pull_request_review_comment",
    "check_run",
    "check_suite",
    "status",
    "repository",
    "repository_dispatch",
)
HOOK_PATH = "/webhooks/github"
_RANK = {"read": 1, "write": 2, "admin": 3}
_UNSET = "Not set up. docs/github.md tells how to make a GitHub App; then set AGENT_CODER_GITHUB_APP_ID."


async def describe(settings: ForgeSettings, app: GitHubApp) -> Integration:
    """The set-up, check by check; the first that makes the others pointless ends the list."""
    if not settings.configured:
        return Integration(configured=False, summary=_UNSET)
    checks = [_key_mode(settings)]
    about: Any = {}
    try:
        about = await app.describe()
        checks.append(_check("the App answers", True, f"{about.get('slug')} at {app.host}"))
        checks.extend(_granted(about))
        checks.append(_hook(settings, await _asked(app.hook)))
        checks.extend(_installed(about, await app.installations()))
    except (GitHubError, NotConfigured, Retryable) as error:
        fix = f"Check AGENT_CODER_GITHUB_APP_ID, the key in {settings.key_file} and that {settings.github_base_url} is reached from here."
        checks.append(_check("the App answers", False, str(error), fix))
    wrong = sum(not c.ok for c in checks)
    summary = f"{about.get('slug', 'the App')} on {app.host}: " + (
        f"{wrong} of {len(checks)} checks failed" if wrong else "all checks passed"
    )
    return Integration(configured=True, summary=summary, checks=tuple(checks))


def _check(name: str, ok: bool, detail: str = "", fix: str = "") -> IntegrationCheck:
    return IntegrationCheck(name=name, ok=ok, detail=detail[:2000], fix="" if ok else fix[:2000])


async def _asked(ask: Any) -> Any:
    """The answer, or None where this GitHub does not tell."""
    try:
        return await ask()
    except GitHubError:
        return None


def _key_mode(settings: ForgeSettings) -> IntegrationCheck:
    path = settings.key_file
    if not path.is_file():
        return _check("private key", False, f"{path} is not there", f"Make a private key on the App's page and put the PEM file to {path}.")
    mode = path.stat().st_mode & 0o777
    return _check("private key", not mode & 0o077, f"{path} has mode {mode:03o}", f"chmod 600 {path}")


def _granted(about: Any) -> Iterator[IntegrationCheck]:
    """A check for each permission and event that is needed."""
    given, events = about.get("permissions") or {}, set(about.get("events") or ())
    for name, level in PERMISSIONS.items():
        has = str(given.get(name, "none"))
        ok = _RANK.get(has, 0) >= _RANK[level]
        yield _check(
            f"permission {name}: {level}", ok, f"the App has {has}", f"Set the repository permission {name} to {level} on the App's page."
        )
    for event in EVENTS:
        yield _check(f"event {event}", event in events, "", f"Tick the event {event} under “Subscribe to events” on the App's page.")


def _hook(settings: ForgeSettings, hook: Any) -> IntegrationCheck:
    wanted = settings.public_url.rstrip("/") + HOOK_PATH
    if hook is None:
        return _check("webhook", True, f"GitHub does not tell its address; it should be {wanted}")
    url, secret = str(hook.get("url") or ""), hook.get("secret")
    fix = f"Set the App's webhook URL to {wanted} (or AGENT_CODER_PUBLIC_URL to where this is reached), with the secret of docs/github.md."
    return _check("webhook", url.rstrip("/") == wanted and bool(secret), f"{url or 'no URL'}, {'a' if secret else 'no'} secret", fix)


def _installed(about: Any, installations: Sequence[Any]) -> Iterator[IntegrationCheck]:
    """Whether somebody installed the App, and whether each accepted the permissions that it has now."""
    names = ", ".join(str((i.get("account") or {}).get("login")) for i in installations[:20])
    yield _check("installations", bool(installations), names, f"Install the App on a repository: {about.get('html_url', '')}")
    for installation in installations:
        who = str((installation.get("account") or {}).get("login"))
        if installation.get("suspended_at"):
            yield _check(f"installation {who}", False, "suspended", "Lift the suspension in the account's settings, under GitHub Apps.")
            continue
        given = installation.get("permissions") or {}
        lacking = [f"{n}: {level}" for n, level in PERMISSIONS.items() if _RANK.get(str(given.get(n)), 0) < _RANK[level]]
        fix = f"The owner of {who} has to accept the App's new permissions."
        yield _check(f"installation {who}", not lacking, f"lacks {', '.join(lacking)}" if lacking else "", fix)
