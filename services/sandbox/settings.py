"""What can be set about sandboxes. All faults are reported at once, at start."""

from functools import cached_property
from pathlib import Path

from pydantic import Field, field_validator
from pydantic_settings import SettingsConfigDict

from libs.settings import HomeSettings
from services.sandbox.backends import Limits
from services.sandbox.egress import AllowedHost


class SandboxSettings(HomeSettings):
    """`AGENT_CODER_SANDBOX_*`; lists are separated by commas."""

    model_config = SettingsConfigDict(
        env_prefix="AGENT_CODER_SANDBOX_", frozen=True, extra="ignore", env_ignore_empty=True, populate_by_name=True
    )

    home: Path = Field(default_factory=lambda: Path.home() / ".agent-coder", validation_alias="AGENT_CODER_HOME")
    registries: str = Field(default="", description="host, host:port or host@network; empty: what the installed package managers use")
    toolchains: str = Field(default="", description="folders to show read-only in every sandbox, beside those that are found")
    memory_bytes: int = Field(default=Limits().memory_bytes, ge=64 * 1024 * 1024)
    processes: int = Field(default=Limits().processes, ge=16)
    output_bytes: int = Field(default=Limits().output_bytes, ge=1024)
    file_bytes: int = Field(default=Limits().file_bytes, ge=1024)
    tmp_bytes: int = Field(default=Limits().tmp_bytes, ge=1024 * 1024)
    disk_bytes: int = Field(default=Limits().disk_bytes, ge=1024 * 1024)
    cpu_cores: float | None = Field(default=None, gt=0)
    max_file_bytes: int = Field(default=10_000_000, ge=1, description="the largest file that may enter a commit")
    idle_seconds: float = Field(default=86_400.0, ge=60, description="a workspace that nobody used for so long is removed")
    sweep_seconds: float = Field(default=600.0, ge=1)

    @field_validator("registries")
    @classmethod
    def _are_hosts(cls, text: str) -> str:
        for item in _items(text):
            AllowedHost.parse(item)
        return text

    @field_validator("toolchains")
    @classmethod
    def _are_folders(cls, text: str) -> str:
        for item in _items(text):
            if not Path(item).is_absolute():
                raise ValueError(f"{item} is not an absolute path")
        return text

    @property
    def registry_hosts(self) -> tuple[str, ...]:
        """The hosts that set-up may reach."""
        return _items(self.registries)

    @property
    def toolchain_prefixes(self) -> tuple[Path, ...]:
        """Folders to show besides those that are found."""
        return tuple(map(Path, _items(self.toolchains)))

    @cached_property
    def limits(self) -> Limits:
        """What one command may use."""
        names = ("memory_bytes", "processes", "output_bytes", "file_bytes", "tmp_bytes", "disk_bytes", "cpu_cores")
        return Limits(**{name: getattr(self, name) for name in names})


def _items(text: str) -> tuple[str, ...]:
    return tuple(item.strip() for item in text.split(",") if item.strip())
