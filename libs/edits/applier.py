"""Applies a model's edits to file contents: text replacement, unified diffs, search/replace blocks, whole files.

Pure: bytes in, bytes or file changes out. All of an edit applies or none of it; a failed one raises EditError and nothing has changed.
"""

from libs.edits.blocks import parse_search_replace, parse_whole_files
from libs.edits.changes import Changes, FileChange, Read, naming
from libs.edits.errors import EditError, EditFailed, NotText, UnsafePath
from libs.edits.hunks import apply_hunks
from libs.edits.paths import check_path
from libs.edits.replacing import replace, replace_block, rewrite
from libs.edits.text_file import TextFile, decode, is_text
from libs.edits.unified_diff import FileDiff, parse

__all__ = [
    "EditError",
    "EditFailed",
    "FileChange",
    "NotText",
    "TextFile",
    "UnsafePath",
    "apply_patch",
    "apply_search_replace",
    "apply_whole_files",
    "check_path",
    "decode",
    "is_text",
    "parse_search_replace",
    "parse_whole_files",
    "replace",
    "rewrite",
]


def apply_patch(diff: str, read: Read) -> list[FileChange]:
    """The files that a unified diff changes, in its order. `read` gives a file's bytes, None where there is none.

    Raises EditFailed, NotText or UnsafePath; the text names the file.
    """
    changes = Changes(read)
    files = [_resolved(file, changes) for file in parse(diff)]
    vacated = {file.old for file in files if file.old and not file.copied and file.old != file.new}
    for file in files:
        with naming(file.name):
            _apply_file(file, changes, vacated)
    return changes.result("The diff leaves every file as it is. Check whether it has been applied already.")


def apply_search_replace(text: str, read: Read) -> list[FileChange]:
    """The files that search/replace blocks change; an empty SEARCH creates a file. Raises as `apply_patch`."""
    changes = Changes(read)
    for path, old, new in parse_search_replace(text):
        name = check_path(path)
        with naming(name):
            changes.write(name, _block_applied(changes.read(name), old, new))
    return changes.result("The search/replace blocks leave every file as it is.")


def apply_whole_files(text: str, read: Read) -> list[FileChange]:
    """The files of an answer in whole-file form; one that exists keeps encoding, BOM and line endings. Raises as `apply_patch`."""
    changes = Changes(read)
    for path, content in parse_whole_files(text):
        name = check_path(path)
        with naming(name):
            changes.write(name, rewrite(changes.read(name), content))
    return changes.result("Every file of the answer is as it was before. Change at least one.")


def _block_applied(data: bytes | None, old: str, new: str) -> bytes:
    if not old and not data:
        return rewrite(data, new)
    if data is None:
        raise EditFailed("There is no such file. Check the path, or create the file with an empty SEARCH part.")
    if not old:
        raise EditFailed("The SEARCH part is empty but the file exists. Give the lines to replace.")
    return replace_block(data, old, new)


def _resolved(file: FileDiff, changes: Changes) -> FileDiff:
    """The diff with safe paths, and with the one name that exists where a plain diff gives two (`x.orig` and `x`)."""
    file.old = _existing(check_path(file.old), changes) if file.old else None
    file.new = check_path(file.new) if file.new else None
    if file.old and file.new and not (file.renamed or file.copied):
        file.new = _existing(file.new, changes)
        if changes.read(file.new) is not None or changes.read(file.old) is None:
            file.old = file.new
        elif file.old != file.new:
            file.renamed = not file.old.endswith("/" + file.new)
            file.new = file.new if file.renamed else file.old
    return file


def _existing(path: str, changes: Changes) -> str:
    """`path`, or `path` without an `a/` or `b/` that only the model meant as a prefix."""
    bare = path[2:]
    if path.startswith(("a/", "b/")) and bare and changes.read(path) is None and changes.read(bare) is not None:
        return bare
    return path


def _apply_file(file: FileDiff, changes: Changes, vacated: set[str]) -> None:
    if file.new is None:
        _delete(file, changes)
    elif file.old is None:
        _create(file, changes, vacated)
    elif file.renamed or file.copied:
        _move(file, file.old, file.new, changes, vacated)
    else:
        _modify(file, file.new, changes)


def _delete(file: FileDiff, changes: Changes) -> None:
    data = changes.read(file.name)
    if data is None:
        raise EditFailed("The diff deletes this file, but there is no such file.")
    if file.hunks and decode(apply_hunks(data, file.hunks)).text.strip():
        raise EditFailed("The diff deletes this file but its removed lines are not all of it. Read it again, or remove it with a command.")
    changes.delete(file.name)


def _create(file: FileDiff, changes: Changes, vacated: set[str]) -> None:
    _check_vacant(file.name, changes, vacated)
    changes.write(file.name, apply_hunks(b"", file.hunks), file.mode)


def _check_vacant(path: str, changes: Changes, vacated: set[str]) -> None:
    if path not in vacated and changes.read(path):
        raise EditFailed("The diff creates this file, but it exists. Read it and send a diff against its present text.")


def _move(file: FileDiff, old: str, new: str, changes: Changes, vacated: set[str]) -> None:
    data = changes.source(old)
    if data is None:
        raise EditFailed(f"The diff takes this file from {old}, but there is no such file.")
    _check_vacant(new, changes, vacated)
    content = apply_hunks(data, file.hunks) if file.hunks else data
    if file.copied:
        changes.write(new, content, file.mode)
    else:
        changes.move(old, new, content, file.mode)


def _modify(file: FileDiff, path: str, changes: Changes) -> None:
    data = changes.read(path)
    if data is None and (not file.hunks or any(hunk.old for hunk in file.hunks)):
        raise EditFailed("There is no such file. Check the path; a new file needs '--- /dev/null' as its old name.")
    changes.write(path, apply_hunks(data or b"", file.hunks) if file.hunks else data or b"", file.mode)
