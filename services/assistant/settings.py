"""Settings of the assistant."""

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict


class AssistantSettings(BaseSettings):
    """How much one assistant works on at a time, and when it remembers and compacts."""

    model_config = SettingsConfigDict(env_prefix="AGENT_CODER_ASSISTANT_", frozen=True, extra="ignore")

    concurrency: int = Field(default=1024, ge=1, le=4096)
    retries: int = Field(default=4, ge=0, le=20)
    max_output_tokens: int = Field(default=8192, ge=256)
    turn_seconds: float = Field(default=1800.0, ge=1, description="seconds of work that one turn may use; waiting for answers is free")
    cheap_model: str | None = Field(default=None, max_length=200, description="for memory and compaction; the turn's model when absent")
    memory: bool = Field(default=True, description="whether turns are remembered and recalled")
    compact_over_tokens: int = Field(default=60_000, ge=1000)
