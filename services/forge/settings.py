"""Settings of the forge. Only this service reads the App's key and the webhook secrets."""

import secrets
from functools import cached_property
from pathlib import Path

from pydantic import Field, SecretStr

from libs.settings import HomeSettings


class ForgeSettings(HomeSettings):
    """The GitHub App. Without `github_app_id` nothing is published and every committed run simply finishes."""

    public_url: str = Field(default="http://127.0.0.1:8787", description="where people reach the gateway")
    github_base_url: str = Field(default="https://api.github.com", description="of the REST API; https://HOST/api/v3 for Enterprise Server")
    github_app_id: int | None = None
    github_private_key_file: Path | None = Field(default=None, description="PEM; default: forge/private-key.pem in the home folder")
    github_webhook_secret: SecretStr | None = Field(default=None, description="default: generated once into forge/webhook-secret")
    github_old_webhook_secret: SecretStr | None = Field(default=None, description="still valid while the secret is being changed")
    github_label: str = Field(default="agent-coder", min_length=1, max_length=50)
    github_redelivery_seconds: float = Field(default=600, gt=0, description="between two looks for deliveries that failed")
    github_timeout_seconds: float = Field(default=20, gt=0)

    @property
    def configured(self) -> bool:
        """Whether there is an App to speak for."""
        return self.github_app_id is not None

    @property
    def key_file(self) -> Path:
        """Where the App's private key lies."""
        return self.github_private_key_file or self.folder("forge") / "private-key.pem"

    @cached_property
    def webhook_secrets(self) -> tuple[bytes, ...]:
        """The secrets that a delivery may be signed with, the current one first; made on first use when none is set."""
        current = self.github_webhook_secret.get_secret_value() if self.github_webhook_secret else self._kept()
        old = self.github_old_webhook_secret
        return (current.encode(), old.get_secret_value().encode()) if old else (current.encode(),)

    def _kept(self) -> str:
        path = self.folder("forge") / "webhook-secret"
        if not path.is_file() or not path.read_text().strip():  # empty: the first start was cut short, and nobody's key is the empty one
            path.touch(mode=0o600)
            path.write_text(secrets.token_hex(32))
        return path.read_text().strip()
