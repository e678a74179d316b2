"""The host's git on a hostile work tree: only plumbing that runs no program of the repository's choice.

The repository's own folder lies outside of the tree and holds a configuration that we wrote; hooks, filters, external diffs, file
system monitors and every transport are off, whatever the tree says.
"""

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path

from services.sandbox.errors import GitFailed

GIT_SECONDS = 120.0
ANSWER_BYTES = 256 * 1024 * 1024
CONFIGURATION = """[core]
	repositoryformatversion = 0
	filemode = true
	bare = false
	logallrefupdates = false
	symlinks = true
	quotepath = false
	autocrlf = false
	hooksPath = /dev/null
	fsmonitor = false
	untrackedCache = false
	attributesFile = /dev/null
	excludesFile = /dev/null
	sshCommand = false
	editor = true
	pager = cat
[gc]
	auto = 0
[maintenance]
	auto = false
[submodule]
	recurse = false
[protocol]
	allow = never
[uploadpack]
	packObjectsHook =
"""
OVERRIDES = (
    *("-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false", "-c", "core.attributesFile=/dev/null"),
    *("-c", "protocol.allow=never", "-c", "submodule.recurse=false", "-c", "gc.auto=0", "-c", "core.quotePath=false"),
)
ENVIRONMENT = {
    **{"LANG": "C.UTF-8", "HOME": "/nonexistent", "GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull},
    **{"GIT_CONFIG_SYSTEM": os.devnull, "GIT_ATTR_NOSYSTEM": "1", "GIT_TERMINAL_PROMPT": "0", "GIT_OPTIONAL_LOCKS": "0"},
    **{"GIT_NO_REPLACE_OBJECTS": "1", "GIT_LITERAL_PATHSPECS": "1", "GIT_ALLOW_PROTOCOL": "none", "GIT_NO_LAZY_FETCH": "1"},
}


class Git:
    """Runs git for one workspace."""

    def __init__(self, folder: Path, tree: Path) -> None:
        self.folder = folder
        self.tree = tree

    async def create(self) -> None:
        """Make the empty repository; what is there already stays."""
        if not (self.folder / "HEAD").exists():
            await self.run("init", "-q", "--template=", "-b", "main")
        (self.folder / "config").write_text(CONFIGURATION)
        (self.folder / "info").mkdir(exist_ok=True)

    async def run(
        self,
        *arguments: str,
        data: bytes = b"",
        environment: dict[str, str] | None = None,
        ok: Sequence[int] = (0,),
        timeout_seconds: float = GIT_SECONDS,
    ) -> bytes:
        """git's output. Raises GitFailed with git's words, on an exit code that is not in `ok`, a deadline or too long an answer."""
        places = ("--git-dir", str(self.folder), "--work-tree", str(self.tree))
        process = await asyncio.create_subprocess_exec(
            *("git", *places, *OVERRIDES, *arguments),
            cwd=self.tree,
            env={"PATH": os.environ.get("PATH", os.defpath), **ENVIRONMENT, **(environment or {})},
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            answer, words = await asyncio.wait_for(process.communicate(data), timeout_seconds)
        except BaseException as error:
            if process.returncode is None:
                process.kill()
            await process.wait()
            if isinstance(error, TimeoutError):
                raise GitFailed(f"git {arguments[0]} did not end within {timeout_seconds:g} seconds") from error
            raise
        if process.returncode not in ok:
            raise GitFailed(f"git {arguments[0]}: {words.decode(errors='replace').strip()[-2000:] or f'exit code {process.returncode}'}")
        return answer

    async def text(self, *arguments: str, environment: dict[str, str] | None = None, data: bytes = b"") -> str:
        """git's output as text without its last line end."""
        return (await self.run(*arguments, environment=environment, data=data)).decode(errors="replace").rstrip("\n")

    async def paths(self, *arguments: str, environment: dict[str, str] | None = None) -> list[str]:
        """Paths from a command that ends each with a zero byte; bytes that are not UTF-8 are kept as surrogates."""
        answer = await self.run(*arguments, environment=environment)
        return [os.fsdecode(path) for path in answer.split(b"\0") if path]
