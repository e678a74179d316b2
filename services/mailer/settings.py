"""Settings of the mailer. Only this service reads the reply secret, the SMTP password and the DKIM key."""

import contextlib
import ipaddress
import re
import secrets
from functools import cached_property
from pathlib import Path
from typing import Literal

from pydantic import Field, SecretStr, ValidationInfo, field_validator

from libs.settings import HomeSettings
from services.mailer.outbound import from_header


class MailerSettings(HomeSettings):
    """Mail out goes through `smtp_host`; mail in comes to `mail_listen`. Without them nothing is sent and nothing listens."""

    public_url: str = Field(default="http://127.0.0.1:8787", description="where people reach the gateway")
    mail_domain: str | None = Field(default=None, description="of the reply addresses: agent+<token>@DOMAIN")
    mail_from: str | None = Field(default=None, description="default: agent-coder <agent@DOMAIN>")
    smtp_host: str | None = None
    smtp_port: int = Field(default=587, ge=1, le=65_535)
    smtp_user: str | None = None
    smtp_password: SecretStr | None = None
    smtp_security: Literal["starttls", "tls", "none"] = "starttls"
    smtp_timeout_seconds: float = Field(default=30, gt=0)
    smtp_data_timeout_seconds: float = Field(default=600, gt=0, description="from DATA to the server's answer (RFC 5321, 4.5.3.2.6)")
    smtp_ca_file: Path | None = Field(default=None, description="who vouches for the server's certificate; default: this machine's list")
    mail_listen: str | None = Field(default=None, description="HOST:PORT of the inbound SMTP server")
    mail_max_bytes: int = Field(default=25 * 1024 * 1024, ge=1024)
    mail_policy: Literal["strict", "token_only"] = "strict"
    mail_trusted_relay: str | None = Field(default=None, description="the authserv-id whose Authentication-Results count (RFC 8601)")
    mail_relay_networks: str = Field(
        default="127.0.0.0/8 ::1/128 10.0.0.0/8 172.16.0.0/12 192.168.0.0/16 fc00::/7",
        description="from where the trusted relay connects; its Authentication-Results count from nowhere else",
    )
    mail_dns: str | None = Field(default=None, description="HOST:PORT of the name server asked about senders; default: this machine's")
    mail_tls_cert_file: Path | None = Field(default=None, description="PEM; with it the inbound SMTP server offers STARTTLS")
    mail_tls_key_file: Path | None = None
    mail_connections: int = Field(default=50, ge=1, description="inbound SMTP connections at the same time")
    mail_client_seconds: float = Field(default=300, gt=0, description="for each command, and for a whole message (RFC 5321, 4.5.3.2)")
    mail_webhook_secret: SecretStr | None = Field(default=None, description="default: generated once into mailer/webhook-secret")
    mail_dkim_selector: str | None = None
    mail_dkim_key_file: Path | None = None
    mail_reply_days: float = Field(default=30, gt=0)
    mail_per_recipient_hour: int = Field(default=30, ge=1)
    mail_per_run: int = Field(default=20, ge=1)
    mail_retry_hours: float = Field(default=48, gt=0, description="how long a mail is tried")
    mail_retry_base_seconds: float = Field(default=60, gt=0, description="before the second try; doubled up to an hour")

    @field_validator("mail_domain", "mail_from")
    @classmethod
    def _an_address(cls, value: str | None, info: ValidationInfo) -> str | None:
        if value:
            from_header(value if info.field_name == "mail_from" else f"agent@{value}")
        return value or None

    @field_validator("mail_listen", "mail_dns")
    @classmethod
    def _host_and_port(cls, value: str | None) -> str | None:
        if value is not None and not re.fullmatch(r"(\[[0-9a-fA-F:.]+\]|[^:\s]*):\d{1,5}", value):
            raise ValueError("write HOST:PORT, for example 0.0.0.0:25 or [::1]:2525")
        return value

    @field_validator("mail_relay_networks")
    @classmethod
    def _networks(cls, value: str) -> str:
        for network in value.split():
            ipaddress.ip_network(network, strict=False)  # a ValueError that says what is wrong
        return value

    @property
    def from_(self) -> str:
        """The From header of what goes out."""
        return self.mail_from or f"agent-coder <agent@{self.mail_domain}>"

    @property
    def sends(self) -> bool:
        """Whether mail goes out."""
        return bool(self.smtp_host and self.mail_domain)

    @cached_property
    def reply_secret(self) -> bytes:
        """The key of the reply tokens, made on first use."""
        return self._kept("reply-secret").encode()

    @cached_property
    def webhook_secret(self) -> str:
        """What a provider sends as a bearer token or a basic password to POST /webhooks/mail."""
        return self.mail_webhook_secret.get_secret_value() if self.mail_webhook_secret else self._kept("webhook-secret")

    def _kept(self, name: str) -> str:
        path = self.folder("mailer") / name
        if not path.is_file():
            made = path.with_name(f"{name}.{secrets.token_hex(4)}")
            made.touch(mode=0o600)
            made.write_text(secrets.token_hex(32))
            with contextlib.suppress(FileExistsError):
                path.hardlink_to(made)  # never half written, and the first of two mailers wins
            made.unlink()
        return path.read_text().strip()
