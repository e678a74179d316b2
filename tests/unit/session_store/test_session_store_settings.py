"""Where the database is."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from services.session_store.settings import SessionStoreSettings


def test_by_default_the_database_is_a_file_in_the_home_folder(tmp_path: Path) -> None:
    assert SessionStoreSettings(home=tmp_path).url() == f"sqlite+aiosqlite:///{tmp_path}/session_store/session_store.db"
    assert (tmp_path / "session_store").is_dir()


def test_a_url_is_taken_as_it_is_and_not_shown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AGENT_CODER_DATABASE_URL", "postgresql+asyncpg://u:secret@host/db")
    settings = SessionStoreSettings(home=tmp_path)
    assert settings.url() == "postgresql+asyncpg://u:secret@host/db"
    assert "secret" not in repr(settings)


def test_what_is_no_url_is_refused_with_an_example() -> None:
    with pytest.raises(ValidationError, match="postgresql"):
        SessionStoreSettings(database_url="not a url")
