"""What a server left running when it was killed, ended before a new one starts: found by its recorded start or its configuration file."""

import contextlib

import psutil

from services.cli.home import HomeFolder


def end_leftovers(home: HomeFolder, wait_seconds: float = 5.0) -> list[int]:
    """End the broker and the services of an earlier server on this home folder; returns their process ids.

    Only call while holding the lock: then no server owns them.
    """
    found = {process.pid: process for process in (*_recorded(home), *_brokers(home))}
    for process in found.values():
        with contextlib.suppress(psutil.NoSuchProcess):
            process.terminate()
    _, alive = psutil.wait_procs(list(found.values()), timeout=wait_seconds)
    for process in alive:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(alive, timeout=wait_seconds)
    home.clear_runtime()
    return sorted(found)


def _recorded(home: HomeFolder) -> list[psutil.Process]:
    runtime = home.runtime()
    found: list[psutil.Process] = []
    for pid, started in (runtime.processes if runtime else {}).values():
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(pid)
            if abs(process.create_time() - started) < 5:
                found.append(process)
    return found


def _brokers(home: HomeFolder) -> list[psutil.Process]:
    config = str(home.path / "nats.conf")
    return [p for p in psutil.process_iter(["cmdline"]) if config in (p.info["cmdline"] or ())]
