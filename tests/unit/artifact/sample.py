"""Real git repositories for the artifact tests, built with the git command."""

import os
import subprocess
from pathlib import Path

ENVIRONMENT = {
    "PATH": os.environ["PATH"],
    "HOME": "/nonexistent",
    "LC_ALL": "C.UTF-8",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_AUTHOR_NAME": "A Person",
    "GIT_AUTHOR_EMAIL": "person@example.org",
    "GIT_COMMITTER_NAME": "A Person",
    "GIT_COMMITTER_EMAIL": "person@example.org",
    "GIT_AUTHOR_DATE": "@1700000000 +0000",
    "GIT_COMMITTER_DATE": "@1700000000 +0000",
}


def run_git(directory: Path, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", *arguments], cwd=directory, env=ENVIRONMENT, capture_output=True, text=True, check=check, timeout=60)


class Sample:
    """A working repository that a test changes as a person would."""

    def __init__(self, path: Path, branch: str = "main") -> None:
        self.path = path
        path.mkdir(parents=True)
        self.git("init", "-q", "-b", branch)

    def git(self, *arguments: str) -> str:
        return run_git(self.path, *arguments).stdout.strip()

    def commit(self, files: dict[str, str | bytes | None], message: str = "change") -> str:
        for name, content in files.items():
            target = self.path / name
            if content is None:
                target.unlink()
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content.encode() if isinstance(content, str) else content)
        self.git("add", "-A")
        self.git("commit", "-q", "--allow-empty", "-m", message)
        return self.head

    @property
    def head(self) -> str:
        return self.git("rev-parse", "HEAD")

    def bundle(self, target: Path, tip: str, *arguments: str) -> Path:
        """A bundle of `tip`, less what `arguments` (such as ^<commit>) leave out."""
        self.git("update-ref", "refs/heads/bundled", tip)
        self.git("bundle", "create", "-q", str(target), "bundled", *arguments)
        return target
