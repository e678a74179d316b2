"""The forge's step that merges. Only people decide: the approvals of the journal for the very commit at the head, asked about once more.

Invariant: the sha that was approved is the sha that is merged (GitHub compares it), and never with red or unfinished checks.
"""

import logging

from libs.bus import Step
from libs.bus.faults import reach
from libs.contracts.fold import RunState
from libs.contracts.run import Policy
from libs.contracts.team import ChecksPassed, MergeApproved, RunMerged
from services.forge.clients import GitHub, Place, together
from services.forge.domain import open_pull, person, standing
from services.forge.errors import GitHubError, NotConfigured, NotFound, Refused
from services.forge.publishing import Desk
from services.forge.pull_text import tame
from services.forge.repository import Json, RepositoryClient
from services.forge.saying import Comments

log = logging.getLogger(__name__)
PURPOSE = "merge"
_NO_CHECK = (
    "This repository has checks, and none has reported on this commit yet: I merge when they are green. "
    "If none runs on pull requests, mark this one as ready for review and approve it once more."
)


async def merge(desk: Desk, comments: Comments, _: MergeApproved | ChecksPassed, step: Step) -> RunMerged | None:
    """Merge when enough people have approved the head of the pull request and its checks are green; else wait for what is missing."""
    state = await step.state()
    if state.published is None or not open_pull(state):
        return None
    try:
        there = await desk.published_in(state)
        text = ""
        try:
            return await _merge(there, state, step, state.published.number)
        except Waits as reason:
            text = str(reason)
        except GitHubError as error:
            text = f"I could not merge this: {error.reason}. I try again at the next approval."
        await comments.put(there, state.published.number, PURPOSE, tame(text), f"{step.run_id}-{step.causation}")
    except (GitHubError, NotConfigured) as error:  # a run that is over does not fail for it
        log.warning("run %s cannot be merged: %s", step.run_id, error)
    return None


class Waits(Exception):
    """Something that a person has to do before the merge; the text says what."""


async def _merge(there: RepositoryClient, state: RunState, step: Step, number: int) -> RunMerged | None:
    pull = await there.pull(number)
    policy = state.opened.policy if state.opened else Policy()
    sha = str(pull["head"]["sha"])
    if pull.get("merged"):
        return await _found_merged(there, state, pull, policy)
    if pull["state"] != "open":
        return None
    outcome = await _checked(there, sha)
    if pull.get("draft") and outcome == "passed":
        await there.mark_ready(str(pull["node_id"]))
    approvers = await counting(there, state, sha)
    if len(approvers) < policy.merge_approvals:
        return None
    if others := await objecting(there, number, sha):
        raise Waits(
            f"Approved by {_names(approvers)}, but {_names(others)} asked for changes of this very commit: I merge nothing against them."
        )
    if outcome == "none" and pull.get("draft"):
        raise Waits(f"Approved by {_names(approvers)}. {_NO_CHECK}")
    if outcome != "passed" and not (outcome == "none" and not state.checks_passed):
        return None
    if policy.merge == "never":
        raise Waits(f"Approved by {_names(approvers)}. The policy of this run leaves the merge to a person with write permission.")
    with step.bus.telemetry.span("merge", "client", vcs__repository__name=there.full_name, vcs__change__id=str(number)):
        try:
            merge_sha = await there.merge(number, sha, policy.merge_method)
        except Refused:
            pull = await there.pull(number)  # somebody may have been faster, this very step in another process too
            if not pull.get("merged"):
                raise
            return await _found_merged(there, state, pull, policy)
    reach("forge", "after_effect", "merged")
    return RunMerged(run_id=state.run_id, sha=sha, merge_sha=merge_sha, method=policy.merge_method, by=approvers)


async def _found_merged(there: RepositoryClient, state: RunState, pull: Json, policy: Policy) -> RunMerged:
    """It is merged already: by us, before a crash, or by hand."""
    who = str((pull.get("merged_by") or {}).get("login") or "")
    ours = who.lower() == (await there.app.login()).lower()
    sha = str(pull["head"]["sha"])
    approvers = tuple(a.by for a in state.merge_approvals if a.sha == sha)[:20]
    return RunMerged(
        run_id=state.run_id,
        sha=sha,
        merge_sha=pull.get("merge_commit_sha") or None,
        method=policy.merge_method if ours else None,
        by=approvers if ours else tuple(map(person, filter(None, [who]))),
    )


async def counting(there: RepositoryClient, state: RunState, sha: str) -> tuple[str, ...]:
    """Who approved exactly `sha`, may write there now, and did not ask for the run."""
    asked = state.opened.requested_by if state.opened else ""
    given = [a.by for a in state.merge_approvals if a.sha == sha and a.by != asked]
    return tuple([by for by in given if await there.may_write(by.removeprefix("github:"))][:20])


async def objecting(there: RepositoryClient, number: int, sha: str) -> tuple[str, ...]:
    """Who asked for changes of exactly `sha`, has said nothing else since, and may write there now."""
    assert there.repository_id is not None
    reviews = await GitHub(there.app).reviews(Place(there.installation_id, there.full_name, there.repository_id), number)
    newest = [standing(reviews, login) for login in dict.fromkeys(r.login for r in reviews if r.login)]
    against = [r.login for r in newest if r is not None and r.state == "CHANGES_REQUESTED" and r.sha == sha]
    return tuple([person(login) for login in against if await there.may_write(login)])


async def _checked(there: RepositoryClient, sha: str) -> str:
    """What all checks of a commit say together: `none`, `pending`, `passed` or `failed`.

    Raises:
        Waits: the App may not read them.
    """
    try:
        return together(await there.check_runs(sha), await there.statuses(sha)).outcome
    except (NotFound, Refused) as error:
        raise Waits(
            f"I cannot see whether the checks are green ({error.reason}). Give the App the permissions checks: read and statuses: read."
        ) from None


def _names(people: tuple[str, ...]) -> str:
    return ", ".join(p.removeprefix("github:") for p in people)
