"""Every error as `application/problem+json` (RFC 9457): what happened, and in `next` what to do about it.

Exception
└── Problem   raised anywhere below a route; everything else that a route may raise is mapped to one here, by type
"""

import logging
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException
from starlette.routing import BaseRoute, Match, Route

from libs.bus import Permanent, Refusal, Retryable

log = logging.getLogger(__name__)
MEDIA_TYPE = "application/problem+json"
RETRY_AFTER_SECONDS = 5


class FieldFault(BaseModel):
    """One fault of a request."""

    field: str
    message: str


class ProblemBody(BaseModel):
    """RFC 9457, with `code` (stable, for programs), `next` (for people) and the faults of single fields."""

    type: str = Field(examples=["urn:agent-coder:problem:not-found"])
    title: str
    status: int
    detail: str = ""
    instance: str = Field(default="", description="path of the request")
    code: str = Field(examples=["not-found"])
    next: str = Field(default="", description="what to do about it")
    errors: list[FieldFault] = Field(default_factory=list)


class OpenAIErrorBody(BaseModel):
    """An error below /v1: `error` holds `message`, `type`, `param` and `code`."""

    error: dict[str, str | None]


class Problem(Exception):
    """A request cannot be served; `code` names the reason for programs, `next_step` says what to do."""

    def __init__(
        self,
        status: int,
        code: str,
        detail: str,
        next_step: str = "",
        *,
        headers: dict[str, str] | None = None,
        errors: tuple[FieldFault, ...] = (),
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.code = code
        self.detail = detail
        self.next_step = next_step
        self.headers = headers or {}
        self.errors = errors

    def body(self, path: str) -> ProblemBody:
        """The problem as it is sent."""
        return ProblemBody(
            type=f"urn:agent-coder:problem:{self.code}",
            title=HTTPStatus(self.status).phrase,
            status=self.status,
            detail=self.detail,
            instance=path,
            code=self.code,
            next=self.next_step,
            errors=list(self.errors),
        )


def openai_error(problem: Problem) -> dict[str, Any]:
    """A problem in the shape that OpenAI's clients read."""
    kinds = {
        401: "authentication_error",
        402: "insufficient_quota",
        403: "permission_error",
        404: "not_found_error",
        429: "rate_limit_error",
    }
    kind = kinds.get(problem.status, "server_error" if problem.status >= 500 else "invalid_request_error")
    message = f"{problem.detail}: {problem.next_step}" if problem.next_step else problem.detail
    param = problem.errors[0].field.removeprefix("body.") if problem.errors else None
    return {"error": {"message": message, "type": kind, "param": param, "code": problem.code.replace("-", "_")}}


def response(problem: Problem, path: str) -> JSONResponse:
    """A problem as an answer: below /v1 in OpenAI's shape."""
    if path.startswith("/v1/"):
        return JSONResponse(openai_error(problem), problem.status, problem.headers)
    body = problem.body(path.encode("utf-8", "replace").decode()).model_dump(exclude_defaults=True)
    return JSONResponse(body, problem.status, problem.headers, MEDIA_TYPE)


def not_found(what: str, next_step: str) -> Problem:
    """There is no such thing."""
    return Problem(404, "not-found", what, next_step)


def unavailable(detail: str, after: float | None = None) -> Problem:
    """Something that is needed does not answer at the moment."""
    seconds = max(1, round(after or RETRY_AFTER_SECONDS))
    return Problem(
        503,
        "unavailable",
        detail,
        "try again in a moment; GET /readyz says which service is missing",
        headers={"Retry-After": str(seconds)},
    )


_REFUSALS: dict[str, tuple[int, str]] = {
    "not_found": (404, ""),
    "repository_not_found": (404, "GET /api/repos lists the repositories"),
    "empty_repository": (409, "push a first commit"),
    "unknown_base": (422, "name an existing branch as base, or leave it out"),
    "authentication_required": (401, "send a token: POST /api/repos/{name}/token makes one"),
    "bad_token": (401, "make a new token: POST /api/repos/{name}/token"),
    "bad_name": (422, "use letters, digits, '-', '_' and '.'"),
    "bad_cursor": (422, "start again without a cursor"),
    "too_large": (413, "send less at once"),
    "conflict": (409, "use a new id"),
    "bad_parent": (422, "name a message of this session"),
    "readonly": (409, "write to a block that is writable"),
    "over_limit": (422, "shorten it first"),
    "wrong_kind": (409, ""),
    "no_model": (503, "set MODEL and restart, or name a configured model"),
    "budget_exceeded": (402, "GET /api/usage shows what was used"),
    "rate_limited": (429, "try again in a moment"),
    "upstream": (502, "try again, or name another model"),
    "source_refused": (422, ""),
    "not_configured": (503, "agent-coder doctor says what to set"),
    "bad_signature": (401, "sign with the webhook secret of the App"),
    "bad_secret": (401, "send the mail's webhook secret as a bearer token or as a basic password"),
    "bad_payload": (400, ""),
    "missing": (404, "use the link as it is in the mail"),
    "invalid": (404, "use the link as it is in the mail"),
    "expired": (410, "agent-coder show RUN tells where the run is; answer there"),
    "wrong_sender": (403, "answer from the address that the mail was sent to"),
    "used": (409, ""),
    "unreachable": (502, "check the URL and the network, then try again"),
}


def of_refusal(refusal: Refusal) -> Problem:
    """A service's no as a problem."""
    if refusal.retryable and refusal.code not in _REFUSALS:
        return unavailable(refusal.detail, refusal.after)
    status, next_step = _REFUSALS.get(refusal.code, (422, ""))
    headers = {"WWW-Authenticate": 'Basic realm="agent-coder", charset="UTF-8"'} if status == 401 else {}
    if status in (429, 503):
        headers["Retry-After"] = str(max(1, round(refusal.after or RETRY_AFTER_SECONDS)))
    return Problem(status, refusal.code.replace("_", "-"), refusal.detail, next_step, headers=headers)


def of_error(error: Exception) -> Problem:
    """What the bus raised as a problem; anything else is a bug and hides its text."""
    match error:
        case Problem():
            return error
        case Refusal():
            return of_refusal(error)
        case Retryable():
            return unavailable(str(error), error.after)
        case Permanent():
            return Problem(422, "refused", str(error))
        case _:
            return Problem(500, "internal", "the server failed on this request", "the server's log has the reason; report it as a bug")


def of_http(error: HTTPException) -> Problem:
    """The framework's own refusals: no such path, wrong method, an unreadable body."""
    hints = {
        400: "check that the body is valid JSON in UTF-8",
        404: "GET /openapi.json lists the paths",
        405: "GET /openapi.json lists the methods of each path",
        413: "send less at once",
    }
    code = HTTPStatus(error.status_code).phrase.lower().replace(" ", "-")
    return Problem(error.status_code, code, str(error.detail), hints.get(error.status_code, ""), headers=dict(error.headers or {}))


def of_validation(faults: list[Any]) -> Problem:
    """A request that does not match its schema; what was sent is not repeated."""
    errors = tuple(_fault(f) for f in faults[:20])
    named = "; ".join(f"{e.field}: {e.message}" for e in errors)
    return Problem(
        422, "invalid-request", named[:2000], "correct the fields named in errors; GET /openapi.json has the schema", errors=errors
    )


def _fault(fault: dict[str, Any]) -> FieldFault:
    if fault["type"] == "json_invalid":
        return FieldFault(field="body", message=f"not valid JSON at character {fault['loc'][-1]}")
    return FieldFault(field=_place(fault["loc"]), message=_words(fault))


def _place(location: tuple[Any, ...]) -> str:
    parts = [str(p).encode("utf-8", "replace").decode()[:100] for p in location]
    return ".".join(parts[1:] if len(parts) > 1 and parts[0] == "body" else parts)


def _words(fault: dict[str, Any]) -> str:
    if fault["type"] == "extra_forbidden":
        return "unknown field"
    return str(fault["msg"]).removeprefix("Value error, ")


def install(app: FastAPI, routes: Sequence[BaseRoute]) -> None:
    """Answer every error of `app`, which serves `routes`, with a problem."""

    async def known(request: Request, error: Exception) -> JSONResponse:
        return response(of_error(error), request.url.path)

    async def http(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)
        problem = of_http(error)
        if error.status_code == 405:
            problem.headers["Allow"] = ", ".join(sorted(_allowed(request, routes)))
        return response(problem, request.url.path)

    async def validation(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, RequestValidationError)
        return response(of_validation(list(error.errors())), request.url.path)

    for kind in (Problem, Refusal, Retryable, Permanent, Exception):
        app.add_exception_handler(kind, known)
    app.add_exception_handler(HTTPException, http)
    app.add_exception_handler(RequestValidationError, validation)


def _allowed(request: Request, routes: Sequence[BaseRoute]) -> set[str]:
    """The methods of every route of this path; the framework names those of the first one only (RFC 9110, section 10.2.1)."""
    fitting = (r for r in routes if isinstance(r, Route) and r.matches(request.scope)[0] is not Match.NONE)
    return {method for route in fitting for method in route.methods or ()}


def documented(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The problems that a route may answer, for its OpenAPI entry; 401, 413, 422, 431, 500 and 503 come with every route.

    A route that takes a body names 415; 400 comes with it.
    """
    return _errors(statuses, MEDIA_TYPE, "Problem")


def documented_openai(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The same for a route below /v1."""
    return _errors(statuses, "application/json", "OpenAIError")


def _errors(statuses: tuple[int, ...], media_type: str, schema: str) -> dict[int | str, dict[str, Any]]:
    unreadable = (400,) if 415 in statuses else ()
    content = {media_type: {"schema": {"$ref": f"#/components/schemas/{schema}"}}}
    return {
        status: {"description": HTTPStatus(status).phrase, "content": content}
        for status in sorted({401, 413, 422, 431, 500, 503, *statuses, *unreadable})
    }
