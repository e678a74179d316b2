"""Imports a repository from a URL, a directory or this store, and follows it when it is imported again.

Invariant: a branch made here is never overwritten or deleted by an import, and a credential reaches git through a pipe only.
"""

import re
from collections.abc import Awaitable, Callable
from dataclasses import replace

from services.artifact.credentials import presenting
from services.artifact.domain import FIX_PREFIX, ORIGIN, Imported, Limits, Login, mirror_moves, pick_default_branch
from services.artifact.errors import (
    ArtifactError,
    AuthenticationRequired,
    EmptyRepository,
    GitFailed,
    GitTimedOut,
    NotARepository,
    RepositoryNotFound,
    SourceRefused,
    SourceUnreachable,
    TooLarge,
    UnknownBase,
)
from services.artifact.git import CONFIG, Git
from services.artifact.names import LocalSource, RemoteSource, StoredSource, is_sha, parse_source
from services.artifact.repositories import Repositories

_ORIGIN_HEAD = "refs/origin/HEAD"
FindLogin = Callable[[str], Awaitable[Login | None]]
_FOLDERS = (ORIGIN, "refs/heads/")
_PULL = re.compile(r"(?:refs/)?pull/(\d{1,10})/head")

# Git tells its failures in words only (LC_ALL=C). The first expression that is found decides.
_FAILURES: tuple[tuple[str, type[ArtifactError], str], ...] = (
    (
        r"signal 25|File too large",
        TooLarge,
        "The repository is over the limit of {limit:,} bytes. Raise the limit, or import a smaller one.",
    ),
    (
        r"could not read (Username|Password)|Authentication failed|error: 40[13]|Permission denied|Host key verification failed",
        AuthenticationRequired,
        "{place} wants a credential, or refused the one given (it may also not exist). Check the address, and give one that may read it.",
    ),
    (
        r"dubious ownership",
        SourceRefused,
        "{place} belongs to another user of this machine. Make its owner the one who runs agent-coder, or give its URL.",
    ),
    (
        r"transport '\w+' not allowed|disabled in libcurl|Unsupported URL scheme",
        SourceRefused,
        "{place} leads to a transport that is not used. Give an https, http or ssh URL.",
    ),
    (
        r"error: 404|repository '.*' not found|Repository not found|does not exist",
        RepositoryNotFound,
        "Nothing is found at {place}. Check the address.",
    ),
    (
        r"not valid: is this a git repository|not appear to be a git repository|not a git repository|invalid (server response|pkt-len)"
        r"|protocol error: bad line length",
        NotARepository,
        "{place} answers, but not as a git repository. Give the clone URL, or a directory that `git init` or `git clone` made.",
    ),
    (
        r"is corrupt|unable to unpack|inflate: data stream|bad object|broken link",
        SourceRefused,
        "{place} is damaged: objects of it are broken or missing. Run `git fsck` there, and repair it or clone it again.",
    ),
    (
        r"Could not resolve|[Cc]onnect|timed out|Operation too slow|early EOF|hung up|error: (5\d\d|429)|unexpected disconnect"
        r"|RPC failed|kex_exchange|SSL",
        SourceUnreachable,
        "{place} did not answer, or broke off. Check the address and the network.",
    ),
)


def explain(stderr: str, place: str, limits: Limits) -> ArtifactError:
    """The error that git's words about a source mean. `place` must not hold a credential."""
    for pattern, kind, text in _FAILURES:
        if re.search(pattern, stderr):
            return kind(text.format(place=place, limit=limits.max_repository_bytes))
    return GitFailed(f"git failed at {place}: {stderr.strip()[-1000:]}")


