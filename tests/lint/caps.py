"""House rules that no other linter knows: size caps, reasons for suppressions, imports by allow-list, words that stay out.

Prints one `file:line: what is wrong` each and ends with 1 when there is any. Run by `make lint`.
"""

import ast
import hashlib
import io
import re
import subprocess
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FILE_LINES, TEST_FILE_LINES, FUNCTION_LINES, HANDLER_LINES, SERVICE_LINES = 400, 600, 40, 25, 1500
SOURCES = ("libs", "services", "deploy", "bench")

RAISED: dict[str, tuple[int, str]] = {
    "artifact": (3000, "docs/decisions/0021-size-of-the-artifact-service.md"),
    "sandbox": (3900, "docs/decisions/0022-size-of-the-sandbox-service.md"),
    "forge": (3200, "docs/decisions/0043-size-of-the-forge.md"),
    "inference": (3800, "docs/decisions/0023-size-of-the-inference-service.md"),
    "assistant": (1800, "docs/decisions/0045-size-of-the-assistant.md"),
    "gateway": (7400, "docs/decisions/0024-size-of-the-gateway.md"),
    "session_store": (4050, "docs/decisions/0035-size-of-the-session-store.md"),
    "mailer": (3900, "docs/decisions/0044-size-of-the-mailer.md"),
    "cli": (2900, "docs/decisions/0020-size-of-the-command-line.md"),
}
"""Services that may be larger, and the page that argues why."""

REGISTERS = {"step", "answer", "view", "consume"}
NOQA = re.compile(r"#\s*noqa\b(?P<rest>.*)", re.IGNORECASE)
NOQA_GOOD = re.compile(r":\s*[A-Z]+[0-9]+(,\s*[A-Z]+[0-9]+)*\s+-\s+\S.+")
IGNORE = re.compile(r"#\s*type:\s*ignore(?P<rest>.*)")
IGNORE_GOOD = re.compile(r"\[[a-z-]+(,\s*[a-z-]+)*\]\s*#\s*\S.+")

WORDS: dict[str, re.Pattern[str]] = {
    "a path of one machine": re.compile(r"(?<![\w./~-])/(?:work|root)/(?=\w)|(?<![\w./~-])/home/(?!agent\b|x\b)\w+/(?=\w)"),
}

HOST = re.compile(r"\b(?:[a-z0-9-]+\.)*([a-z0-9-]+\.(?:org|com|io|dev))\b", re.IGNORECASE)
REGISTRIES = {
    "3ca29e55be4befa4",
    "66394d5952c288e4",
    "71741fe2460a6150",
    "789e46d79514e280",
    "8743857e3ea00fd1",
    "8b5bb5eb9d758455",
    "a4aa2ac280bb8d1a",
}
"""Digests of the domains of package registries, which no file may name, this one included."""

IMPORTS_ONLY: dict[str, frozenset[str]] = {
    "libs/contracts": frozenset({"pydantic", "libs.contracts"}),
}
"""What a package may import besides the standard library."""

IMPORTED_BY: dict[str, tuple[str, ...]] = {
    "nats": ("libs/bus",),
    "litellm": ("services/inference",),
}
"""Third-party packages that belong to one place."""


@dataclass(frozen=True, order=True)
class Fault:
    """One offence."""

    path: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.text}"


def faults(root: Path, files: list[str]) -> list[Fault]:
    """All offences in `files`, which are paths relative to `root`."""
    found: list[Fault] = []
    for path in files:
        text = (root / path).read_text(encoding="utf-8", errors="replace")
        found.extend(_words(path, text))
        if path.endswith(".py"):
            found.extend(_python(path, text))
    found.extend(_services(root, files))
    return sorted(found)


def _python(path: str, text: str) -> Iterator[Fault]:
    lines = len(text.splitlines())
    cap = TEST_FILE_LINES if path.startswith("tests/") else FILE_LINES
    if lines > cap:
        yield Fault(path, 1, f"{lines} lines, the cap is {cap}")
    yield from _suppressions(path, text)
    tree = ast.parse(text, path)
    if path.startswith(SOURCES):
        yield from _functions(path, tree)
    yield from _imports(path, tree)


