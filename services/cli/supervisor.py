"""Processes that must run: each is started again with a growing pause when it ends, and none outlives the supervisor."""

import asyncio
import contextlib
import ctypes
import os
import re
import signal
import sys
import time
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from libs.bus.kept_broker import backoff_seconds

STOP_SECONDS = 15.0
HEALTHY_SECONDS = 10.0
_PR_SET_PDEATHSIG = 1
_OWN = {
    "inference": re.compile(
        r"(MODEL|MODEL_.*|.*_API_KEY|.*_API_BASE|AWS_.*|AZURE_.*|VERTEX.*|GOOGLE_APPLICATION_CREDENTIALS|HF_TOKEN|HUGGINGFACE_.*)"
    ),
    "forge": re.compile(r"AGENT_CODER_GITHUB_(?!BASE_URL).*", re.IGNORECASE),
    "mailer": re.compile(r"AGENT_CODER_(SMTP|MAIL)_.*", re.IGNORECASE),
}


def environment_of(service: str, environment: Mapping[str, str], home: Path) -> dict[str, str]:
    """The environment of one service's process: the variables that may hold a secret reach the service that they are for, alone."""
    named = set() if service == "inference" else _key_variables(home / "models.toml")
    others = [pattern for owner, pattern in _OWN.items() if owner != service]
    return {key: value for key, value in environment.items() if key not in named and not any(p.fullmatch(key) for p in others)}


def _key_variables(models: Path) -> set[str]:
    try:
        tables = tomllib.loads(models.read_text(encoding="utf-8")).get("models", [])
    except (OSError, ValueError):
        return set()
    return {str(table["api_key_env"]) for table in tables if isinstance(table, dict) and "api_key_env" in table}


@dataclass
class Child:
    """One supervised process: `argv` under `environment`, its output passed on line by line behind its name."""

    name: str
    argv: list[str]
    environment: dict[str, str]
    say: Callable[[str, str], None]
    started: Callable[[str, int, float], None]
    process: asyncio.subprocess.Process | None = None

    async def keep(self) -> None:
        """Run the process for ever; cancellation ends it and what it started."""
        deaths = 0
        try:
            while True:
                began = time.monotonic()
                code = await self._run()
                deaths = 1 if time.monotonic() - began > HEALTHY_SECONDS else deaths + 1
                pause = backoff_seconds(deaths)
                self.say(self.name, f"ended ({_how(code)}); started again in {pause:g} s")
                await asyncio.sleep(pause)
        finally:
            await self._stop()

    async def _run(self) -> int:
        _libc()  # loaded before the fork, where nothing may be loaded
        self.process = await asyncio.create_subprocess_exec(
            *self.argv,
            env=self.environment,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
            limit=1024 * 1024,
            preexec_fn=die_with_parent,
        )
        self.started(self.name, self.process.pid, time.time())
        reading = asyncio.create_task(self._pass_on(self.process))
        try:
            return await self.process.wait()
        finally:
            self._kill_group(signal.SIGKILL if self.process.returncode is not None else signal.SIGTERM)
            reading.cancel()

    async def _pass_on(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        while True:
            try:
                line = await process.stdout.readline()
            except ValueError:  # a line over the limit: what was read of it is dropped
                continue
            if not line:
                return
            self.say(self.name, line.decode("utf-8", "replace").rstrip())

    async def _stop(self) -> None:
        if self.process is None:
            return
        if self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self.process.terminate()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.process.wait(), STOP_SECONDS)
        self._kill_group(signal.SIGKILL)
        await self.process.wait()

    def _kill_group(self, number: int) -> None:
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, number)


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None)


def die_with_parent() -> None:
    """Run in a new process: the kernel ends it when its parent dies (prctl(2), PR_SET_PDEATHSIG); Linux only."""
    if sys.platform == "linux":
        _libc().prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _how(code: int) -> str:
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