class Importer:
    """Brings repositories into the store."""

    def __init__(self, repositories: Repositories, *, allow_local_paths: bool) -> None:
        self._repositories = repositories
        self._allow_local_paths = allow_local_paths

    async def import_source(self, source: str, base: str | None = None, find_login: FindLogin | None = None) -> Imported:
        """Imports or updates the repository that `source` means and resolves `base` (a branch, tag or commit; None: its HEAD).

        The name here follows from the source, so importing twice gives the same repository. `find_login` is asked for a URL without one.
        `refs/pull/<n>/head` is a pull request's head; it is kept under that number, whatever its branch is called where it lies.
        Raises SourceRefused, RepositoryNotFound, NotARepository, EmptyRepository, UnknownBase, AuthenticationRequired, TooLarge,
        SourceUnreachable (retryable).
        """
        place = parse_source(source, allow_local_paths=self._allow_local_paths)
        if isinstance(place, StoredSource):
            return await self._describe(self._repositories.git(place.name), place.name, base, ("refs/heads/",))
        if isinstance(place, LocalSource):
            await self._inspect(place)
        elif place.login is None and place.protocol != "ssh" and find_login:
            place = replace(place, login=await find_login(place.url))
        async with self._repositories.locked(place.name):
            if self._repositories.exists(place.name):
                return await self._follow(self._repositories.git(place.name), place, base)
            async with self._repositories.prepared(place.name) as git:
                return await self._follow(git, place, base)

    async def _inspect(self, source: LocalSource) -> None:
        path = source.path
        if not path.is_dir():
            raise RepositoryNotFound(
                f"There is no directory {str(path)!r}. Check the path; it is looked up on the machine of the artifact service."
            )
        git = Git(path, config=CONFIG)
        found = await git.run("rev-parse", "--is-shallow-repository", "--show-prefix", "--absolute-git-dir", ok=(0, 128))
        if found.code:
            raise explain(found.stderr, str(path), self._repositories.limits)
        shallow, prefix = found.stdout.decode("utf-8", "surrogateescape").split("\n")[:2]
        if prefix and not prefix.startswith("/"):
            raise NotARepository(f"{str(path)!r} lies inside a repository but is not its top directory. Give the top directory.")
        if shallow == "true":
            raise SourceRefused(
                f"{str(path)!r} is a shallow clone: its history is cut off. Run `git fetch --unshallow` there, or give its URL."
            )
        partial = await git.run("config", "--get-regexp", r"^(extensions\.partialclone|remote\..*\.promisor)$", ok=(0, 1))
        if partial.code == 0:
            raise SourceRefused(f"{str(path)!r} is a partial clone: objects are missing. Give its URL, or clone it again without --filter.")

    async def _follow(self, git: Git, source: RemoteSource | LocalSource, base: str | None) -> Imported:
        head_branch, head_commit = await self._remote_head(git, source)
        before = await self._repositories.refs(git, ORIGIN)
        wanted = [f"+refs/heads/*:{ORIGIN}*"] + ([f"+HEAD:{_ORIGIN_HEAD}"] if head_commit else [])
        await self._fetch(git, source, "--prune", "--tags", "--force", self._address(source), *wanted)
        after = await self._repositories.refs(git, ORIGIN)
        if not after and not head_commit:
            raise EmptyRepository(f"{self._address(source)} shows no commit: it is empty, or not a repository. Make a first commit there.")
        if await self._repositories.size_bytes(git) > self._repositories.limits.max_repository_bytes:
            raise explain("File too large", self._address(source), self._repositories.limits)
        default = pick_default_branch(head_branch, after)
        if default:
            await git.run("symbolic-ref", "HEAD", f"refs/heads/{default}")
        local = await self._repositories.refs(git, "refs/heads/")
        await self._repositories.move_branches(git, mirror_moves(before, after, local, default))
        await git.run("config", "agent-coder.source", self._address(source))
        if base is None and head_commit and head_branch is None:
            return Imported(source.name, None, head_commit, default, await self._repositories.size_bytes(git))
        if pull := _PULL.fullmatch(base or ""):
            base = await self._fetch_pull(git, source, pull[1])
        await self._fetch_named(git, source, base)
        return await self._describe(git, source.name, base, await self._folders(git, base))

    async def _folders(self, git: Git, base: str | None) -> tuple[str, ...]:
        """Where a branch is looked up first: where it comes from, but a fix branch here when a run went on with it since."""
        if base and base.startswith(FIX_PREFIX.rstrip("/")):
            here = (await self._repositories.refs(git, "refs/heads/")).get(base)
            there = (await self._repositories.refs(git, ORIGIN)).get(base)
            if here and there and await self._repositories.is_ancestor(git, there, here):
                return _FOLDERS[::-1]
        return _FOLDERS

    async def _fetch_pull(self, git: Git, source: RemoteSource | LocalSource, number: str) -> str:
        """The head of a pull request, also of a fork."""
        try:
            await self._fetch(git, source, self._address(source), f"+refs/pull/{number}/head:refs/origin/pull/{number}")
        except GitTimedOut:
            raise
        except GitFailed:
            raise UnknownBase(f"{self._address(source)} has no pull request {number}.") from None
        return await git.text("rev-parse", "--verify", f"refs/origin/pull/{number}^{{commit}}")

    async def _fetch_named(self, git: Git, source: RemoteSource | LocalSource, base: str | None) -> None:
        """A full commit id that no branch leads to: servers hand it out when asked by name."""
        if base and is_sha(base) and (await git.run("cat-file", "-e", f"{base}^{{commit}}", ok=(0, 1, 128))).code:
            try:
                await self._fetch(git, source, self._address(source), f"{base}:refs/origin/{base}")
            except GitFailed as error:
                if isinstance(error, GitTimedOut):
                    raise

    async def _describe(self, git: Git, name: str, base: str | None, folders: tuple[str, ...]) -> Imported:
        branch, commit = await self._repositories.resolve(git, base, folders)
        default: str | None = await self._repositories.default_branch(git)
        if default not in await self._repositories.refs(git, "refs/heads/"):
            default = None
        return Imported(name, branch, commit, default, await self._repositories.size_bytes(git))

    async def _remote_head(self, git: Git, source: RemoteSource | LocalSource) -> tuple[str | None, str | None]:
        """The branch (None when detached) and the commit (None when unborn) of the source's HEAD."""
        listed = await self._talk(git, source, "ls-remote", "--symref", "--", self._address(source), "HEAD")
        branch = commit = None
        for line in listed.splitlines():
            value, _, ref = line.partition("\t")
            if ref == "HEAD" and value.startswith("ref: refs/heads/"):
                branch = value.removeprefix("ref: refs/heads/")
            elif ref == "HEAD":
                commit = value
        return branch, commit

    async def _fetch(self, git: Git, source: RemoteSource | LocalSource, *arguments: str) -> None:
        await self._talk(git, source, "fetch", "--quiet", "--no-write-fetch-head", "--no-recurse-submodules", *arguments)

    async def _talk(self, git: Git, source: RemoteSource | LocalSource, *arguments: str) -> str:
        limits = self._repositories.limits
        connected = replace(
            git,
            protocols=("file",) if isinstance(source, LocalSource) else (source.protocol,),
            timeout_seconds=limits.import_timeout_seconds,
            max_file_bytes=limits.max_repository_bytes,
        )
        login = source.login if isinstance(source, RemoteSource) else None
        try:
            with presenting(connected, self._address(source), login) as able:
                result = await able.run(*arguments, ok=range(256))
        except GitTimedOut:
            seconds = limits.import_timeout_seconds
            raise SourceUnreachable(
                f"{self._address(source)} was not imported within {seconds:g} seconds. It will be tried again."
            ) from None
        if result.code:
            raise explain(result.stderr, self._address(source), limits)
        return result.text

    def _address(self, source: RemoteSource | LocalSource) -> str:
        return str(source.path) if isinstance(source, LocalSource) else source.url
