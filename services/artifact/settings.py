"""Settings of the artifact service."""

from pydantic import Field

from libs.settings import HomeSettings
from services.artifact.domain import Limits, Person


class ArtifactSettings(HomeSettings):
    """What may be imported, how large things may be, and how long hidden references and blobs are kept."""

    allow_local_paths: bool = Field(default=True, description="import repositories from directories of this machine")
    max_file_bytes: int = Field(default=10_000_000, ge=1, description="for one file that a run or a push adds")
    max_repository_bytes: int = Field(default=2_000_000_000, ge=1)
    max_push_bytes: int = Field(default=500_000_000, ge=1)
    max_blob_bytes: int = Field(default=600_000_000, ge=1)
    import_timeout_seconds: float = Field(default=600, gt=0)
    commit_author_name: str = Field(default="agent-coder", min_length=1)
    commit_author_email: str = Field(default="agent-coder@localhost", min_length=3)
    run_keep_days: float = Field(
        default=400, gt=0, description="hidden references and blobs of runs; longer than a run may wait for a person"
    )
    sweep_seconds: float = Field(default=3600, gt=0)

    @property
    def limits(self) -> Limits:
        """The bounds as the store takes them."""
        return Limits(
            max_file_bytes=self.max_file_bytes,
            max_repository_bytes=self.max_repository_bytes,
            max_push_bytes=self.max_push_bytes,
            import_timeout_seconds=self.import_timeout_seconds,
        )

    @property
    def author(self) -> Person:
        """Who writes the commits of fixes."""
        return Person(self.commit_author_name, self.commit_author_email)
