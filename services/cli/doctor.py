"""What is there, what is missing and how to get it."""

import asyncio
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import httpx

from libs.bus import ports
from libs.settings import HomeSettings
from services.cli.home import HomeFolder, Runtime
from services.cli.words import plain

TOOLCHAINS = ("node", "npm", "go", "cargo", "java", "mvn", "gradle", "make")
FREE_GIGABYTES = 2.0


@dataclass(frozen=True)
class Check:
    """One finding. `needed` False: only some repositories want it. `fix` says what to do about one that is not ok."""

    name: str
    ok: bool
    detail: str
    fix: str = ""
    needed: bool = True


def examine(settings: HomeSettings) -> list[Check]:
    """Every check, in the order in which one would put things right."""
    home = HomeFolder(settings.home)
    found = [python(), git(), nats_server(), sandbox(home), folder(home), disk(home), server(home)]
    found.append(model(home.runtime() if found[-1].ok else None))
    if home.runtime() is None:
        found[-2:-2] = [port("HTTP port", ports.HTTP, "start with --port 0"), port("NATS port", ports.NATS, "")]
    found += integrations(home) + [toolchain(name) for name in TOOLCHAINS]
    return [replace(check, fix="") if check.ok else check for check in found]


def python() -> Check:
    """Python 3.11 or newer."""
    version = ".".join(map(str, sys.version_info[:3]))
    return Check("python", sys.version_info >= (3, 11), f"{version} ({sys.executable})", "make install PYTHON=/path/to/python3.11")


def git() -> Check:
    """git 2.31 or newer, which takes configuration from its environment."""
    path = shutil.which("git")
    if path is None:
        return Check("git", False, "not found", "sudo apt-get install git, or your system's way")
    words = subprocess.run([path, "--version"], capture_output=True, text=True, check=False).stdout.split()
    version = words[2] if len(words) > 2 else "?"
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    return Check("git", numbers >= (2, 31), f"{version} ({path})", "git 2.31 or newer is needed: upgrade it")


def nats_server() -> Check:
    """The bundled broker."""
    beside = Path(sys.executable).parent / "nats-server"
    found = str(beside) if beside.is_file() else shutil.which("nats-server")
    if found is None:
        return Check("nats-server", False, "not found", "make install")
    done = subprocess.run([found, "--version"], capture_output=True, text=True, check=False)
    return Check("nats-server", done.returncode == 0, f"{done.stdout.strip() or done.stderr.strip()} ({found})", "make install")


def sandbox(home: HomeFolder) -> Check:
    """A command in a real sandbox: bubblewrap, and a kernel that allows user namespaces."""
    import tempfile

    from services.sandbox.backends.process import ProcessBackend
    from services.sandbox.errors import BackendUnavailable

    place = home.path if home.path.is_dir() else None
    try:
        with tempfile.TemporaryDirectory(dir=place) as scratch:
            asyncio.run(ProcessBackend.on_this_machine(Path(scratch)).check())
    except BackendUnavailable as error:
        what, _, fix = str(error).partition("What to do: ")
        return Check("sandbox", False, what.strip(), fix or "make install")
    except OSError as error:
        return Check("sandbox", False, str(error), "make install")
    return Check("sandbox", True, "bubblewrap runs commands in namespaces of their own")


def folder(home: HomeFolder) -> Check:
    """The home folder belongs to the caller alone."""
    path = home.path
    if not path.exists():
        return Check("home folder", True, f"{path} (made on first start)")
    status = path.stat()
    if status.st_uid != os.getuid():
        return Check("home folder", False, f"{path} belongs to another user", "set AGENT_CODER_HOME to a folder of yours")
    if status.st_mode & 0o077:
        return Check("home folder", False, f"{path} is open to others ({status.st_mode & 0o777:o})", f"chmod 700 {path}")
    open_files = [name for name in ("token", "credentials.json", "runtime.json") if _is_open(path / name)]
    if open_files:
        return Check(
            "home folder", False, f"open to others: {', '.join(open_files)}", f"chmod 600 {' '.join(str(path / n) for n in open_files)}"
        )
    return Check("home folder", os.access(path, os.W_OK), str(path), f"make {path} writable")


def _is_open(path: Path) -> bool:
    return path.exists() and bool(path.stat().st_mode & 0o077)


def disk(home: HomeFolder) -> Check:
    """Room for repositories and journals."""
    place = next(p for p in (home.path, *home.path.parents) if p.exists())
    free = shutil.disk_usage(place).free / 1e9
    return Check(
        "disk", free >= FREE_GIGABYTES, f"{free:.1f} GB free at {place}", f"free at least {FREE_GIGABYTES:g} GB, or set AGENT_CODER_HOME"
    )


def port(name: str, number: int, fix: str) -> Check:
    """A default port that nobody took."""
    free = ports.is_free(number)
    taken = "taken" if fix else "taken: another one is chosen"
    return Check(name, free or not fix, f"{number} {'free' if free else taken}", fix)


def server(home: HomeFolder) -> Check:
    """Whether a server of this home folder answers."""
    runtime = home.runtime()
    if runtime is None:
        return Check("server", True, "not running; `agent-coder up` starts it", needed=False)
    try:
        answer = httpx.get(f"{runtime.url}/readyz", timeout=10, trust_env=False)
        checks = dict(answer.json()["checks"])
    except (httpx.HTTPError, ValueError, KeyError) as error:
        return Check("server", False, f"{runtime.url} does not answer ({type(error).__name__})", "agent-coder up")
    wrong = "; ".join(f"{name}: {word}" for name, word in checks.items() if word != "ok")
    return Check("server", not wrong, f"{runtime.url} {wrong or 'ready'}", "look at what `up` printed")


def model(runtime: Runtime | None) -> Check:
    """The running server's models; without one what this shell would start it with."""
    from services.inference.settings import SettingsError, configured, read_settings

    if runtime is not None:
        has, _, advice = runtime.model.partition("\n")
        if not has.startswith("model: "):
            return Check("model", False, "the running server has none", runtime.model)
        return Check("model", not advice, f"{has.removeprefix('model: ')} (of the running server)", advice)
    try:
        found = configured(read_settings())
    except SettingsError as error:
        return Check("model", False, str(error), "see docs/models.md")
    if not found.chain or found.advice:
        return Check("model", False, "none is configured in this shell" if not found.chain else "its key is missing", found.advice)
    return Check("model", True, ", then ".join(spec.description.name for spec in found.chain))


def integrations(home: HomeFolder) -> list[Check]:
    """GitHub and mail as the running server finds them; nothing without one."""
    runtime, found = home.runtime(), list[Check]()
    if runtime is None:
        return found
    headers = {"Authorization": f"Bearer {home.token()}"}
    try:
        answer = httpx.get(f"{runtime.url}/api/integrations", headers=headers, timeout=30, trust_env=False).raise_for_status().json()
    except (httpx.HTTPError, ValueError) as error:
        return [Check("integrations", False, f"the server does not tell ({type(error).__name__})", "look at what `up` printed")]
    for name, page in (("github", "docs/github.md"), ("mail", "docs/mail.md")):
        said = answer[name]
        if not said["configured"]:
            found.append(Check(name, False, plain(said["summary"]) or "not set up", f"only when it is wanted: {page}", needed=False))
        found += [Check(f"{name}: {c['name']}", c["ok"], plain(c["detail"]), plain(c["fix"]), said["configured"]) for c in said["checks"]]
    return found


def toolchain(name: str) -> Check:
    """A language's tool, for repositories in that language."""
    found = shutil.which(name)
    return Check(name, found is not None, found or "not found", f"only for repositories that need {name}: install it", needed=False)
