"""Edits that a model without tools writes into its answer: search/replace blocks and whole files.

A block that is cut off or ambiguous fails as a whole; half of an answer is never taken for all of it.
"""

import re

from libs.edits.errors import EditFailed

_SEARCH = re.compile(r"^(<{5,9}) ?SEARCH>?(?:\s+(\S.*?))?\s*$")
_REPLACE = re.compile(r"^(>{5,9}) ?REPLACE<?\s*$")
_DIVIDER = re.compile(r"^(={5,9})\s*$")
_FENCE = re.compile(r"^\s*(`{3,}|~{3,})\s*([\w.+-]*)\s*$")
_PATH_WORDS = re.compile(r"^(?:[#>*\s-]*)(?:(?:file|path|filename)\s*:\s*)?", re.IGNORECASE)
_OPEN_FILE = re.compile(r"""^\s*<file\s+path=(?:"([^"]+)"|'([^']+)')\s*>(.*)$""")
_CLOSE_FILE = "</file>"


def parse_search_replace(text: str) -> list[tuple[str, str, str]]:
    """(path, old, new) of each `<<<<<<< SEARCH` … `=======` … `>>>>>>> REPLACE` block, in order.

    The path is the last line before the block that is no fence; a block without one goes on in the file before it.
    Raises EditFailed for no block, a cut-off block, a missing path or more than one divider.
    """
    lines = text.replace("\r\n", "\n").split("\n")
    blocks: list[tuple[str, str, str]] = []
    path, above = "", ""
    index = 0
    while index < len(lines):
        opened = _SEARCH.match(lines[index])
        if opened is None:
            if lines[index].strip() and not _FENCE.match(lines[index]):
                above = lines[index]
            index += 1
            continue
        path = opened[2] or _path_of(above) or path
        if not path:
            raise EditFailed(f"Search/replace block {len(blocks) + 1} names no file. Put the file's path on the line before it.")
        old, new, index = _read_block(lines, index, path)
        blocks.append((path, old, new))
        above = ""
    if not blocks:
        raise EditFailed(
            "No search/replace block was found. Write '<<<<<<< SEARCH', the old lines, '=======', the new lines, '>>>>>>> REPLACE'."
        )
    return blocks


def _path_of(line: str) -> str:
    return _PATH_WORDS.sub("", line.strip()).strip().strip("*`'\"").rstrip(":").strip("*`'\" ")


def _read_block(lines: list[str], start: int, path: str) -> tuple[str, str, int]:
    """Old text, new text and the index behind the block that opens at `start`."""
    opened = _SEARCH.match(lines[start])
    size = len(opened[1]) if opened else 7
    dividers: list[int] = []
    for index in range(start + 1, len(lines)):
        line = lines[index]
        if (match := _DIVIDER.match(line)) and len(match[1]) == size:
            dividers.append(index)
        elif _SEARCH.match(line):
            break
        elif (match := _REPLACE.match(line)) and len(match[1]) == size:
            if len(dividers) != 1:
                raise EditFailed(
                    f"{path}: the search/replace block at line {start + 1} has {len(dividers)} divider lines where one is needed. "
                    f"If the text itself holds such a line, use markers of another length, or send the whole file."
                )
            return _joined(lines[start + 1 : dividers[0]]), _joined(lines[dividers[0] + 1 : index]), index + 1
    raise EditFailed(f"{path}: the search/replace block at line {start + 1} is cut off: no '>>>>>>> REPLACE' line. Send the block again.")


def _joined(lines: list[str]) -> str:
    return "".join(line + "\n" for line in lines)


def parse_whole_files(text: str) -> list[tuple[str, str]]:
    """(path, content) of each `<file path="…">` block, in order.

    A block ends at the last line that is only `</file>` before the next block opens or the answer ends, so content may hold such lines;
    a line that looks like an opening tag is content until a `</file>` line came. Raises EditFailed for no block or a cut-off last one.
    """
    lines = text.replace("\r\n", "\n").split("\n")
    files: list[tuple[str, str]] = []
    index = 0
    while index < len(lines):
        opened = _OPEN_FILE.match(lines[index])
        if opened is None:
            index += 1
            continue
        path = opened[1] or opened[2]
        content, index = _read_file(lines, index, opened[3], path)
        files.append((path, _without_fence(content, path)))
    if not files:
        raise EditFailed(
            'No file was found. Write each whole file between <file path="path/of/file"> and </file>, each on a line of its own.'
        )
    return files


def _read_file(lines: list[str], start: int, first: str, path: str) -> tuple[str, int]:
    if first.rstrip().endswith(_CLOSE_FILE):
        return first.rstrip().removesuffix(_CLOSE_FILE), start + 1
    close = None
    inline = None
    for index in range(start + 1, len(lines)):
        line = lines[index]
        if (close is not None or inline is not None) and _OPEN_FILE.match(line):
            break
        if line.strip() == _CLOSE_FILE:
            close = index
        elif line.rstrip().endswith(_CLOSE_FILE) and close is None:
            inline = index
    head = [first] if first.strip() else []
    if close is not None:
        return _joined(head + lines[start + 1 : close]), close + 1
    if inline is not None:
        return _joined([*head, *lines[start + 1 : inline], lines[inline].rstrip().removesuffix(_CLOSE_FILE)]), inline + 1
    raise EditFailed(f"{path}: the file is cut off: no </file> line follows. Send this file again, whole.")


def _without_fence(content: str, path: str) -> str:
    """Content without a markdown fence right inside of the tag. In a Markdown file only a fence that says so is a wrapper."""
    lines = content.split("\n")
    body = [index for index, line in enumerate(lines) if line.strip()]
    if len(body) < 2:
        return content
    first, last = _FENCE.match(lines[body[0]]), _FENCE.match(lines[body[-1]])
    if not first or not last or last[2] or first[1][0] != last[1][0]:
        return content
    if path.rpartition(".")[2].lower() in {"md", "markdown", "mdx"} and first[2].lower() not in {"md", "markdown", "mdx"}:
        return content
    return _joined(lines[body[0] + 1 : body[-1]])
