"""Who is asking, as a verified credential says it. Nothing that a request says elsewhere changes it."""

import re
from typing import Annotated, Literal

from fastapi import Depends
from pydantic import BaseModel, ConfigDict
from starlette.requests import HTTPConnection

from services.gateway.problems import Problem

Scope = Literal["read", "write", "operator"]
SCOPES: tuple[Scope, ...] = ("read", "write", "operator")
LOCAL = "local"
_TENANT = re.compile(r"[A-Za-z0-9_-]{1,64}")
_USER = re.compile(r"[^\x00-\x1f\x7f]{1,200}")


class Caller(BaseModel):
    """A user of a tenant with what the credential allows. `operator` includes `write`, `write` includes `read`.

    `resource` is the one path below which a short-lived token opens anything; absent on all others. `until` (seconds since the epoch) and
    `key` (the digest of an API key) say how long the credential holds; a short-lived token inherits both from whoever made it.
    """

    model_config = ConfigDict(frozen=True)

    tenant: str
    user: str
    scopes: frozenset[Scope]
    plan: str | None = None
    kind: Literal["owner", "jwt", "key", "ticket"] = "owner"
    resource: str | None = None
    until: float | None = None
    key: str | None = None

    def may(self, scope: Scope) -> bool:
        """Whether the credential allows what needs `scope`."""
        rank = max((SCOPES.index(s) for s in self.scopes), default=-1)
        return rank >= SCOPES.index(scope)

    @property
    def local(self) -> bool:
        """Whether it belongs to the owner of this installation, whose files, repositories and dead letters these are."""
        return self.tenant == LOCAL

    @property
    def owned(self) -> dict[str, str]:
        """The fields of a question that carries its owner."""
        return {"tenant": self.tenant, "user": self.user}

    def sees(self, tenant: str, user: str) -> bool:
        """Whether a row of this owner may be shown: one's own, and to operators those of their tenant."""
        return tenant == self.tenant and (user == self.user or self.may("operator"))

    def reaches(self, path: str) -> bool:
        """Whether the credential opens `path` at all."""
        return self.resource is None or path == self.resource or path.startswith(f"{self.resource}/")


OWNER = Caller(tenant=LOCAL, user=LOCAL, scopes=frozenset(SCOPES))


def usable_tenant(text: object) -> bool:
    """Whether a tenant's name from outside can be one: a subject token, and not the owner's."""
    return isinstance(text, str) and _TENANT.fullmatch(text) is not None and text != LOCAL


def usable_user(text: object) -> bool:
    """Whether a user's name from outside can be one."""
    return isinstance(text, str) and _USER.fullmatch(text) is not None


def unauthorized(detail: str | None = None) -> Problem:
    """No credential, or one that is not valid; `detail` says what is wrong with it."""
    wrong = ', error="invalid_token"' if detail else ""
    return Problem(
        401,
        "unauthorized",
        detail or "a token is needed",
        "send 'Authorization: Bearer TOKEN'; the token is in the file `token` of the server's home folder (~/.agent-coder)",
        headers={"WWW-Authenticate": f'Bearer realm="agent-coder"{wrong}'},
    )


def forbidden(scope: Scope) -> Problem:
    """The credential is valid and allows too little (RFC 6750, section 3.1)."""
    return Problem(
        403,
        "insufficient-scope",
        f"this token does not have the scope {scope}",
        "use a token with that scope; GET /api/keys shows what your keys may do",
        headers={"WWW-Authenticate": f'Bearer realm="agent-coder", error="insufficient_scope", scope="{scope}"'},
    )


def caller_of(connection: HTTPConnection) -> Caller:
    """The caller that the guard has verified."""
    found = connection.scope["state"]["caller"]
    assert isinstance(found, Caller)
    return found


async def any_of(connection: HTTPConnection) -> Caller:
    """`caller_of` as a dependency: FastAPI runs a plain function in a thread, which costs each request a hop."""
    return caller_of(connection)


async def operator_of(connection: HTTPConnection) -> Caller:
    """The caller, who is an operator. Raises Problem 403."""
    return _operator(caller_of(connection))


async def local_of(connection: HTTPConnection) -> Caller:
    """The caller, who belongs to the installation's own tenant. Raises Problem 403."""
    return _local(caller_of(connection))


async def local_operator_of(connection: HTTPConnection) -> Caller:
    """The caller, who runs the installation. Raises Problem 403."""
    return _operator(_local(caller_of(connection)))


def _operator(caller: Caller) -> Caller:
    if not caller.may("operator"):
        raise forbidden("operator")
    return caller


def _local(caller: Caller) -> Caller:
    if not caller.local:
        raise Problem(403, "other-tenant", "this belongs to the installation itself, not to its tenants", "ask the operator")
    return caller


Who = Annotated[Caller, Depends(any_of)]
Operator = Annotated[Caller, Depends(operator_of)]
Local = Annotated[Caller, Depends(local_of)]
LocalOperator = Annotated[Caller, Depends(local_operator_of)]