def _functions(path: str, tree: ast.Module) -> Iterator[Fault]:
    at_top = {id(node) for node in tree.body}
    in_handlers = Path(path).name == "handlers.py" or Path(path).parent.name == "handlers"
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        public = id(node) in at_top and not node.name.startswith("_")
        handler = isinstance(node, ast.AsyncFunctionDef) and ((in_handlers and public) or any(map(_registers, node.decorator_list)))
        kind, cap = ("handler", HANDLER_LINES) if handler else ("function", FUNCTION_LINES)
        lines = _length(node)
        if lines > cap:
            yield Fault(path, node.lineno, f"{kind} {node.name} has {lines} lines, the cap is {cap}")


def _registers(decorator: ast.expr) -> bool:
    return isinstance(decorator, ast.Call) and isinstance(decorator.func, ast.Attribute) and decorator.func.attr in REGISTERS


def _length(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines from `def` to the end, without the docstring."""
    lines = (node.end_lineno or node.lineno) - node.lineno + 1
    first = node.body[0]
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
        lines -= (first.end_lineno or first.lineno) - first.lineno + 1
    return lines


def _suppressions(path: str, text: str) -> Iterator[Fault]:
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type != tokenize.COMMENT:
            continue
        if (found := NOQA.search(token.string)) and not NOQA_GOOD.match(found["rest"]):
            yield Fault(path, token.start[0], "name rule and reason: `# noqa: RULE - reason`")
        if (found := IGNORE.search(token.string)) and not IGNORE_GOOD.match(found["rest"]):
            yield Fault(path, token.start[0], "name rule and reason: `# type: ignore[rule]  # reason`")


def _imports(path: str, tree: ast.Module) -> Iterator[Fault]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
            if node.level:
                yield Fault(path, node.lineno, "relative import: write the package out")
                continue
        else:
            continue
        for name in names:
            yield from _import(path, node.lineno, name)


def _import(path: str, line: int, name: str) -> Iterator[Fault]:
    top = name.partition(".")[0]
    for place, allowed in IMPORTS_ONLY.items():
        known = top in sys.stdlib_module_names or any(name == a or name.startswith(f"{a}.") for a in allowed)
        if path.startswith(f"{place}/") and not known:
            yield Fault(path, line, f"{place} imports the standard library and {', '.join(sorted(allowed))} only, not {name}")
    owners = IMPORTED_BY.get(top)
    if owners and path.startswith(("libs/", "services/")) and not path.startswith(tuple(f"{o}/" for o in owners)):
        yield Fault(path, line, f"only {', '.join(owners)} imports {top}")


def _words(path: str, text: str) -> Iterator[Fault]:
    for number, line in enumerate(text.splitlines(), 1):
        for found in HOST.finditer(line):
            if hashlib.sha256(found[1].lower().encode()).hexdigest()[:16] in REGISTRIES:
                yield Fault(path, number, f"the name of a package registry's host: {found[0]}")
        for name, pattern in WORDS.items():
            if found := pattern.search(line):
                yield Fault(path, number, f"{name}: {found.group()}")


def _services(root: Path, files: list[str]) -> Iterator[Fault]:
    sizes: Counter[str] = Counter()
    for path in files:
        parts = path.split("/")
        if parts[0] == "services" and len(parts) > 2 and path.endswith(".py"):
            sizes[parts[1]] += len((root / path).read_text(encoding="utf-8").splitlines())
    for service, lines in sorted(sizes.items()):
        cap, page = RAISED.get(service, (SERVICE_LINES, ""))
        if lines > cap:
            yield Fault(
                f"services/{service}", 1, f"{lines} lines of Python, the cap is {cap}: make it smaller, or argue a page in docs/decisions"
            )
        if page and not (root / page).is_file():
            yield Fault(f"services/{service}", 1, f"its cap was raised by a page that is not there: {page}")


def project_files(root: Path) -> list[str]:
    """What git tracks or would track, lock files left out."""
    command = ["git", "-C", str(root), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, capture_output=True, check=True).stdout.decode().split("\0")
    return sorted(p for p in set(listed) if p and not p.endswith(".lock") and (root / p).is_file() and not (root / p).is_symlink())


def main() -> int:
    """Check the project; the number of faults decides the exit code."""
    found = faults(ROOT, project_files(ROOT))
    for fault in found:
        print(fault)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
