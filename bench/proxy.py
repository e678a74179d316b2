"""`litellm --proxy` of the locked version, to stand beside the gateway.

The lock has litellm without what its proxy needs besides; where that is missing, it goes into an environment of the bench's own.
"""

import asyncio
import importlib.metadata
import json
import os
import secrets
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
from packaging.requirements import Requirement

from deploy import bootstrap
from libs.testkit.broker import free_port


class NoProxy(Exception):
    """The proxy cannot be had or does not start; the text says why."""


@dataclass(frozen=True)
class Proxy:
    """A running proxy: its base URL and key, and what to say of where it came from."""

    base_url: str
    key: str
    origin: str
    pid: int


@asynccontextmanager
async def proxy(provider_url: str) -> AsyncIterator[Proxy]:
    """Serve the model `fake` of a provider while the block runs, with one worker and no database.

    Raises:
        NoProxy: it cannot be installed, or is not up within two minutes.
    """
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        command, origin = await _command(place)
        config = place / "config.yaml"
        model = {"model": "openai/fake", "api_base": provider_url, "api_key": "none"}
        config.write_text(json.dumps({"model_list": [{"model_name": "fake", "litellm_params": model}]}))
        port, key = free_port(), f"sk-{secrets.token_hex(16)}"
        environment = _environment() | {"LITELLM_MASTER_KEY": key}
        with (place / "log").open("wb") as log:
            options = ("--config", str(config), "--host", "127.0.0.1", "--port", str(port), "--telemetry", "False")
            process = await asyncio.create_subprocess_exec(str(command), *options, stdout=log, stderr=log, env=environment, cwd=folder)
        try:
            await _up(process, port, place / "log")
            yield Proxy(f"http://127.0.0.1:{port}/v1", key, origin, process.pid)
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()


async def _command(place: Path) -> tuple[Path, str]:
    here = Path(sys.executable).parent / "litellm"
    version = importlib.metadata.version("litellm")
    check = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", "import litellm.proxy.proxy_server"),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
        env=_environment(),
    )
    if await check.wait() == 0:
        return here, f"litellm {version}"
    try:
        what = await asyncio.to_thread(_install, place / "venv", version)
    except (subprocess.CalledProcessError, SystemExit) as error:
        raise NoProxy(f"litellm[proxy]=={version} cannot be installed: {error}") from error
    return place / "venv" / "bin" / "litellm", f"litellm {version} in an environment of its own, {what}"


def _install(venv: Path, version: str) -> str:
    """Install the extra; where a registry has not all of it, what the extra names but for litellm's own further packages."""
    bootstrap.create(venv)
    try:
        bootstrap.pip(venv, f"litellm[proxy]=={version}")
        return "with all of its extra"
    except subprocess.CalledProcessError:
        bootstrap.pip(venv, f"litellm=={version}", *_others())
        return "without the packages litellm-* of its extra, which cannot be installed"


def _others() -> list[str]:
    wanted = [Requirement(line) for line in importlib.metadata.requires("litellm") or ()]
    extra = [found for found in wanted if found.marker and found.marker.evaluate({"extra": "proxy"}) and not found.marker.evaluate()]
    return [f"{found.name}{found.specifier}" for found in extra if not found.name.startswith("litellm")]


def _environment() -> dict[str, str]:
    return {**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}


async def _up(process: asyncio.subprocess.Process, port: int, log: Path) -> None:
    try:
        async with asyncio.timeout(120), aiohttp.ClientSession() as client:
            while process.returncode is None:
                try:
                    async with client.get(f"http://127.0.0.1:{port}/health/liveliness") as answer:
                        if answer.status == 200:
                            return
                except aiohttp.ClientError:
                    pass
                await asyncio.sleep(0.2)
    except TimeoutError:
        pass
    raise NoProxy(f"litellm --config is not up: {' '.join(log.read_text(errors='replace').split())[-300:]}")
