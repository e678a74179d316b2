"""The repositories of the artifact store: make one, list them, get a short-lived token for git."""

from typing import Annotated

from fastapi import APIRouter, Path, Query, Response

from libs.contracts.artifact import CreateRepository, IssueGitToken, ListRepositories, RepositoryDescription
from services.gateway.context import BaseUrl, Here
from services.gateway.identity.caller import Local
from services.gateway.models import Line, RepositoryPage, RepositoryRequest, RepositoryView, TokenRequest, TokenView
from services.gateway.problems import documented
from services.gateway.views import clone_url

router = APIRouter(tags=["repositories"])
_READ = TokenRequest()


def _view(found: RepositoryDescription, base_url: str) -> RepositoryView:
    return RepositoryView(**found.model_dump(), clone_url=clone_url(base_url, found.name))


@router.get("/api/repos", responses=documented(403), summary="List repositories by name")
async def list_repositories(
    who: Local,
    here: Here,
    base_url: BaseUrl,
    cursor: Annotated[Line | None, Query(max_length=300)] = None,
    limit: Annotated[int, Query(ge=1, le=100)] = 50,
) -> RepositoryPage:
    """The repositories that runs imported and that were made here."""
    page = await here.bus.ask(ListRepositories(cursor=cursor, limit=limit))
    return RepositoryPage(repositories=[_view(r, base_url) for r in page.repositories], next_cursor=page.next_cursor)


@router.post("/api/repos", status_code=201, responses=documented(403, 415), summary="Make an empty repository to push into")
async def create_repository(body: RepositoryRequest, response: Response, who: Local, here: Here, base_url: BaseUrl) -> RepositoryView:
    """One that exists is the answer too."""
    view = _view(await here.bus.ask(CreateRepository(name=body.name)), base_url)
    response.headers["Location"] = view.clone_url
    return view


@router.post("/api/repos/{name:path}/token", responses=documented(403, 404, 415), summary="A short-lived token for git")
async def issue_token(
    name: Annotated[str, Path(min_length=1, max_length=200)], who: Local, here: Here, base_url: BaseUrl, body: TokenRequest = _READ
) -> TokenView:
    """The password for clone (`read`) or push (`write`); it opens one repository and expires."""
    token = await here.bus.ask(IssueGitToken(repository=name, scope=body.scope, expires_in_seconds=body.expires_in_seconds))
    return TokenView(**token.model_dump(), clone_url=clone_url(base_url, token.repository))
