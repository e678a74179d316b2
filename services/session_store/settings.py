"""Settings of the session store."""

from pathlib import Path

from pydantic import Field, ValidationInfo, field_validator
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError

from libs.settings import HomeSettings


class SessionStoreSettings(HomeSettings):
    """Where the tables are and how long spans are kept. The database is SQLite in the home folder unless a URL is set."""

    database_url: str | None = Field(default=None, repr=False, description="any SQLAlchemy URL with an asynchronous driver")
    trace_keep_days: float = Field(default=14, gt=0, le=3650)
    trace_keep_spans: int = Field(default=500_000, ge=1)
    sweep_seconds: float = Field(default=300, gt=0)

    @field_validator("database_url")
    @classmethod
    def _readable(cls, value: str | None, _: ValidationInfo) -> str | None:
        if not value:
            return None
        try:
            make_url(value)
        except ArgumentError as error:
            raise ValueError(
                "not a database URL: write sqlite+aiosqlite:///FILE or postgresql+asyncpg://USER:PASSWORD@HOST/NAME"
            ) from error
        return value

    def url(self) -> str:
        """The database's URL; makes the data folder when it is the default one."""
        if self.database_url:
            return self.database_url
        file: Path = self.folder("session_store") / "session_store.db"
        return f"sqlite+aiosqlite:///{file}"
