"""Everything on one machine: the broker, then all services in one event loop, those that are `apart` in a supervised process each.

Invariant: when it returns, nothing that it started is alive and `runtime.json` is gone. The loop is asyncio's own: uvloop closes the
descriptor of a pipe twice, which in a process with threads can close somebody else's file.
"""

import asyncio
import contextlib
import gc
import importlib
import logging
import os
import resource
import shlex
import shutil
import signal
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil

from libs.bus import NoAnswer, Service, ports
from libs.bus.broker import Broker
from libs.bus.kept_broker import kept
from libs.plain_http import loopback_client
from libs.settings import BusSettings
from services.cli.client import LOOPBACK
from services.cli.errors import CliError
from services.cli.home import HomeFolder, Runtime
from services.cli.leftovers import end_leftovers
from services.cli.supervisor import Child, environment_of
from services.cli.wrong_settings import wrong_settings
from services.forge.settings import ForgeSettings
from services.inference.settings import SettingsError, configured, read_settings
from services.mailer.settings import MailerSettings

log = logging.getLogger(__name__)
SERVICES = ("session_store", "inference", "sandbox", "artifact", "planner", "editor", "verifier", "assistant", "forge", "mailer", "gateway")
READY_SECONDS = 60.0
STOP_SECONDS = 25.0
HAS_MODEL = "model: "
SILENT = frozenset({"no answer", "not connected"})
Say = Callable[[str, str], None]


@dataclass(frozen=True)
class UpOptions:
    """What to start. `port` 0 means any free one; `apart` are the services that get a process of their own; `relaxed` trades the fsync of
    each append for speed.
    """

    home: Path
    port: int = ports.HTTP
    apart: tuple[str, ...] = ()
    relaxed: bool = False


def up(options: UpOptions, say: Say) -> None:
    """Run until SIGINT or SIGTERM. `say` takes a source (`ready` for the one line that says so) and a line.

    Raises:
        CliError: the home folder or the port is taken, the settings are wrong, or a part did not start.
    """
    home, say = HomeFolder(options.home), _unfailing(say)
    if faults := wrong_settings():
        raise CliError("\n  - ".join(["These variables are wrong:", *faults]), "docs/operations.md says which page tells of each.")
    open_files_allowed()
    with home.locked():
        ended = end_leftovers(home)
        if ended:
            say("up", f"ended what an earlier server left running: {', '.join(map(str, ended))}")
        runtime = _runtime(options)
        os.environ.update(_variables(home, runtime))
        try:
            model = runtime.model = describe_model()
            asyncio.run(_serve(options, home, runtime, say, model))
        except (SettingsError, NoAnswer, RuntimeError, ValueError) as error:
            hint = f"The broker's log is {home.path / 'nats.log'}; `agent-coder doctor` tells what is missing."
            raise CliError(str(error), hint) from error
        finally:
            home.clear_runtime()


