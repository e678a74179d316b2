"""The forge's steps that bring a run to its end: publish what was committed as a pull request, and finish.

Whatever is made on GitHub is looked for first: the branch by its commit, the pull request by its head branch.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from libs.bus import NeedsHuman, Permanent, Refusal, Retryable, Step
from libs.bus.faults import reach
from libs.contracts.artifact import Diff, ListTree, PushBranch
from libs.contracts.fold import Recorded, RunState
from libs.contracts.run import RunCommitted, RunFinished, RunPlanned, RunPublished
from libs.contracts.team import TEXT, RunFollowedUp
from libs.scanner import describe, scan, scan_diff
from services.forge import pull_text
from services.forge.app import GitHubApp
from services.forge.errors import GitHubError, NotConfigured, NotFound, NotInstalled, Refused
from services.forge.repository import Json, RepositoryClient
from services.forge.rows import Rows

_DIFF_CHARACTERS = 4_000_000
_WORKFLOWS = ".github/workflows/"
_AGAIN = "Approve to try again when that is done; deny to end the run."


@dataclass(frozen=True)
class Desk:
    """What the steps work with. `rows` is there while the service runs."""

    app: GitHubApp
    rows: Callable[[], Rows]

    def links(self, state: RunState) -> pull_text.Links:
        """Where people find the run, and the issue that it closes."""
        target = state.opened.github if state.opened else None
        return pull_text.Links(self.app.settings.public_url, target.number if target else None)

    async def published_in(self, state: RunState) -> RepositoryClient:
        """The repository of a run's pull request, by the name that it has now. Raises GitHubError, Retryable, NotConfigured."""
        there = await home_of(self.app, state)
        if there is None:
            raise NotInstalled(404, "the App is not installed where the pull request is")
        await there.describe()
        return there


async def publish(desk: Desk, event: RunCommitted, step: Step) -> RunPublished | RunFinished | RunFollowedUp:
    """Push the commit and show it as a pull request; a run of a repository that belongs to no installation ends here."""
    state = await step.state()
    with asking_people():
        there = await home_of(desk.app, state)
        if there is None:
            return ending(state, event)
        if not state.approved("publish", step.sequence):
            await inspect(desk, state, event, step)
        about = await there.describe()
        if about.get("archived"):
            raise NeedsHuman(f"{there.full_name} is archived and takes no change. Unarchive it. {_AGAIN}")
        await push(desk, there, state, event, step)
        reach("forge", "after_effect", "pushed")
        pull = await show(desk, there, about, state, event, step)
        reach("forge", "after_effect", "pull_made")
    assert there.repository_id is not None
    await desk.rows().put_pull(there.repository_id, int(pull["number"]), event.run_id, event.branch)
    return _published(there, pull, event)


def _published(there: RepositoryClient, pull: Json, event: RunCommitted) -> RunPublished:
    return RunPublished(
        run_id=event.run_id,
        url=str(pull["html_url"]),
        number=int(pull["number"]),
        sha=event.sha,
        repository=there.full_name,
        repository_id=there.repository_id,
        branch=event.branch,
        draft=bool(pull.get("draft")),
    )


async def finish(_: RunPublished, step: Step) -> RunFinished | RunFollowedUp:
    """End the run whose pull request is out, or work on what was said meanwhile."""
    state = await step.state()
    if state.committed is None:
        raise Permanent("the run was published without having been committed")
    return ending(state, state.committed)


def ending(state: RunState, event: RunCommitted) -> RunFinished | RunFollowedUp:
    """The end of a run whose change is out; comments that no attempt has seen make the next one."""
    if not state.unseen:
        return finished(event, state)
    words = "\n\n".join(f"{c.by} ({c.source.replace('_', ' ')}):\n{c.text}" for c in state.unseen)
    last = state.unseen[-1]
    return RunFollowedUp(
        run_id=event.run_id, by=last.by, source=last.source, feedback=words[:TEXT], url=last.url, key=f"unseen:{last.key}"[:300]
    )


def finished(event: RunCommitted, state: RunState) -> RunFinished:
    """The end of a run whose change is committed, and published where it is to be."""
    edited = state.edited.changed_files if state.edited else ()
    return RunFinished(
        run_id=event.run_id,
        attempts=event.attempt,
        changed_files=(state.verified.changed_files if state.verified else ()) or edited,
        branch=event.branch,
        sha=event.sha,
        test_summary=summarise_tests(state),
        usage=state.usage,
    )


def summarise_tests(state: RunState) -> str:
    """The counts of the last test run, or the verdict in a word."""
    if state.verified is None:
        return ""
    last = next((run for run in reversed(state.verified.commands) if run.phase in ("test", "rerun")), None)
    if last is None or last.passed is None:
        return state.verified.verdict.outcome.replace("_", " ")
    counts = ((last.passed, "passed"), (last.failed, "failed"), (last.skipped, "skipped"))
    return ", ".join(f"{number} {word}" for number, word in counts if number or (number == 0 and word != "skipped"))


@contextmanager
def asking_people() -> Iterator[None]:
    """A no of GitHub, or of the App's set-up, waits for a person who can change it."""
    try:
        yield
    except (GitHubError, NotConfigured) as error:
        raise NeedsHuman(f"{error}. See the set-up in docs/github.md, or `agent-coder doctor`. {_AGAIN}") from error


async def home_of(app: GitHubApp, state: RunState) -> RepositoryClient | None:
    """The repository on GitHub that a run is about; None when the App has nothing to do with it."""
    opened = state.opened
    if opened is None:
        return None
    if opened.github is not None:
        return app.repository(opened.github.installation_id, opened.github.repository, opened.github.repository_id)
    name = app.full_name_of(opened.repo) if app.settings.configured else None
    try:
        return app.repository(await app.installation_of(name), name) if name else None
    except NotInstalled:
        return None


