"""Set-up and test commands of a JavaScript or TypeScript project, from its package.json."""

import json
import re
from typing import Any

from libs.repository.languages import is_test_path, language_of
from libs.repository.project import Command, Tree

LOCK_FILES = ("package-lock.json", "npm-shrinkwrap.json", "yarn.lock", "pnpm-lock.yaml")

_NPM_INSTALL = "npm install --no-save --no-package-lock --no-audit --no-fund"
_NPM_CI = "npm ci --no-audit --no-fund"
_PLACEHOLDER = re.compile(r"no test specified|^\s*(?:exit 1|true|:)?\s*$")
_DEPENDENCY_KEYS = ("dependencies", "devDependencies", "optionalDependencies", "workspaces")
_NODE_TEST = "node --test --test-reporter=tap"


def detect_javascript(tree: Tree) -> tuple[list[Command], list[Command]]:
    """Return the set-up and test commands; both are empty when there is neither a package.json nor a test file."""
    manifest = _manifest(tree)
    return _setup(tree, manifest), _test(tree, manifest)


def _manifest(tree: Tree) -> dict[str, Any]:
    try:
        loaded = json.loads((tree.read("package.json") or "{}").removeprefix("\ufeff"))
    except (ValueError, RecursionError):
        return {}
    return loaded if isinstance(loaded, dict) else {}


def _setup(tree: Tree, manifest: dict[str, Any]) -> list[Command]:
    if not any(manifest.get(key) for key in _DEPENDENCY_KEYS):
        return []
    paths = set(tree.paths)
    if "package-lock.json" in paths or "npm-shrinkwrap.json" in paths:
        return [Command(run=f"{_NPM_CI} || {_NPM_INSTALL}")]
    for lock, program, arguments in (
        ("yarn.lock", "yarn", "install --frozen-lockfile"),
        ("pnpm-lock.yaml", "pnpm", "install --frozen-lockfile"),
    ):
        if lock in paths:
            return [Command(run=f"if command -v {program} >/dev/null 2>&1; then {program} {arguments}; else {_NPM_INSTALL}; fi")]
    return [Command(run=_NPM_INSTALL)]


def _test(tree: Tree, manifest: dict[str, Any]) -> list[Command]:
    scripts = manifest.get("scripts")
    script = scripts.get("test", "") if isinstance(scripts, dict) else ""
    if isinstance(script, str) and not _PLACEHOLDER.search(script):
        return [Command(run=f"npm test{_verbose(script)}")]
    tests = [path for path in tree.paths if language_of(path) == "JavaScript" and is_test_path(path)]
    return [Command(run=_NODE_TEST)] if tests else []


def _verbose(script: str) -> str:
    """Return the arguments that make the runner name each test; its last command receives them."""
    last = re.split(r"&&|\|\||;", script)[-1].split()
    words = [word.rsplit("/", 1)[-1] for word in last if "=" not in word]
    program = next((word for word in words if word not in {"npx", "cross-env", "c8", "nyc"}), "")
    if program in {"jest", "react-scripts"}:
        return " -- --verbose"
    if program == "vitest":
        return " -- --reporter=verbose"
    return ""
