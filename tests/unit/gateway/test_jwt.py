"""Bearer JWTs: what is taken, what is refused, and what happens while the issuer is down."""

import base64
import json
from collections.abc import Callable
from typing import Any

import httpx
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from services.gateway.app import create_app
from services.gateway.identity.jwks import Jwks, JwksDown, JwtRules, JwtVerifier
from services.gateway.problems import Problem
from services.gateway.settings import GatewaySettings
from tests.unit.gateway.conftest import TOKEN
from tests.unit.gateway.fake_bus import FakeBus

ISSUER, AUDIENCE = "https://id.example.org", "agent-coder"
RSA = rsa.generate_private_key(65537, 2048)
EC = ec.generate_private_key(ec.SECP256R1())
ED = ed25519.Ed25519PrivateKey.generate()
SHORT = rsa.generate_private_key(65537, 1024)
RULES = JwtRules(issuer=ISSUER, audience=AUDIENCE)
CLAIMS = {"iss": ISSUER, "aud": AUDIENCE, "sub": "kim", "exp": 4_102_444_800, "tenant": "acme"}


def published(key: Any, algorithm: str, kid: str, **extra: Any) -> dict[str, Any]:
    made = jwt.get_algorithm_by_name(algorithm).to_jwk(key.public_key(), as_dict=True)
    return {**{k: v for k, v in made.items() if k != "key_ops"}, "kid": kid, **extra}


class Issuer:
    """A JWKS that can be changed and taken down."""

    def __init__(self, *keys: dict[str, Any]) -> None:
        self.document: Any = {"keys": list(keys)}
        self.down = False
        self.fetched = 0

    async def __call__(self) -> Any:
        self.fetched += 1
        if self.down:
            raise JwksDown("connection refused")
        return self.document


