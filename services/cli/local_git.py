"""The caller's own repository: what a run will and will not see of it, and the branch of a run put into it.

Invariant: a token travels in the environment of git alone, never in its arguments and never in a configuration file.
"""

import base64
import os
import subprocess
from pathlib import Path
from urllib.parse import urlsplit

from services.cli.errors import CliError, Usage


def git(*arguments: str, cwd: Path | None = None, environment: dict[str, str] | None = None) -> str:
    """Run git and return its output.

    Raises:
        CliError: git is missing or ended with an error; the text is git's.
    """
    merged = {**os.environ, "GIT_TERMINAL_PROMPT": "0", **(environment or {})}
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=cwd, env=merged, capture_output=True, encoding="utf-8", errors="replace", check=False
        )
    except FileNotFoundError as error:
        raise CliError("git is missing.", "Install it: `sudo apt-get install git`, or your system's way.") from error
    if done.returncode != 0:
        raise CliError(f"git {arguments[0]}: {done.stderr.strip()[-2000:]}")
    return done.stdout


def repository(given: str) -> str:
    """What the server is to be told: a URL or a name of its store as it is, a local path made absolute.

    Raises:
        Usage: a path that is no git repository.
    """
    path = Path(given).expanduser()
    looks_local = path.is_absolute() or given.startswith((".", "~")) or path.exists()
    if not looks_local or "://" in given:
        return given
    if not path.is_dir():
        raise Usage(f"There is no folder {path}.")
    try:
        return git("rev-parse", "--show-toplevel", cwd=path).strip() or git("rev-parse", "--absolute-git-dir", cwd=path).strip()
    except CliError as error:
        if "must be run in a work tree" in error.message:
            return git("rev-parse", "--absolute-git-dir", cwd=path).strip()
        raise Usage(f"{path.absolute()} is no git repository ({error.message}).", f"Make it one: git init {path}, then commit.") from error


def uncommitted(path: Path) -> int:
    """How many files of a work tree differ from its last commit: a run does not see those changes."""
    try:
        return len(git("status", "--porcelain", cwd=path).splitlines())
    except CliError:
        return 0


def authorized(clone_url: str, token: str) -> dict[str, str]:
    """The environment that lets git open `clone_url`: one header, for that server alone (git-config(1), GIT_CONFIG_COUNT)."""
    parts = urlsplit(clone_url)
    basic = base64.b64encode(f"token:{token}".encode()).decode()
    return {
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": f"http.{parts.scheme}://{parts.netloc}/.extraHeader",
        "GIT_CONFIG_VALUE_0": f"Authorization: Basic {basic}",
    }


def fetch(into: Path, clone_url: str, branch: str, token: str, base: str | None = None) -> None:
    """Fetch one branch into the local repository under its own name. `base` is the commit that the branch began at.

    Raises:
        Usage: no repository there, or one that does not know `base`: the branch is of another repository.
        CliError: the branch moved apart from the local one, or it is checked out.
    """
    repository(str(into.absolute()))
    try:
        if base is not None:
            git("cat-file", "-e", f"{base}^{{commit}}", cwd=into)
    except CliError as error:
        raise Usage(
            f"{into.absolute()} has no commit {str(base)[:10]}, which the run began at: it is another repository, or older.",
            "Go to the run's repository or name it with --into; if it is older, git fetch there first.",
        ) from error
    try:
        git("fetch", "--no-tags", clone_url, f"refs/heads/{branch}:refs/heads/{branch}", cwd=into, environment=authorized(clone_url, token))
    except CliError as error:
        raise CliError(
            error.message, f"A local branch {branch} that has its own commits, or is checked out, is not touched: rename it."
        ) from error


def clone(clone_url: str, branch: str, into: Path, token: str) -> None:
    """Clone one branch."""
    git("clone", "--quiet", "--branch", branch, clone_url, str(into), environment=authorized(clone_url, token))