async def inspect(desk: Desk, state: RunState, event: RunCommitted, step: Step) -> None:
    """Look for secrets in all that is about to leave: the change, the commit's message, the pull request's text.

    Raises:
        NeedsHuman: something looks like one, or the change is too large to look at.
    """
    base = left_from(await step.history())
    order = Diff(repository=event.repository, base=base, head=event.sha, each_commit=True, max_characters=_DIFF_CHARACTERS)
    found = await step.ask(order)
    if found.truncated:
        raise NeedsHuman("The change is too large to be looked through for secrets. Approve to publish it as it is, deny to end the run.")
    text = pull_text.body(state, event, desk.links(state))
    hits = await asyncio.to_thread(lambda: (*scan_diff(found.diff), *scan(event.message, "the commit's message"), *scan(text)))
    if hits:
        raise NeedsHuman(
            f"What is to be published seems to hold a secret: {describe(hits)}. Approve to publish it all the same, deny to end the run."
        )


def left_from(history: Sequence[Recorded]) -> str:
    """The newest commit of the run that was published, else where its first attempt began: an attempt may build on one that never left."""
    events = [r.event for r in history]
    published = [e.sha for e in events if isinstance(e, RunPublished)]
    planned = [e.base_commit for e in events if isinstance(e, RunPlanned)]
    if not planned:
        raise Permanent("the run was committed without having been planned")
    return published[-1] if published else planned[0]


async def push(desk: Desk, there: RepositoryClient, state: RunState, event: RunCommitted, step: Step) -> None:
    """Bring the commit to its branch on GitHub, with a token that may write contents of this repository and nothing else.

    Raises:
        NeedsHuman: GitHub took no push; in its words, and what to do.
    """
    changed = (f.path for f in (state.verified.changed_files if state.verified else ()))
    more = {"workflows": "write"} if any(path.startswith(_WORKFLOWS) for path in changed) else {}
    token = await there.token({"contents": "write"} | more)
    url = f"{desk.app.web_url}/{there.full_name}.git"
    order = PushBranch(
        repository=event.repository, url=url, branch=event.branch, sha=event.sha, username="x-access-token", token=token.value
    )
    try:
        with step.bus.telemetry.span(
            f"push {event.branch}", "client", vcs__repository__name=there.full_name, vcs__ref__head__name=event.branch
        ):
            await step.ask(order)
    except Refusal as refusal:
        if refusal.retryable:
            raise
        if refusal.code == "authentication_required":
            desk.app.tokens.drop(token=token)
            raise Retryable(refusal.detail) from None
        raise NeedsHuman(f"{refusal.detail}{_advice(refusal)} {_AGAIN}") from None


def _advice(refusal: Refusal) -> str:
    said = refusal.detail.lower()
    if refusal.code == "not_fast_forward":
        return " Or ask for another attempt, which starts from what the branch holds there."
    if "protected" in said or "gh006" in said or "gh013" in said or "rule" in said:
        return " A rule of the repository protects this branch: let the App by, or leave branches that begin with fix/ out of it."
    if "workflow" in said:
        return " The change touches workflows: give the App the permission workflows: write."
    return ""


async def show(desk: Desk, there: RepositoryClient, about: Json, state: RunState, event: RunCommitted, step: Step) -> Json:
    """The pull request of the branch, brought up to date, or made."""
    text = pull_text.body(state, event, desk.links(state))
    with step.bus.telemetry.span("pull request", "client", vcs__repository__name=there.full_name) as span:
        pull = await there.find_pull(event.branch, event.sha)
        if pull is None:
            base = await base_of(there, about, state)
            draft = await has_checks(there, state, event, step)
            pull = await make(
                there, event, {"title": pull_text.title(event), "body": text, "head": event.branch, "base": base, "draft": draft}
            )
        elif pull["state"] == "open" and (new := pull_text.updated(pull.get("body") or "", text)) != pull.get("body"):
            pull = await there.edit_pull(int(pull["number"]), body=new)
        span.set_attribute("vcs.change.id", str(pull["number"]))
        return pull


async def make(there: RepositoryClient, event: RunCommitted, fields: dict[str, Any]) -> Json:
    """A new pull request; one that somebody made at the same time is the answer, and no draft where there are none."""
    try:
        return await there.create_pull(**fields)
    except Refused as error:
        if error.status == 422 and "draft" in error.reason.lower() and fields["draft"]:
            return await make(there, event, fields | {"draft": False})
        found = await there.find_pull(event.branch, event.sha) if error.status == 422 else None
        if found is None:
            raise
        return found


async def base_of(there: RepositoryClient, about: Json, state: RunState) -> str:
    """The branch that the change goes to: the one asked for where it is a branch there, else the default branch."""
    default, wanted = str(about["default_branch"]), state.opened.base if state.opened else None
    if not wanted or wanted == default:
        return default
    name = wanted.removeprefix("refs/heads/")
    return name if await there.has_branch(name) else default


async def has_checks(there: RepositoryClient, state: RunState, event: RunCommitted, step: Step) -> bool:
    """Whether the repository checks its changes: it has workflows, or something reported on the commit or on the one before it."""
    tree = await step.ask(ListTree(repository=event.repository, commit=event.sha))
    if any(e.path.startswith(_WORKFLOWS) and e.path.endswith((".yml", ".yaml")) for e in tree.entries):
        return True
    base = (state.planned.base_commit,) if state.planned else ()
    for sha in (event.sha, *base):
        try:
            if await there.check_runs(sha) or await there.statuses(sha):
                return True
        except (NotFound, Refused):  # the commit is not there, or the App may not read checks
            continue
    return False