class Clock:
    """A clock that is set by hand."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def verifier(issuer: Issuer, clock: Callable[[], float] | None = None) -> JwtVerifier:
    return JwtVerifier(RULES, Jwks(issuer, RULES, clock or Clock()))


def signed(key: Any = RSA, algorithm: str = "RS256", kid: str | None = "k1", **claims: Any) -> str:
    body = {k: v for k, v in {**CLAIMS, **claims}.items() if v is not None}
    return jwt.encode(body, key, algorithm, headers={"kid": kid} if kid else None)


def unsigned(header: dict[str, Any], signature: str = "") -> str:
    parts = (base64.urlsafe_b64encode(json.dumps(p).encode()).rstrip(b"=").decode() for p in (header, CLAIMS))
    return ".".join((*parts, signature))


async def refusal(check: JwtVerifier, token: str) -> str:
    with pytest.raises(Problem) as refused:
        await check.caller(token)
    assert refused.value.status == 401
    assert 'error="invalid_token"' in refused.value.headers["WWW-Authenticate"]
    return refused.value.detail


@pytest.mark.parametrize(("key", "algorithm"), [(RSA, "RS256"), (RSA, "PS512"), (EC, "ES256"), (ED, "EdDSA")])
async def test_a_valid_token_names_its_caller(key: Any, algorithm: str) -> None:
    check = verifier(Issuer(published(key, algorithm, "k1", use="sig", key_ops=["verify"])))
    caller = await check.caller(signed(key, algorithm, scope="openid agent-coder:read", plan="pro"))
    assert (caller.tenant, caller.user, caller.plan, caller.kind) == ("acme", "kim", "pro", "jwt")
    assert caller.scopes == {"read"}


async def test_without_scopes_and_tenant_the_settings_speak() -> None:
    caller = await verifier(Issuer(published(RSA, "RS256", "k1"))).caller(signed(tenant=None))
    assert (caller.tenant, caller.scopes) == ("members", {"read", "write"})


@pytest.mark.parametrize(
    "changes",
    [
        {"iss": "https://other.example.org"},
        {"iss": None},
        {"aud": "somebody-else"},
        {"aud": None},
        {"exp": 1_000_000_000},
        {"exp": None},
        {"nbf": 4_102_444_000},
        {"sub": None},
        {"sub": ""},
        {"sub": "a\nb"},
        {"sub": "x" * 201},
        {"tenant": "local"},
        {"tenant": "a.b"},
        {"tenant": 7},
    ],
)
async def test_a_token_that_says_something_else_is_refused(changes: dict[str, Any]) -> None:
    await refusal(verifier(Issuer(published(RSA, "RS256", "k1"))), signed(**changes))


async def test_no_algorithm_but_those_allowed() -> None:
    key = published(RSA, "RS256", "k1")
    check = verifier(Issuer(key))
    for header in ({"alg": "none"}, {"alg": "None", "kid": "k1"}, {"typ": "JWT"}, {"alg": ["RS256"]}):
        await refusal(check, unsigned(header))
    forged = jwt.encode(CLAIMS, "a-secret-that-everybody-can-know-because-it-is-public", "HS256", headers={"kid": "k1"})
    assert "algorithm" in await refusal(check, forged)
    assert "algorithm" in await refusal(verifier(Issuer({**key, "alg": "RS256"})), signed(algorithm="RS512"))


async def test_a_header_that_must_be_understood_or_brings_its_own_key_is_not_followed() -> None:
    check = verifier(Issuer(published(RSA, "RS256", "k1")))
    await refusal(check, jwt.encode(CLAIMS, RSA, "RS256", headers={"kid": "k1", "crit": ["exp"]}))
    await refusal(check, jwt.encode(CLAIMS, RSA, "RS256", headers={"kid": "k1", "typ": "dpop+jwt"}))
    stranger = rsa.generate_private_key(65537, 2048)
    brought = {"kid": "k1", "jwk": published(stranger, "RS256", "k1"), "jku": "https://evil.example.org/keys"}
    await refusal(check, jwt.encode(CLAIMS, stranger, "RS256", headers=brought))


@pytest.mark.parametrize(
    "key",
    [
        published(RSA, "RS256", "k1", use="enc"),
        published(RSA, "RS256", "k1", key_ops=["encrypt"]),
        {"kty": "oct", "kid": "k1", "k": "c2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0LXNlY3JldA"},
        published(SHORT, "RS256", "k1"),
        {"kty": "RSA", "kid": "k1", "n": "!", "e": "AQAB"},
    ],
)
async def test_a_key_that_may_not_verify_is_not_used(key: dict[str, Any]) -> None:
    signer = SHORT if key.get("n") == published(SHORT, "RS256", "k1")["n"] else RSA
    await refusal(verifier(Issuer(key, published(EC, "ES256", "other"))), signed(signer))


@pytest.mark.parametrize("text", ["a.b.c", "..", "a.b", "x" * 20_000 + "..", "é.é.é", "eyJhbGciOiJSUzI1NiJ9..x"])
async def test_what_is_no_token_is_refused(text: str) -> None:
    await refusal(verifier(Issuer(published(RSA, "RS256", "k1"))), text)


async def test_keys_are_cached_and_rotated() -> None:
    clock, fresh = Clock(), rsa.generate_private_key(65537, 2048)
    issuer = Issuer(published(RSA, "RS256", "k1"))
    check = verifier(issuer, clock)
    for _ in range(5):
        await check.caller(signed())
    assert issuer.fetched == 1
    issuer.document = {"keys": [published(fresh, "RS256", "k2")]}
    clock.now = 20
    assert (await check.caller(signed(fresh, kid="k2"))).user == "kim"
    await refusal(check, signed())
    assert issuer.fetched == 2
    for _ in range(20):
        await refusal(check, signed(kid="made-up"))
    assert issuer.fetched == 2


async def test_a_token_without_key_id_is_tried_with_every_key() -> None:
    check = verifier(Issuer(published(EC, "ES256", "a"), published(RSA, "RS256", "b")))
    assert (await check.caller(signed(kid=None))).user == "kim"


async def test_while_the_issuer_is_down_the_last_good_keys_serve_then_nobody_comes_in() -> None:
    clock, issuer = Clock(), Issuer(published(RSA, "RS256", "k1"))
    check = verifier(issuer, clock)
    await check.caller(signed())
    issuer.down = True
    clock.now = 80_000
    assert (await check.caller(signed())).user == "kim"
    clock.now = 90_000
    with pytest.raises(Problem) as refused:
        await check.caller(signed())
    assert refused.value.status == 503
    assert refused.value.headers["Retry-After"] == "10"
    issuer.down = False
    clock.now = 90_011
    assert (await check.caller(signed())).user == "kim"


@pytest.mark.parametrize("document", [[], {}, {"keys": []}, {"keys": ["x"]}, "x", None])
async def test_an_issuer_that_never_gave_keys_is_503(document: Any) -> None:
    issuer = Issuer()
    issuer.document = document
    with pytest.raises(Problem) as refused:
        await verifier(issuer).caller(signed())
    assert refused.value.status == 503


async def test_a_jwt_opens_the_api_as_its_own_user(bus: FakeBus) -> None:
    app = create_app(bus, GatewaySettings(rate_limit_requests=0), TOKEN, verifier=verifier(Issuer(published(RSA, "RS256", "k1"))))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://server") as client:
        headers = {"Authorization": f"Bearer {signed()}"}
        assert (await client.get("/api/runs", headers=headers)).status_code == 200
        assert (bus.asked[-1].tenant, bus.asked[-1].user) == ("acme", "kim")
        assert (await client.get("/api/dead", headers=headers)).status_code == 403
        assert (await client.get("/api/repos", headers=headers)).status_code == 403
        assert (await client.get("/api/runs", headers={"Authorization": f"Bearer {signed()}x"})).status_code == 401


def test_settings_that_would_let_everybody_in_are_refused() -> None:
    for bad in (
        {"jwt_algorithms": ("HS256",)},
        {"jwt_algorithms": ("none",)},
        {"jwt_default_tenant": "local"},
        {"jwks_url": "http://id.example.org/keys"},
    ):
        with pytest.raises(ValueError, match="jw"):
            GatewaySettings(jwt_issuer=ISSUER, **bad)  # type: ignore[arg-type]  # each value fits its own field
