"""Set-up and test commands of Go, Rust, Java and Make projects."""

import re
import shlex

from libs.repository.languages import is_test_path, language_of
from libs.repository.project import Command, Tree

MAKEFILES = ("GNUmakefile", "makefile", "Makefile")

_MAKE_TEST = re.compile(r"^(test|check|tests)\s*:(?!=)", re.MULTILINE)
_RUST_TEST = re.compile(r"#\[(?:\w+::)*test\b|^[ \t]*///[ \t]*```", re.MULTILINE)
_CARGO_PLACE = 'CARGO_TARGET_DIR="$HOME/target" '
# Java reads no proxy variable and finds the home folder in the user database: both are told.
_JAVA_PROXY = (
    'p="${HTTPS_PROXY:-$HTTP_PROXY}"; p="${p#*://}"; p="${p##*@}"; p="${p%/}"; '
    'set --; if [ -n "$p" ]; then set -- -Dhttp.proxyHost="${p%%:*}" -Dhttp.proxyPort="${p##*:}" '
    '-Dhttps.proxyHost="${p%%:*}" -Dhttps.proxyPort="${p##*:}"; fi\n'
)
_MAVEN_REPOSITORY = '-Dmaven.repo.local="$HOME/.m2/repository"'
_GRADLE_HOME = 'export GRADLE_USER_HOME="$HOME/.gradle"\n'


def detect_go(tree: Tree) -> tuple[list[Command], list[Command]]:
    """Return the commands of a Go module."""
    if "go.mod" not in tree.paths:
        return [], []
    tests = [Command(run="go test -json ./...")] if any(path.endswith("_test.go") for path in tree.paths) else []
    return [Command(run="go mod download")], tests


def detect_rust(tree: Tree) -> tuple[list[Command], list[Command]]:
    """Return the commands of a Cargo package or workspace. What is built lies outside the tree."""
    if "Cargo.toml" not in tree.paths:
        return [], []
    sources = [path for path in tree.paths if path.endswith(".rs")]
    has_tests = any(path.startswith("tests/") or "/tests/" in path for path in sources)
    has_tests = has_tests or any(_RUST_TEST.search(tree.read(path) or "") for path in sources)
    tests = [Command(run=f"{_CARGO_PLACE}cargo test --offline --no-fail-fast")] if has_tests else []
    return [Command(run="cargo fetch")], tests


def detect_java(tree: Tree) -> tuple[list[Command], list[Command]]:
    """Return the commands of a Maven or Gradle build; their wrappers come first.

    Both fetch part of what the tests need only when the tests run: the set-up runs the tests once, with the network, for that alone.
    """
    paths = set(tree.paths)
    has_tests = any(language_of(path) in {"Java", "Kotlin", "Scala"} and (is_test_path(path) or "src/test/" in path) for path in paths)
    if "pom.xml" in paths:
        program = "sh ./mvnw" if "mvnw" in paths else "mvn"
        warm = Command(run=f'{_JAVA_PROXY}{program} -B -q {_MAVEN_REPOSITORY} "$@" -Dmaven.test.failure.ignore=true test', optional=True)
        tests = [Command(run=f"{program} -B -o {_MAVEN_REPOSITORY} test")]
    elif paths & {"build.gradle", "build.gradle.kts"}:
        program = "sh ./gradlew" if "gradlew" in paths else "gradle"
        warm = Command(run=f'{_JAVA_PROXY}{_GRADLE_HOME}{program} --console=plain "$@" test --continue', optional=True)
        tests = [Command(run=f"{_GRADLE_HOME}{program} --console=plain --offline test --continue")]
    else:
        return [], []
    return [warm], tests if has_tests else []


def detect_make(tree: Tree) -> tuple[list[Command], list[Command]]:
    """Return `make test` when a makefile has such a target."""
    for path in MAKEFILES:
        if path in tree.paths and (target := _MAKE_TEST.search(tree.read(path) or "")):
            return [], [Command(run=f"make -k {shlex.quote(target.group(1))}")]
    return [], []
