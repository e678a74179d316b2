"""A run's state as HTTP shows it. Pure."""

from libs.contracts.fold import RunState
from libs.contracts.run import ChangedFile, CommandRun, Verdict
from services.gateway.models import ArtifactCommit, Change, Links, Result, RunView

_AS_THEY_ARE = ("status", "attempt", "sequence", "published", "merged", "closed", "usage", "why", "pending")


def links(run_id: str) -> Links:
    """Where the parts of a run are."""
    base = f"/api/runs/{run_id}"
    return Links(status_url=base, events_url=f"{base}/events", diff_url=f"{base}/diff", trace_url=f"{base}/trace")


def clone_url(base_url: str, repository: str) -> str:
    """Where git finds a repository of the store."""
    return f"{base_url.rstrip('/')}/git/{repository}.git"


def run_view(state: RunState, base_url: str) -> RunView:
    """Everything about a run; `state.opened` must be there."""
    opened, planned, failed = state.opened, state.planned, state.failed
    assert opened is not None
    return RunView(
        instanceId=state.run_id,
        **{name: getattr(state, name) for name in _AS_THEY_ARE},
        issue=opened.issue,
        repo=opened.repo,
        base=opened.base,
        policy=opened.policy,
        requested_by=opened.requested_by,
        created_at=state.created_at or opened.opened_at,
        updated_at=state.updated_at or opened.opened_at,
        plan=planned.plan if planned else None,
        base_branch=planned.base_branch if planned else None,
        base_commit=planned.base_commit if planned else None,
        changed_files=list(_changed_files(state)),
        commands=list(_commands(state)),
        verdict=_verdict(state),
        rejections=list(state.rejections),
        commit=_change(state, base_url),
        pull_request_url=state.published.url if state.published else None,
        merge_approvals=list(state.merge_approvals),
        follow_ups=list(state.follow_ups),
        comments=[comment.event for comment in state.comments],
        notifications=list(state.notifications),
        replies=list(state.replies),
        failures=list(state.failures),
        thoughts=list(state.thoughts),
        dead_letter=failed.dead_letter if failed else None,
        result=_result(state) if state.ended else None,
        links=links(state.run_id),
    )


def _changed_files(state: RunState) -> tuple[ChangedFile, ...]:
    if state.finished and state.finished.changed_files:
        return state.finished.changed_files
    if state.verified and state.verified.changed_files:
        return state.verified.changed_files
    return state.edited.changed_files if state.edited else ()


def _commands(state: RunState) -> tuple[CommandRun, ...]:
    if state.verified:
        return state.verified.commands
    return state.rejections[-1].commands if state.rejections else ()


def _verdict(state: RunState) -> Verdict | None:
    if state.verified:
        return state.verified.verdict
    return state.rejections[-1].verdict if state.rejections else None


def _change(state: RunState, base_url: str) -> Change | None:
    made = state.committed
    if made is None:
        return None
    return Change(
        repository=made.repository, branch=made.branch, sha=made.sha, message=made.message, clone_url=clone_url(base_url, made.repository)
    )


def _result(state: RunState) -> Result:
    commit = state.committed if state.status == "finished" else None
    return Result(
        ok=state.status == "finished",
        attempts=state.finished.attempts if state.finished else state.attempt,
        changedFiles=[f.path for f in _changed_files(state)],
        artifactCommit=ArtifactCommit(sha=commit.sha, ref=f"refs/heads/{commit.branch}") if commit else None,
        testSummary=state.finished.test_summary if state.finished else "",
    )
