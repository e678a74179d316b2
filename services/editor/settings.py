"""Settings of the editor."""

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict


class EditorSettings(BaseSettings):
    """How much one editor works on at a time, and how long a reply of its model may be."""

    model_config = SettingsConfigDict(env_prefix="AGENT_CODER_EDITOR_", frozen=True, extra="ignore")

    concurrency: int = Field(default=4, ge=1, le=256)
    retries: int = Field(default=4, ge=0, le=20)
    max_output_tokens: int = Field(default=16_384, ge=256)
