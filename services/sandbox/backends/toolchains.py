"""Finds the compilers and interpreters of the host and says which folders a sandbox must see to use them.

Only a tool's own prefix is shown, read-only and at its own path; never a home folder, never our own virtual environment.
"""

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

SYSTEM = tuple(map(Path, ("/usr", "/bin", "/sbin", "/lib", "/lib64")))
NEVER = frozenset(map(Path, ("/", "/home", "/root", "/etc", "/var", "/opt", "/tmp", "/proc", "/sys", "/dev", "/run", "/srv", "/mnt")))
ASK_SECONDS = 10
TOOLS = ("node", "java", "javac", "mvn", "gradle", "ruby", "deno", "bun")
ASKED = (("rustc", "--print", "sysroot"), ("go", "env", "GOROOT"))


@dataclass(frozen=True)
class Toolchains:
    """`prefixes` to bind read-only and `path` (folders) to search before the system's own; `python` starts the interpreter."""

    prefixes: tuple[Path, ...]
    path: tuple[Path, ...]
    python: Path

    @property
    def java_home(self) -> Path | None:
        """The prefix that holds `java`, when it is not the system's."""
        return next((prefix for prefix in self.prefixes if (prefix / "bin" / "java").exists()), None)


def discover(extra: Sequence[Path] = ()) -> Toolchains:
    """Look at the interpreter that runs us, at PATH and at `extra` prefixes; asks `rustc` and `go` where they live (blocking)."""
    python = Path(sys.base_prefix)
    found = [python, *extra, *_asked(), *map(_prefix_of, filter(None, map(_which, TOOLS)))]
    prefixes = tuple(dict.fromkeys(prefix for prefix in found if _may_be_shown(prefix)))
    return Toolchains(prefixes=prefixes, path=tuple(p / "bin" for p in prefixes if (p / "bin").is_dir()), python=_interpreter(python))


def _interpreter(prefix: Path) -> Path:
    for name in (f"python{sys.version_info.major}.{sys.version_info.minor}", "python3", "python"):
        if (prefix / "bin" / name).exists():
            return prefix / "bin" / name
    return Path(os.path.realpath(sys.executable))


def _asked() -> Iterable[Path]:
    for command in ASKED:
        tool = _which(command[0])
        if tool is None:
            continue
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            answer = subprocess.run([str(tool), *command[1:]], capture_output=True, text=True, timeout=ASK_SECONDS, check=True, cwd="/")
            yield Path(answer.stdout.strip())


def _which(name: str) -> Path | None:
    found = shutil.which(name)
    return Path(found) if found else None


def _prefix_of(tool: Path) -> Path:
    real = tool.resolve()
    return real.parent.parent if real.parent.name in {"bin", "sbin"} else real.parent


def _may_be_shown(prefix: Path) -> bool:
    """A prefix outside of the system that is neither a home, nor above one, nor a virtual environment."""
    if not prefix.is_absolute() or not prefix.is_dir() or prefix in NEVER:
        return False
    if any(prefix.is_relative_to(folder) for folder in SYSTEM) or (prefix / "pyvenv.cfg").exists():
        return False
    home = Path.home()
    return not home.is_relative_to(prefix)
