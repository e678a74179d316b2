"""Issues in, runs out: solve, list, show, diff, trace."""

from typing import Annotated, Any

from fastapi import APIRouter, Header, Path, Query, Request, Response
from fastapi.responses import PlainTextResponse
from pydantic import AfterValidator

from libs.contracts.artifact import Diff, DiffResult
from libs.contracts.fold import RunState, RunStatus
from libs.contracts.session import ListRuns, ReadTrace, RunPage, Trace
from services.gateway import runs
from services.gateway.context import BaseUrl, Gateway, Here
from services.gateway.domain import repository_source
from services.gateway.identity.caller import Who
from services.gateway.models import Accepted, DiffView, Line, RunView, SolveRequest, Words
from services.gateway.problems import Problem, documented
from services.gateway.views import links, run_view

router = APIRouter(tags=["runs"])
IssueId = Annotated[Words, Path(min_length=1, max_length=200, examples=["42"])]
RunId = Annotated[str, Path(description="the run's id", examples=["01JDSPVQ6T0000000000000000"]), AfterValidator(runs.run_id_of)]
IdempotencyKey = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        min_length=1,
        max_length=255,
        description="the same request with the same key gives the same run, also when it is sent twice at once",
    ),
]
_TEXT_DIFF: dict[str, Any] = {"text/x-diff": {"schema": {"type": "string"}}}


@router.post(
    "/api/issues/{issue_id}/solve",
    status_code=202,
    response_model=Accepted,
    responses=documented(403, 415),
    summary="Solve an issue",
    openapi_extra={"x-event": "run.opened"},
)
async def solve(
    issue_id: IssueId,
    body: SolveRequest,
    request: Request,
    response: Response,
    here: Here,
    who: Who,
    idempotency_key: IdempotencyKey = None,
) -> Accepted:
    """Answers at once; the run goes on by itself. Follow `events_url`, or ask `status_url`."""
    with here.bus.span("POST /api/issues/{id}/solve", request.headers):
        run_id, before = await runs.open_run(here.bus, here.models, body.command(issue_id), idempotency_key, who)
    where = links(run_id)
    response.headers["Location"] = where.status_url
    if before:
        response.headers["Idempotency-Replayed"] = "true"
    return Accepted(instanceId=run_id, **where.model_dump())


@router.get("/api/runs", responses=documented(), summary="List runs, newest first")
async def list_runs(
    here: Here,
    who: Who,
    cursor: Annotated[Line | None, Query(max_length=200, description="`next_cursor` of the page before")] = None,
    limit: Annotated[int, Query(ge=1, le=100)] = 50,
    status: RunStatus | None = None,
    issue: Annotated[Line | None, Query(max_length=200)] = None,
    repo: Annotated[str | None, Query(max_length=4096), AfterValidator(lambda t: t if t is None else repository_source(t))] = None,
    q: Annotated[Line | None, Query(max_length=200, description="part of the title")] = None,
) -> RunPage:
    """A page of runs as the read model knows them, a moment behind the journals. Runs opened meanwhile move nothing between pages."""
    user = None if who.may("operator") else who.user
    question = ListRuns(tenant=who.tenant, user=user, cursor=cursor, limit=limit, status=status, issue_id=issue, repo=repo, text=q)
    return await here.bus.ask(question)


@router.get("/api/runs/{run_id}", response_model=RunView, responses=documented(404), summary="Show a run")
async def show(run_id: RunId, here: Here, who: Who, base_url: BaseUrl) -> RunView:
    """State, attempt, plan, changed files, commands and their results, commit, cost and why: folded from the journal at this moment."""
    state = await runs.read_state(here.bus, run_id, who)
    if state.opened is None:
        raise Problem(404, "not-found", f"the journal of run {run_id} has no readable opening", "GET /api/runs lists the runs")
    return run_view(state, base_url)


@router.get(
    "/api/runs/{run_id}/diff",
    response_model=DiffView,
    responses=documented(404, 409, 502) | {200: {"description": "The change, as text unless JSON is asked for", "content": _TEXT_DIFF}},
    summary="The change as a unified diff",
)
async def diff(run_id: RunId, request: Request, here: Here, who: Who) -> Any:
    """The commit against its base; before the commit, the newest edit. With `Accept: application/json` also the files."""
    base, head, found = await _diff(here, await runs.read_state(here.bus, run_id, who))
    if "application/json" in request.headers.get("accept", ""):
        return DiffView(base=base, head=head, diff=found.diff, changed_files=list(found.changed_files), truncated=found.truncated)
    headers = {"X-Truncated": "true"} if found.truncated else {}
    return PlainTextResponse(found.diff, headers=headers, media_type="text/x-diff")


async def _diff(here: Gateway, state: RunState) -> tuple[str, str, DiffResult]:
    planned = state.planned
    head = state.committed.sha if state.committed else state.edited.commit if state.edited else None
    if planned is None or head is None:
        raise Problem(409, "no-change-yet", f"the run is {state.status}: nothing is edited yet", "ask again after the event run.edited")
    question = Diff(repository=planned.repository, base=planned.base_commit, head=head)
    return planned.base_commit, head, await here.bus.ask(question)


@router.get("/api/runs/{run_id}/trace", responses=documented(404), summary="The run's trace")
async def trace(run_id: RunId, here: Here, who: Who) -> Trace:
    """The finished spans of the trace that the run was opened in, in order of their start."""
    await runs.read_state(here.bus, run_id, who)
    trace_id = await here.bus.trace_id(run_id)
    if trace_id is None:
        raise Problem(404, "no-trace", f"run {run_id} was opened without a trace", "")
    return await here.bus.ask(ReadTrace(trace_id=trace_id))
