"""A repository at a commit, read from the artifact store for the repository map, for detection and for guidance.

Invariant: a commit never changes, so neither does what is read here; a resumed step reads the same.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from libs.contracts.artifact import CommittedFiles, ListTree, ReadCommitted, Tree
from libs.contracts.envelope import Ask
from libs.repository import Project, Snapshot, files_to_read, rank_files
from libs.repository.agents_md import AGENTS_PATHS

_FILES_FOR_MAP = 40
_MAX_BYTES = 200_000
_LINKS_AND_MODULES = ("120000", "160000")
_READMES = ("readme", "readme.md", "readme.rst", "readme.txt", "readme.markdown", "readme.adoc")


@dataclass(frozen=True)
class Committed:
    """A commit's files: the paths and texts that were fetched, and every file's object id."""

    tree: Snapshot
    object_ids: Mapping[str, str]
    truncated: bool = False

    def guidance(self) -> str:
        """The text of AGENTS.md, empty when there is none."""
        return next((text for path in AGENTS_PATHS if (text := self.tree.read(path))), "")


async def read_commit(ask: Ask, repository: str, commit: str, issue_text: str, extra: Iterable[str] = ()) -> Committed:
    """List a commit and fetch the texts that detection, the map and `extra` need. Raises Refusal or NoAnswer."""
    listed: Tree = await ask(ListTree(repository=repository, commit=commit))
    paths = [entry.path for entry in listed.entries if entry.mode not in _LINKS_AND_MODULES]
    ranked = rank_files(Snapshot(paths, {}), issue_text, _FILES_FOR_MAP)
    known = set(paths)
    readmes = [path for path in paths if path.lower() in _READMES]
    wanted = dict.fromkeys(path for path in (*files_to_read(paths), *readmes, *extra, *ranked) if path in known)
    texts = await read_texts(ask, repository, commit, tuple(wanted))
    ids = {entry.path: entry.object_id for entry in listed.entries}
    return Committed(Snapshot(paths, texts), ids, listed.truncated)


async def read_texts(ask: Ask, repository: str, commit: str, paths: Sequence[str]) -> dict[str, str]:
    """The texts of those `paths` that exist and are UTF-8."""
    texts: dict[str, str] = {}
    for start in range(0, len(paths), 500):
        question = ReadCommitted(repository=repository, commit=commit, paths=tuple(paths[start : start + 500]), max_bytes=_MAX_BYTES)
        found: CommittedFiles = await ask(question)
        for file in found.files:
            try:
                text = file.content.decode("utf-8-sig", "ignore" if file.truncated else "strict")
            except UnicodeDecodeError:
                continue
            if "\0" not in text:
                texts[file.path] = text
    return texts


def setup_key(commands: Sequence[str], project: Project, object_ids: Mapping[str, str]) -> str:
    """A digest of the set-up commands and of the files that decide what they install."""
    digest = hashlib.sha256("\0".join(commands).encode())
    for path in project.lock_files:
        digest.update(f"\0{path}\0{object_ids.get(path, '')}".encode())
    return digest.hexdigest()
