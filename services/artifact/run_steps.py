"""The artifact service's step of a run: commit what was verified."""

from libs.bus import Permanent, Step
from libs.contracts.run import RunCommitted, RunVerified
from services.artifact.domain import FixRequest, Person
from services.artifact.refusals import as_words
from services.artifact.store import Store


async def commit(store: Store, author: Person, event: RunVerified, step: Step) -> RunCommitted:
    """Put the verified tree on the issue's branch. Asked again, the same commit is the answer."""
    state = await step.state()
    if state.opened is None or state.planned is None:
        raise Permanent("The run was verified without having been opened and planned. Open a new run.")
    verified_at = next(recorded.at for recorded in await step.history() if recorded.sequence == step.sequence)
    request = FixRequest(
        run_id=event.run_id,
        issue_id=state.opened.issue.id,
        title=state.opened.issue.title,
        tree=event.commit,
        base_commit=state.planned.base_commit,
        author=author,
        committer=author,
        timestamp=verified_at,
        on_existing_branch=state.opened.policy.on_existing_branch,
        branch=state.committed.branch if state.follow_ups and state.committed else None,
    )
    repository = state.planned.repository
    with as_words():
        done = await store.fixes.commit_fix(repository, request)
    if done.merged:
        await step.progress("status", f"{done.branch} held other changes; the merged tree was not verified as a whole")
    return RunCommitted(
        run_id=event.run_id, attempt=event.attempt, repository=repository, branch=done.branch, sha=done.sha, message=done.message
    )
