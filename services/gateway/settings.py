"""Settings of the gateway."""

from typing import Literal
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, model_validator

from libs.contracts.github import MAX_WEBHOOK_BYTES
from libs.settings import HomeSettings

ALGORITHMS = frozenset({"RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"})
"""Asymmetric signatures that may be allowed: never `none`, never a shared secret (RFC 8725, section 3.1)."""


class GatewaySettings(HomeSettings):
    """Where the gateway listens and what it takes in."""

    host: str = "127.0.0.1"
    port: int = Field(default=8787, ge=0, le=65_535, description="0: any free port")
    public_url: str | None = Field(default=None, description="how clients reach this server, for clone URLs; else taken from the request")
    body_limit_bytes: int = Field(default=1_000_000, ge=1024)
    chat_body_limit_bytes: int = Field(default=16_000_000, ge=1024, description="AI SDK clients send the whole conversation")
    git_body_limit_bytes: int = Field(default=512 * 1024 * 1024, ge=1024)
    door_body_limit_bytes: int = Field(default=MAX_WEBHOOK_BYTES, ge=1024, le=MAX_WEBHOOK_BYTES, description="of webhooks")
    header_limit_bytes: int = Field(default=32_768, ge=1024)
    heartbeat_seconds: float = Field(default=15.0, gt=0, description="of an event stream on which nothing happens")
    first_chunk_seconds: float = Field(default=10.0, ge=0, description="how long the status of a chat answer waits for something to show")
    streams_per_user: int = Field(default=1000, ge=1, description="open at one replica")
    send_timeout_seconds: float = Field(default=30.0, gt=0, description="a client that takes nothing for this long is dropped")
    check_timeout_seconds: float = Field(default=5.0, gt=0, description="for the question which models there are, and for /readyz")
    models_cache_seconds: float = Field(default=5.0, ge=0)
    rate_limit_requests: int = Field(default=60, ge=0, le=100_000, description="of one user in the window; 0: no limit")
    rate_limit_window_seconds: float = Field(default=60.0, ge=1, le=3600)
    door_rate_limit_requests: int = Field(
        default=600, ge=0, le=100_000, description="of one address in the window, to webhooks and links of mails; 0: no limit"
    )
    signing_key: SecretStr | None = Field(default=None, min_length=16, description="of short-lived tokens; replicas share it")
    jwt_issuer: str | None = Field(default=None, description="whose bearer tokens are taken; absent: none are")
    jwt_audience: str = Field(default="agent-coder", min_length=1)
    jwks_url: str | None = Field(default=None, description="by default <issuer>/.well-known/jwks.json")
    jwt_algorithms: tuple[str, ...] = Field(default=(), description="by default every asymmetric one that is considered safe")
    jwt_tenant_claim: str = Field(default="tenant", min_length=1)
    jwt_default_tenant: str = Field(default="members", pattern=r"^[A-Za-z0-9_-]{1,64}$", description="for tokens that name none")
    jwt_default_scopes: tuple[Literal["read", "write", "operator"], ...] = ("read", "write")
    stuck_after_seconds: float = Field(default=3600.0, ge=0, description="a run on which nothing was recorded for this long may be retried")

    @model_validator(mode="after")
    def _usable_issuer(self) -> "GatewaySettings":
        if self.jwt_issuer is None:
            return self
        unknown = set(self.jwt_algorithms) - ALGORITHMS
        if unknown:
            raise ValueError(f"jwt_algorithms: {', '.join(sorted(unknown))} cannot be allowed; choose from {', '.join(sorted(ALGORITHMS))}")
        if self.jwt_default_tenant == "local":
            raise ValueError("jwt_default_tenant: 'local' is the owner of this installation; choose another name")
        url = urlsplit(self.keys_url)
        if url.scheme != "https" and not (url.scheme == "http" and url.hostname in ("127.0.0.1", "::1", "localhost")):
            raise ValueError(f"jwks_url: {self.keys_url} must be https, or http on this machine")
        return self

    @property
    def keys_url(self) -> str:
        """Where the issuer's keys are."""
        return self.jwks_url or f"{(self.jwt_issuer or '').rstrip('/')}/.well-known/jwks.json"
