"""Make the virtual environment and install a lock file into it.

    bootstrap.py VENV              create VENV
    bootstrap.py VENV LOCK         install LOCK, then this project itself

Needs nothing but Python 3.11 or newer: no system package is asked for when pip can be had in any way.
"""

import pathlib
import subprocess
import sys
import venv

ROOT = pathlib.Path(__file__).resolve().parent.parent
SHIM = "#!{python}\nimport sys\n\nfrom services.cli.__main__ import main\n\nsys.exit(main())\n"


def create(target: pathlib.Path) -> None:
    """Create the environment; without ensurepip (a bare Debian python3), pip is borrowed from the system's."""
    if sys.version_info < (3, 11):  # noqa: UP036 - this file alone is read by whatever Python there is
        sys.exit(f"agent-coder needs Python 3.11 or newer, this is {sys.version.split()[0]}: set PYTHON=/path/to/python3.11")
    try:
        venv.create(target, with_pip=True)
    except (subprocess.CalledProcessError, ImportError):
        venv.create(target, with_pip=False, clear=True)


def pip(target: pathlib.Path, *arguments: str) -> None:
    """Run pip for the environment, from inside it where it has one, else from the interpreter that made it."""
    python = str(target / "bin" / "python")
    for command in ([python, "-m", "pip"], [_base_python(), "-m", "pip", "--python", python]):
        if subprocess.run([*command, "--version"], capture_output=True, check=False).returncode == 0:
            subprocess.run([*command, "install", "--quiet", "--disable-pip-version-check", *arguments], check=True)
            return
    sys.exit("no pip found: install python3-venv or python3-pip once, or run with PYTHON=<a Python that has pip>")


def _base_python() -> str:
    return str(getattr(sys, "_base_executable", sys.executable))


def install(target: pathlib.Path, lock: pathlib.Path) -> None:
    """Install the locked packages with their hashes checked, then put this project on the path."""
    print(f"installing {lock.name} into {target} (once; about a minute) …", flush=True)
    pip(target, "--require-hashes", "--requirement", str(lock))
    packages = next(target.glob("lib/python3*/site-packages"))
    (packages / "agent_coder.pth").write_text(f"{ROOT}\n")
    shim = target / "bin" / "agent-coder"
    shim.write_text(SHIM.format(python=target.resolve() / "bin" / "python"))
    shim.chmod(0o755)


if __name__ == "__main__":
    place = pathlib.Path(sys.argv[1]).absolute()
    create(place) if len(sys.argv) == 2 else install(place, pathlib.Path(sys.argv[2]))
