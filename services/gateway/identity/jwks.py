"""Bearer JWTs of one issuer, checked against its published keys (RFC 7519, 7517, 8725; RFC 9068 for access tokens).

The keys are kept and fetched anew when they are old or a token names one that is not there. While the issuer is down the last good
keys serve for a day, then nobody comes in with a token of it. This module alone imports the JWT library, and only where an issuer is set.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import httpx
import jwt
from jwt.exceptions import InvalidTokenError, PyJWTError

from services.gateway.identity.caller import SCOPES, Caller, Scope, unauthorized, usable_tenant, usable_user
from services.gateway.problems import Problem
from services.gateway.settings import ALGORITHMS, GatewaySettings

log = logging.getLogger(__name__)
_MAX_TOKEN = 16_384
_MAX_KEYS = 100
_MAX_BYTES = 1_000_000
_LEEWAY_SECONDS = 30
_MIN_RSA_BITS = 2048
Fetch = Callable[[], Awaitable[Any]]


@dataclass(frozen=True)
class JwtRules:
    """What a token must say, and how long keys are kept."""

    issuer: str
    audience: str
    algorithms: frozenset[str] = ALGORITHMS
    tenant_claim: str = "tenant"
    default_tenant: str = "members"
    default_scopes: frozenset[Scope] = frozenset({"read", "write"})
    fresh_seconds: float = 300.0
    refetch_seconds: float = 10.0
    stale_seconds: float = 86_400.0


def rules_of(settings: GatewaySettings) -> JwtRules:
    """The rules that the settings make; `settings.jwt_issuer` must be set."""
    assert settings.jwt_issuer is not None
    return JwtRules(
        issuer=settings.jwt_issuer,
        audience=settings.jwt_audience,
        algorithms=frozenset(settings.jwt_algorithms) or ALGORITHMS,
        tenant_claim=settings.jwt_tenant_claim,
        default_tenant=settings.jwt_default_tenant,
        default_scopes=frozenset(settings.jwt_default_scopes),
    )


def verifier_of(settings: GatewaySettings) -> "JwtVerifier":
    """The verifier that the settings make."""
    rules = rules_of(settings)
    return JwtVerifier(rules, Jwks(fetcher(settings.keys_url), rules))


class JwksDown(Exception):
    """The issuer's keys cannot be had."""


def fetcher(url: str, timeout_seconds: float = 5.0) -> Fetch:
    """Gets a JWKS document over HTTP. What it returns raises JwksDown."""

    async def fetch() -> Any:
        try:
            async with httpx.AsyncClient(timeout=timeout_seconds, follow_redirects=False) as client:
                answer = await client.get(url, headers={"Accept": "application/json"})
            if answer.status_code != 200 or len(answer.content) > _MAX_BYTES:
                raise JwksDown(f"{url} answered {answer.status_code} with {len(answer.content)} bytes")
            return answer.json()
        except (httpx.HTTPError, ValueError) as error:
            raise JwksDown(f"{url}: {type(error).__name__}: {error}") from error

    return fetch


class Jwks:
    """The issuer's keys, the last good ones while it is down."""

    def __init__(self, fetch: Fetch, rules: JwtRules, clock: Callable[[], float] = time.monotonic) -> None:
        self._fetch = fetch
        self._rules = rules
        self._clock = clock
        self._keys: tuple[Mapping[str, Any], ...] = ()
        self._good_at: float | None = None
        self._tried_at: float | None = None
        self._lock = asyncio.Lock()

    async def keys(self, kid: str | None) -> list[Mapping[str, Any]]:
        """The keys that may have signed a token with this key id. Raises Problem 503: there are none to check with."""
        if not self._is_fresh() or (kid is not None and not self._named(kid)):
            await self._renew(kid)
        if self._good_at is None or self._clock() - self._good_at > self._rules.stale_seconds:
            raise Problem(
                503,
                "issuer-unavailable",
                "the keys of the token's issuer cannot be had, so no token of it can be checked",
                "try again in a moment; an API key or the owner's token works meanwhile",
                headers={"Retry-After": str(max(1, round(self._rules.refetch_seconds)))},
            )
        return self._named(kid)

    def _is_fresh(self) -> bool:
        return self._good_at is not None and self._clock() - self._good_at <= self._rules.fresh_seconds

    def _named(self, kid: str | None) -> list[Mapping[str, Any]]:
        return [k for k in self._keys if kid is None or k.get("kid") == kid]

    async def _renew(self, kid: str | None) -> None:
        """Fetch at most once in `refetch_seconds`, whoever asks and however many ask."""
        async with self._lock:
            if self._is_fresh() and (kid is None or self._named(kid)):
                return
            now = self._clock()
            if self._tried_at is not None and now - self._tried_at < self._rules.refetch_seconds:
                return
            self._tried_at = now
            try:
                self._keys = _signing_keys(await self._fetch(), self._rules.algorithms)
                self._good_at = self._clock()
            except JwksDown as error:
                log.warning("the issuer's keys cannot be fetched, the last good ones serve: %s", error)


