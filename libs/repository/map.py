"""The repository map: what a model is told about a repository before it plans.

Invariant: never longer than its budget; what was left out is said, and how to see it.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import PurePosixPath

from libs.repository.agents_md import AGENTS_PATHS
from libs.repository.languages import count_languages, is_test_path, is_vendored, language_of
from libs.repository.project import Command, Project, Tree
from libs.repository.symbols import relevance, symbols_of, words_of

_README_NAMES = ("readme.md", "readme.rst", "readme.txt", "readme", "readme.markdown", "readme.adoc")
_README_CHARACTERS = 1500
_AGENTS_CHARACTERS = 6000
_FILES_LISTED_WHOLE = 150
_FILES_WITH_SYMBOLS = 25
_SYMBOLS_A_FILE = 40
_CUT = "\n[… cut here: {left} characters left out; see the rest with `read`, `ls` and `grep`]"


def repository_map(tree: Tree, issue_text: str = "", budget_characters: int = 16_000, project: Project | None = None) -> str:
    """Describe a repository in at most budget_characters.

    issue_text ranks the files. project: what `detect` found; without it no commands are shown.
    """
    sections: Sequence[tuple[str, Callable[[], str], float]] = (
        ("Languages", lambda: _languages(tree), 0.05),
        ("Commands", lambda: _commands(project), 0.10),
        ("AGENTS.md", lambda: _head(tree, AGENTS_PATHS, _AGENTS_CHARACTERS), 0.35),
        ("Files that may matter, with what they define", lambda: _symbols(tree, issue_text), 0.45),
        ("Tracked files", lambda: _files(tree), 0.70),
        ("README (head)", lambda: _readme(tree), 1.0),
    )
    parts: list[str] = []
    left = budget_characters
    for title, write, share in sections:
        text = write().strip()
        room = int(left * share) - len(title) - 6
        if text and room > len(_CUT):
            part = f"## {title}\n{_cut(text, room)}\n\n"
            parts.append(part)
            left -= len(part)
    return "".join(parts).strip()[: max(budget_characters, 0)]


def rank_files(tree: Tree, issue_text: str, limit: int = _FILES_WITH_SYMBOLS) -> tuple[str, ...]:
    """Return the source files closest to the issue's words, the closest first; tests are ranked like any other file."""
    wanted = words_of(issue_text)
    sources = [path for path in tree.paths if language_of(path) and not is_vendored(path)]
    scored = [(relevance(wanted, path, tree.read(path)), path) for path in sources]
    ranked = sorted(scored, key=lambda item: (-item[0], item[1].count("/"), item[1]))
    return tuple(path for _, path in ranked[:limit])


def _cut(text: str, room: int) -> str:
    """Cut at the end of a line, with a note."""
    if len(text) <= room:
        return text
    note = _CUT.format(left=len(text))
    kept = text[: max(room - len(note), 0)]
    kept = kept.rsplit("\n", 1)[0] if "\n" in kept else kept
    return kept + _CUT.format(left=len(text) - len(kept))


def _languages(tree: Tree) -> str:
    return ", ".join(f"{language.name} ({language.files})" for language in count_languages(tree.paths))


def _commands(project: Project | None) -> str:
    if project is None:
        return ""
    tests = [_command("test", command) for command in project.test_commands] or ["no tests found"]
    return "\n".join([*(_command("set-up, done already", command) for command in project.setup_commands), *tests])


def _command(kind: str, command: Command) -> str:
    return f"- {kind}: `{' '.join(command.run.split())}`"


def _head(tree: Tree, candidates: Sequence[str], limit: int) -> str:
    path = next((path for path in candidates if path in tree.paths), None)
    text = (tree.read(path) or "") if path else ""
    return _cut(text, limit)


def _readme(tree: Tree) -> str:
    by_name = {path.lower(): path for path in tree.paths if "/" not in path}
    found = [by_name[name] for name in _README_NAMES if name in by_name]
    return _head(tree, found, _README_CHARACTERS)


def _symbols(tree: Tree, issue_text: str) -> str:
    lines = []
    for path in rank_files(tree, issue_text):
        names = symbols_of(path, tree.read(path) or "")
        more = f", … {len(names) - _SYMBOLS_A_FILE} more" if len(names) > _SYMBOLS_A_FILE else ""
        lines.append(f"- {path}" + (f": {', '.join(names[:_SYMBOLS_A_FILE])}{more}" if names else ""))
    return "\n".join(lines)


def _files(tree: Tree) -> str:
    """List the files, sources and tests first; in a large tree, folders with their numbers instead."""
    if len(tree.paths) <= _FILES_LISTED_WHOLE:
        return "\n".join(sorted(tree.paths, key=lambda path: (_order(path), path)))
    folders = Counter(_folder(path) for path in tree.paths)
    order = {folder: min(_order(path) for path in tree.paths if _folder(path) == folder) for folder in folders}
    lines = [
        f"{folder}/ ({count} files)"
        for folder, count in sorted(folders.items(), key=lambda item: (order[item[0]], item[0]))
        if folder != "."
    ]
    top = sorted(path for path in tree.paths if "/" not in path)
    return "\n".join([f"{len(tree.paths)} files; the folders are listed, `ls` shows what they hold", *top, *lines])


def _folder(path: str) -> str:
    return "/".join(PurePosixPath(path).parts[:-1][:3]) or "."


def _order(path: str) -> int:
    if is_vendored(path):
        return 3
    if is_test_path(path) or language_of(path):
        return 0 if not is_test_path(path) else 1
    return 2
