"""Settings that every service shares: where the home folder is and how the bus is reached. Each is read once, in `main()`."""

import json
from functools import cached_property
from pathlib import Path

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict


class HomeSettings(BaseSettings):
    """Where this installation keeps its data and its generated secrets."""

    model_config = SettingsConfigDict(env_prefix="AGENT_CODER_", frozen=True, extra="ignore", env_ignore_empty=True)

    home: Path = Field(default_factory=lambda: Path.home() / ".agent-coder")

    def folder(self, name: str) -> Path:
        """A data folder of one service, created for its owner only."""
        path = self.home / name
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        return path


class BusSettings(HomeSettings):
    """How the bus is reached. `AGENT_CODER_NATS_PASSWORD` overrides the generated credentials file."""

    nats_url: str = "nats://127.0.0.1:4222"
    nats_password: str | None = Field(default=None, repr=False)
    connect_seconds: float = 15.0
    ack_wait_seconds: float = Field(default=15.0, ge=0.5, le=600, description="a worker that is silent this long has lost its step")
    silence_seconds: float = Field(default=10.0, ge=1, le=600, description="who answers a question and is silent this long is gone")
    backoff_base_seconds: float = Field(default=1.0, gt=0)
    backoff_cap_seconds: float = Field(default=60.0, gt=0)

    @cached_property
    def _passwords(self) -> dict[str, str]:
        path = self.home / "credentials.json"
        return dict(json.loads(path.read_text())) if path.is_file() else {}

    def password(self, user: str) -> str | None:
        """The NATS password of a service's user."""
        return self.nats_password or self._passwords.get(user)