def open_files_allowed() -> int:
    """Raise the soft limit of open files to the hard one, for the children too: every stream holds two connections. What it is now."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):  # some systems refuse their own hard limit
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def _unfailing(say: Say) -> Say:
    """`say` that gives up where its output cannot be written (a full disk, a closed pipe): what it tells of must go on."""

    def quietly(source: str, line: str) -> None:
        with contextlib.suppress(OSError):
            say(source, line)

    return quietly


def _runtime(options: UpOptions) -> Runtime:
    port = options.port or ports.free()
    if not ports.is_free(port):
        raise CliError(f"Port {port} is taken.", "Stop what listens there, or choose another with --port (0 takes any free one).")
    nats, monitor = ports.wanted_or_free(ports.NATS), ports.wanted_or_free(ports.NATS_MONITOR)
    return Runtime(
        pid=os.getpid(),
        url=f"http://127.0.0.1:{port}",
        nats_url=f"nats://127.0.0.1:{nats}",
        monitor_url=f"http://127.0.0.1:{monitor}",
        apart=list(options.apart),
    )


def _variables(home: HomeFolder, runtime: Runtime) -> dict[str, str]:
    alone = os.environ.get("AGENT_CODER_HOST", "127.0.0.1") in LOOPBACK  # others would be sent to their own machine
    return {
        "AGENT_CODER_HOME": str(home.path),
        "AGENT_CODER_NATS_URL": runtime.nats_url,
        "AGENT_CODER_PORT": runtime.url.rsplit(":", 1)[1],
        "AGENT_CODER_PUBLIC_URL": os.environ.get("AGENT_CODER_PUBLIC_URL") or (runtime.url if alone else ""),
    }


async def _serve(options: UpOptions, home: HomeFolder, runtime: Runtime, say: Say, model: str) -> None:
    began = time.monotonic()
    stop = _stop_on_signal(lambda why: _give_up(home, say, why))
    async with _broker(options, home, runtime, say) as ready_broker, AsyncExitStack() as stack:
        services = await asyncio.to_thread(build, [name for name in SERVICES if name not in options.apart])
        await ready_broker
        home.write_runtime(runtime)
        await stack.enter_async_context(_children(home, runtime, say))
        for service in services:
            await stack.enter_async_context(service.running(BusSettings()))
        wrong = await _ready(runtime.url, stop)
        gc.freeze()  # what was loaded stays: no collection looks at it again
        gc.enable()
        if wrong is not None:
            _announce(home, runtime, say, model, wrong, time.monotonic() - began)
            await stop.wait()
        say("up", "stopping")


def _stop_on_signal(give_up: Callable[[str], None]) -> asyncio.Event:
    """Set on the first signal. A second one, or a stop that takes too long, gives up waiting."""
    stop = asyncio.Event()
    late = threading.Timer(STOP_SECONDS, give_up, [f"something did not stop within {STOP_SECONDS:g} s"])
    late.daemon = True

    def on_signal() -> None:
        if stop.is_set():
            give_up("told to stop twice")
        stop.set()
        late.start()

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, on_signal)
    return stop


def _give_up(home: HomeFolder, say: Say, why: str) -> None:
    """Kill what was started and leave at once; the journals lose nothing by it."""
    say("up", f"{why}: killed")
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    home.clear_runtime()
    os._exit(1)


def build(names: Iterable[str]) -> list[Service]:
    """Services, wired from the environment; nothing is connected yet."""
    return [importlib.import_module(f"services.{name}.__main__").build() for name in names]


def _broker(options: UpOptions, home: HomeFolder, runtime: Runtime, say: Say) -> AbstractAsyncContextManager[asyncio.Task[None]]:
    """The broker, kept alive; each start is noted for those who connect."""

    def started(broker: Broker) -> None:
        assert broker.process is not None
        runtime.nats_url, runtime.monitor_url = broker.url, f"http://127.0.0.1:{broker.monitor_port}"
        runtime.processes["nats"] = (broker.process.pid, time.time())
        os.environ["AGENT_CODER_NATS_URL"] = broker.url
        with contextlib.suppress(OSError):
            home.write_runtime(runtime)

    nats_port, monitor_port = (int(url.rsplit(":", 1)[1]) for url in (runtime.nats_url, runtime.monitor_url))
    return kept(Broker(home.path, nats_port, monitor_port, "2m" if options.relaxed else "always"), say, started)


@asynccontextmanager
async def _children(home: HomeFolder, runtime: Runtime, say: Say) -> AsyncIterator[None]:
    """A process for each service that is apart, kept alive inside the block."""

    def started(name: str, pid: int, at: float) -> None:
        runtime.processes[name] = (pid, at)
        home.write_runtime(runtime)

    children = [
        Child(name, [sys.executable, "-m", f"services.{name}"], environment_of(name, os.environ, home.path), say, started)
        for name in runtime.apart
    ]
    keeping = [asyncio.create_task(child.keep()) for child in children]
    try:
        yield
    finally:
        for task in keeping:
            task.cancel()
        await asyncio.gather(*keeping, return_exceptions=True)


async def _ready(url: str, stop: asyncio.Event) -> dict[str, str] | None:
    """Wait until every service answers: what is not as it should be, by service. None when told to stop before."""
    deadline = time.monotonic() + READY_SECONDS
    last = "nothing listens"
    async with loopback_client(timeout=10) as client:
        while not stop.is_set():
            with contextlib.suppress(httpx.HTTPError, ValueError, KeyError):
                checks = dict((await client.get(f"{url}/readyz")).json()["checks"])
                if not SILENT.intersection(checks.values()):
                    return {name: word for name, word in checks.items() if word != "ok"}
                last = ", ".join(f"{name}: {word}" for name, word in checks.items())
            if time.monotonic() > deadline:
                raise RuntimeError(f"The server is not ready after {READY_SECONDS:g} s: {last}")
            await asyncio.sleep(0.02)
    return None


def _announce(home: HomeFolder, runtime: Runtime, say: Say, model: str, wrong: dict[str, str], seconds: float) -> None:
    processes = _processes(runtime.apart)
    say("ready", f"ready in {seconds:.1f} s ({processes}): {runtime.url}")
    for name, word in wrong.items():
        say("up", f"not ready: {name}: {word}")
    say("up", f"token: {home.path / 'token'}")
    for line in model.splitlines():
        say("up", line)
    for line in describe_team():
        say("up", line)
    program = spelled(home.path)
    solve = f'{program} solve <path or URL of a git repository> --title "What should change" --watch'
    say("up", f"next, in another shell: {solve if model.startswith(HAS_MODEL) else f'{program} demo'}")
    if model.startswith(HAS_MODEL):
        say("up", f'or talk to it: {program} chat "What can you do?"')
    say("up", "Ctrl-C stops everything")


def _processes(apart: Sequence[str]) -> str:
    if not apart:
        return "one process"
    return "one process a service" if len(apart) == len(SERVICES) else f"one process, and one each for {', '.join(apart)}"


def spelled(home: Path) -> str:
    """The program as it can be typed in another shell in this folder, with the home folder when it is not the usual one."""
    beside = Path(sys.executable).parent / "agent-coder"
    found = shutil.which("agent-coder")
    short = beside.relative_to(Path.cwd()) if beside.is_relative_to(Path.cwd()) else beside
    name = "agent-coder" if found and Path(found).samefile(beside) else str(short)
    return name if home == Path.home() / ".agent-coder" else f"AGENT_CODER_HOME={shlex.quote(str(home))} {name}"


def describe_team() -> list[str]:
    """Where GitHub and mail come in and go out, as far as somebody set them up."""
    forge, mailer = ForgeSettings(), MailerSettings()
    return [
        *([f"GitHub: webhooks come to {forge.public_url.rstrip('/')}/webhooks/github"] if forge.configured else []),
        *([f"mail out: {mailer.smtp_host}:{mailer.smtp_port}"] if mailer.sends else []),
        *([f"mail in: SMTP at {mailer.mail_listen}"] if mailer.mail_listen else []),
    ]


def describe_model() -> str:
    """Which model answers, or how to set one.

    Raises:
        SettingsError: the variables or `models.toml` are wrong; the text lists every fault.
    """
    found = configured(read_settings())
    if not found.chain:
        return found.advice
    names = ", then ".join(spec.description.name for spec in found.chain)
    return f"{HAS_MODEL}{names}" + (f"\n{found.advice}" if found.advice else "")
