"""The verifier's settings."""

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict


class VerifierSettings(BaseSettings):
    """Prefix `AGENT_CODER_VERIFIER_`."""

    model_config = SettingsConfigDict(env_prefix="AGENT_CODER_VERIFIER_", frozen=True, extra="ignore")

    concurrency: int = Field(default=2, ge=1, le=64, description="runs that are tested at the same time")
    retries: int = Field(default=1, ge=0, le=10)
