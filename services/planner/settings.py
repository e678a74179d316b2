"""Settings of the planner."""

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict


class PlannerSettings(BaseSettings):
    """How much one planner works on at a time, and what it shows its model."""

    model_config = SettingsConfigDict(env_prefix="AGENT_CODER_PLANNER_", frozen=True, extra="ignore")

    concurrency: int = Field(default=8, ge=1, le=256)
    retries: int = Field(default=2, ge=0, le=20)
    model_calls: int = Field(default=3, ge=1, le=10, description="tries of the model to give a valid plan")
    max_output_tokens: int = Field(default=8192, ge=256)
    map_characters: int = Field(default=24_000, ge=1000)
