"""The links of our mails: a page that shows the question and asks once more, and the act itself (also RFC 8058, one-click unsubscribe)."""

from typing import Annotated, Any

from fastapi import APIRouter, Path, Request
from fastapi.responses import HTMLResponse, JSONResponse, Response

from libs.bus import Permanent, Refusal, Retryable
from libs.contracts.mail import DecideByLink, DecisionView
from services.gateway.context import Here
from services.gateway.pages import HEADERS, decision_page, problem_page
from services.gateway.problems import Problem, documented, of_error

router = APIRouter(tags=["mail"])
Token = Annotated[str, Path(min_length=1, max_length=512, pattern=r"^[A-Za-z0-9._~=-]+$")]
_PAGE: dict[str, Any] = {"text/html": {"schema": {"type": "string"}}}
_RESPONSES: dict[int | str, dict[str, Any]] = {
    **{status: said | {"content": said["content"] | _PAGE} for status, said in documented(403, 404, 409, 410, 429).items()},
    200: {"content": _PAGE},
}


@router.get("/mail/decisions/{token}", response_model=DecisionView, responses=_RESPONSES, summary="Look at what a link of a mail decides")
async def show_decision(token: Token, request: Request, here: Here) -> Response:
    """Changes nothing, so that programs that follow links decide nothing."""
    return await _answer(request, here, DecideByLink(token=token))


@router.post("/mail/decisions/{token}", response_model=DecisionView, responses=_RESPONSES, summary="Decide by a link of a mail")
async def take_decision(token: Token, request: Request, here: Here) -> Response:
    """Used twice, it says what was decided."""
    return await _answer(request, here, DecideByLink(token=token, confirmed=True))


async def _answer(request: Request, here: Here, question: DecideByLink) -> Response:
    as_page = "application/json" not in request.headers.get("accept", "text/html")
    try:
        with here.bus.span(f"{request.method} /mail/decisions/{{token}}", {}):
            view = await here.bus.ask(question)
    except (Problem, Refusal, Retryable, Permanent) as error:
        problem = of_error(error)
        if not as_page:
            raise problem from error
        return HTMLResponse(problem_page(problem), problem.status, problem.headers | HEADERS)
    if as_page:
        return HTMLResponse(decision_page(view), headers=HEADERS)
    return JSONResponse(view.model_dump(mode="json", exclude_none=True), headers=HEADERS)
