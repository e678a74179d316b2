"""The files that one edit changes, seen as the later parts of the edit see them; nothing is written anywhere."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pydantic import BaseModel, ConfigDict

from libs.edits.errors import EditError, EditFailed

Read = Callable[[str], bytes | None]


class FileChange(BaseModel):
    """One file after an edit. Whoever writes them removes every `renamed_from` and deleted path first, then writes the contents.

    `content` None deletes the file; `mode` is permission bits (0o644, 0o755), None keeps the mode of the file or of `renamed_from`.
    """

    model_config = ConfigDict(frozen=True)

    path: str
    content: bytes | None
    renamed_from: str | None = None
    mode: int | None = None


@contextmanager
def naming(path: str) -> Iterator[None]:
    """Puts the file's name before the text of an EditError raised inside."""
    try:
        yield
    except EditError as error:
        error.args = (f"{path}: {error}",)
        raise


class Changes:
    """Collects changes over the files that `read` gives; one change a path, in the order of first mention."""

    def __init__(self, read: Read) -> None:
        self._before = read
        self._changes: dict[str, FileChange] = {}
        self._moved_away: set[str] = set()

    def read(self, path: str) -> bytes | None:
        if path in self._changes:
            return self._changes[path].content
        return None if path in self._moved_away else self._before(path)

    def write(self, path: str, content: bytes, mode: int | None = None) -> None:
        earlier = self._changes.get(path)
        origin = earlier.renamed_from if earlier else None
        mode = mode if mode is not None or earlier is None else earlier.mode
        self._changes[path] = FileChange(path=path, content=content, renamed_from=origin, mode=mode)

    def delete(self, path: str) -> None:
        earlier = self._changes.pop(path, None)
        for name in (path, earlier.renamed_from if earlier else None):
            if name and self._before(name) is not None:
                self._changes[name] = FileChange(path=name, content=None)

    def source(self, path: str) -> bytes | None:
        """What a rename of `path` moves: git's names mean the files before the patch, so two files may swap their names."""
        earlier = self._changes.get(path)
        before = self._before(path) if earlier is not None and earlier.renamed_from is not None else None
        return self.read(path) if before is None else before

    def move(self, old: str, new: str, content: bytes, mode: int | None = None) -> None:
        """Record `content`, which came from `source(old)`, under the name `new`."""
        earlier = self._changes.get(old)
        origin: str | None = old
        if earlier is not None and (earlier.renamed_from is None or self._before(old) is None):
            del self._changes[old]
            origin = earlier.renamed_from or (old if self._before(old) is not None else None)
            mode = earlier.mode if mode is None else mode
        self._moved_away.add(old)
        self._changes[new] = FileChange(path=new, content=content, renamed_from=origin, mode=mode)

    def result(self, when_empty: str) -> list[FileChange]:
        """The changes that change something. Raises EditFailed with `when_empty` if none does."""
        changes = [change for change in self._changes.values() if self._is_change(change)]
        if not changes:
            raise EditFailed(when_empty)
        return changes

    def _is_change(self, change: FileChange) -> bool:
        return change.renamed_from is not None or change.mode is not None or change.content != self._before(change.path)
