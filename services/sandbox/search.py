"""Finds files and lines by pattern. Patterns are tried inside the sandbox under a deadline, as one can be made to run for ever."""

from pathlib import PurePosixPath

from libs.contracts.sandbox import GrepMatch, GrepResult, Paths
from services.sandbox.backends import Backend, CommandSpec, Limits
from services.sandbox.errors import BadPath, BadPattern, SandboxError

SEARCH_SECONDS = 20.0
LINE_CHARACTERS = 500
MEBIBYTE = 1024 * 1024
LIMITS = Limits(memory_bytes=1024 * MEBIBYTE, processes=64, output_bytes=16 * MEBIBYTE, kept_output_bytes=32 * MEBIBYTE)
NO_MATCH = 1
CUT = ("output_limit", "timeout")
GREP = ("grep", "--untracked", "-n", "-I", "-z", "--no-color", "--full-name", "--no-recurse-submodules")
NO_PERL = "USE_LIBPCRE"


class Search:
    """Searches one workspace. `place` is the workspace's spec without command."""

    def __init__(self, backend: Backend, place: CommandSpec) -> None:
        self._backend = backend
        self._place = place.model_copy(update={"timeout_seconds": SEARCH_SECONDS, "limits": LIMITS})

    async def glob(self, pattern: str, limit: int) -> Paths:
        """Files that git does not ignore and that match; a pattern without `/` matches in every folder. Raises BadPattern."""
        anchored = pattern.lstrip("/") if "/" in pattern.strip("/") or pattern.startswith("/") else f"**/{pattern}"
        output, cut = await self._git(["ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", f":(top,glob){anchored}"])
        found = sorted({_shown(path) for path in output.split(b"\0") if path and not path.endswith(b"/")})
        gone = await self._deleted() if found else set()
        kept = [path for path in found if path not in gone]
        return Paths(paths=tuple(kept[:limit]), truncated=cut or len(kept) > limit)

    async def grep(self, pattern: str, path: str, limit: int) -> GrepResult:
        """Matching lines of text files that git does not ignore. The pattern is Perl-compatible where the sandbox's git knows that
        form, else an extended regular expression. Raises BadPattern, BadPath.
        """
        scope = f":(top,literal){relative(path)}"
        try:
            output, cut = await self._git([*GREP, "-P", "-e", pattern, "--", scope], quiet=(NO_MATCH,))
        except BadPattern as error:
            if NO_PERL not in str(error):
                raise
            output, cut = await self._git([*GREP, "-E", "-e", pattern, "--", scope], quiet=(NO_MATCH,))
        matches = sorted((match for line in output.split(b"\n") if (match := _match(line))), key=lambda found: (found.path, found.line))
        return GrepResult(matches=tuple(matches[:limit]), truncated=cut or len(matches) > limit)

    async def _deleted(self) -> set[str]:
        output, _ = await self._git(["ls-files", "-z", "--deleted"])
        return {_shown(path) for path in output.split(b"\0")}

    async def _git(self, arguments: list[str], quiet: tuple[int, ...] = ()) -> tuple[bytes, bool]:
        """git's output, and whether it was cut. Raises BadPattern."""
        result = await self._backend.run(self._place.model_copy(update={"command": ["git", "-c", "core.quotePath=false", *arguments]}))
        if result.outcome == "timeout" and not result.stdout:
            raise BadPattern(f"nothing was found within {SEARCH_SECONDS:g} seconds; use a simpler pattern or a narrower path")
        if result.outcome in CUT:
            return result.stdout, True
        if result.outcome != "exited":
            raise SandboxError(f"the search ended as {result.outcome}: {result.reason}")
        if result.exit_code != 0 and result.exit_code not in quiet:
            raise BadPattern(result.stderr.decode(errors="replace").strip() or f"git ended with {result.exit_code}")
        return result.stdout, False


def relative(path: str) -> str:
    """A path below the workspace in git's form, "" for the whole. Raises BadPath."""
    path = path.removeprefix("/workspace/") if path != "/workspace" else "."
    if path.startswith("/") or ".." in PurePosixPath(path).parts or "\0" in path:
        raise BadPath(f"{path} is outside of the workspace")
    return "" if path in {".", ""} else path.rstrip("/")


def _match(line: bytes) -> GrepMatch | None:
    path, _, rest = line.partition(b"\0")
    number, separator, text = rest.partition(b"\0")
    if not separator or not number.isdigit():
        return None
    return GrepMatch(path=_shown(path), line=int(number), text=text.decode("utf-8", "replace")[:LINE_CHARACTERS])


def _shown(path: bytes) -> str:
    return path.decode("utf-8", errors="backslashreplace")
