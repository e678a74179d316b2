"""What a repository is and how it is set up and tested, worked out from its files alone."""

from libs.repository.config import CONFIG_PATH
from libs.repository.detect import Override, detect, files_to_read
from libs.repository.languages import is_test_path
from libs.repository.map import rank_files, repository_map
from libs.repository.project import Command, ConfigError, Language, Project, RepositoryError, Snapshot, Tree

__all__ = [
    "CONFIG_PATH",
    "Command",
    "ConfigError",
    "Language",
    "Override",
    "Project",
    "RepositoryError",
    "Snapshot",
    "Tree",
    "detect",
    "files_to_read",
    "is_test_path",
    "rank_files",
    "repository_map",
]
