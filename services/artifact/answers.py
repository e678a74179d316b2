"""The store's values as the contract's messages, cut where they would not fit into one message of the bus."""

from collections.abc import AsyncGenerator, AsyncIterable, Sequence

from pydantic_core import to_json

from libs.contracts import artifact as ask
from libs.contracts.run import ChangedFile as ChangedFileMessage
from services.artifact.domain import ChangedFile, FileEntry, Imported, Patch
from services.artifact.store import Store

_ANSWER_BYTES = 6_000_000
_ENTRY_BYTES = 120
_CHANGED_FILES = 5_000
_FRAME_BYTES = 256 * 1024
_BRANCHES = 1_000


def printable(path: str) -> str:
    """A path as valid text: bytes that are not UTF-8 are shown as `\\xNN`."""
    return path.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def imported_answer(imported: Imported, base: str | None) -> ask.Imported:
    """Where no branch is the base, `base_branch` repeats what was asked for; where the source has no default branch, it stands for it."""
    branch = printable(imported.base_branch or base or "HEAD")
    default = printable(imported.default_branch or branch)
    return ask.Imported(repository=imported.repository, base_branch=branch, base_commit=imported.base_commit, default_branch=default)


async def described(store: Store, name: str) -> ask.RepositoryDescription:
    """One repository with its branches. Raises RepositoryNotFound."""
    git = store.repositories.git(name)
    branches = sorted(map(printable, await store.repositories.refs(git, "refs/heads/")))
    default = printable(await store.repositories.default_branch(git))
    source = (await git.run("config", "--get", "agent-coder.source", ok=(0, 1))).text
    return ask.RepositoryDescription(
        name=name,
        source=printable(source) or None,
        default_branch=default if default in branches else None,
        branches=tuple(branches[:_BRANCHES]),
    )


def fitting_entries(files: Sequence[FileEntry], limit: int) -> ask.Tree:
    """As many entries as are wanted and fit."""
    entries: list[ask.TreeEntry] = []
    size = 0
    for file in files[:limit]:
        path = printable(file.path)
        size += len(to_json(path)) + _ENTRY_BYTES
        if size > _ANSWER_BYTES:
            break
        entries.append(
            ask.TreeEntry(path=path, mode=file.mode, size=None if file.mode == "160000" else file.size_bytes, object_id=file.sha)
        )
    return ask.Tree(entries=tuple(entries), truncated=len(entries) < len(files))


def fitting_patch(patch: Patch, files: Sequence[ChangedFile], max_characters: int) -> ask.DiffResult:
    """The diff as text (what is not UTF-8 is replaced), and its files."""
    whole = patch.data.decode("utf-8", "replace")
    text = fit_json(whole[:max_characters], _ANSWER_BYTES - 1_500_000)
    cut = patch.truncated or len(text) < len(whole) or len(files) > _CHANGED_FILES
    return ask.DiffResult(diff=text, changed_files=tuple(map(changed_file, files[:_CHANGED_FILES])), truncated=cut)


def fit_json(text: str, limit_bytes: int) -> str:
    """The longest beginning, in steps of a tenth, whose JSON form has at most `limit_bytes`."""
    while len(to_json(text)) > limit_bytes:
        text = text[: len(text) * 9 // 10]
    return text


def changed_file(file: ChangedFile) -> ChangedFileMessage:
    """One changed file of the contract."""
    return ChangedFileMessage(
        path=printable(file.path),
        status=file.status,
        renamed_from=printable(file.renamed_from) if file.renamed_from else None,
        added_lines=file.added_lines,
        deleted_lines=file.deleted_lines,
    )


async def regrouped(pieces: AsyncIterable[bytes]) -> AsyncGenerator[bytes, None]:
    """The same bytes in frames of 256 KB; what is there when the source ends goes out at once."""
    held = bytearray()
    async for piece in pieces:
        held += piece
        while len(held) >= _FRAME_BYTES:
            yield bytes(held[:_FRAME_BYTES])
            del held[:_FRAME_BYTES]
    if held:
        yield bytes(held)