def _signing_keys(document: Any, algorithms: frozenset[str]) -> tuple[Mapping[str, Any], ...]:
    """The public keys of a JWKS that may verify signatures. Raises JwksDown: it is no JWKS, or none of its keys is usable."""
    listed = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(listed, list):
        raise JwksDown("the document is no JWKS")
    found = tuple(key for key in listed[:_MAX_KEYS] if isinstance(key, dict) and _verifies(key, algorithms))
    if not found:
        raise JwksDown("the JWKS has no key that may verify signatures")
    return found


def _verifies(key: Mapping[str, Any], algorithms: frozenset[str]) -> bool:
    """RFC 7517, sections 4.2 to 4.4; a symmetric key is never one that an issuer publishes."""
    operations = key.get("key_ops")
    return (
        key.get("kty") in ("RSA", "EC", "OKP")
        and key.get("use", "sig") == "sig"
        and (operations is None or (isinstance(operations, list) and "verify" in operations))
        and ("alg" not in key or key["alg"] in algorithms)
    )


class JwtVerifier:
    """Turns a bearer JWT into a caller."""

    def __init__(self, rules: JwtRules, jwks: Jwks) -> None:
        self._rules = rules
        self._jwks = jwks

    async def caller(self, text: str) -> Caller:
        """Whom a token stands for.

        Raises:
            Problem: 401 when it is not valid, with the reason; 503 when the issuer's keys cannot be had.
        """
        header = self._header(text)
        keys = await self._jwks.keys(header.get("kid"))
        if not keys:
            raise unauthorized("this token is signed with a key that its issuer does not publish")
        reason = "its signature does not fit"
        for key in keys:
            try:
                return self._caller(self._claims(text, key, header["alg"]))
            except InvalidTokenError as error:
                reason = str(error) or type(error).__name__
            except PyJWTError as error:
                reason = f"its key cannot be used: {error}"
        raise unauthorized(f"this token is not valid: {reason}")

    def _header(self, text: str) -> dict[str, Any]:
        """The header, which may name an allowed algorithm and nothing that must be understood."""
        if len(text) > _MAX_TOKEN:
            raise unauthorized("this token is too long")
        try:
            header = jwt.get_unverified_header(text)
        except InvalidTokenError as error:
            raise unauthorized("this token cannot be read") from error
        if not isinstance(header.get("alg"), str) or header["alg"] not in self._rules.algorithms:
            raise unauthorized("this token is signed with an algorithm that is not allowed here")
        if "crit" in header or str(header.get("typ", "JWT")).lower().removeprefix("application/") not in ("jwt", "at+jwt"):
            raise unauthorized("this token is of a kind that is not taken here")
        return header

    def _claims(self, text: str, key: Mapping[str, Any], algorithm: str) -> dict[str, Any]:
        if key.get("alg", algorithm) != algorithm:
            raise InvalidTokenError("its algorithm is not that of its key")
        public = jwt.PyJWK({k: v for k, v in key.items() if k not in ("use", "key_ops")}, algorithm=algorithm)
        if getattr(public.key, "key_size", _MIN_RSA_BITS) < _MIN_RSA_BITS and key["kty"] == "RSA":
            raise InvalidTokenError(f"its RSA key is shorter than {_MIN_RSA_BITS} bits")
        return jwt.decode(
            text,
            public.key,
            algorithms=[algorithm],
            audience=self._rules.audience,
            issuer=self._rules.issuer,
            leeway=_LEEWAY_SECONDS,
            options={"require": ["exp", "iss", "aud", "sub"]},
        )

    def _caller(self, claims: Mapping[str, Any]) -> Caller:
        tenant = claims.get(self._rules.tenant_claim, self._rules.default_tenant)
        if not usable_tenant(tenant):
            raise unauthorized(f"this token's claim {self._rules.tenant_claim!r} names no tenant that can be one")
        if not usable_user(claims["sub"]):
            raise unauthorized("this token's claim 'sub' names no user")
        plan = claims.get("plan")
        named = _scopes(claims)
        return Caller(
            tenant=tenant,
            user=claims["sub"],
            scopes=named or self._rules.default_scopes,
            plan=plan if isinstance(plan, str) and len(plan) <= 64 else None,
            kind="jwt",
            until=float(claims["exp"]) + _LEEWAY_SECONDS,
        )


def _scopes(claims: Mapping[str, Any]) -> frozenset[Scope]:
    """The scopes of a token that are known here, alone or as `agent-coder:<scope>`."""
    said = claims.get("scope", claims.get("scp", ()))
    words = said.split() if isinstance(said, str) else [w for w in said if isinstance(w, str)] if isinstance(said, list) else []
    plain = {w.removeprefix("agent-coder:") for w in words}
    return frozenset(s for s in SCOPES if s in plain)
