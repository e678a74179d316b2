"""The bundled nats-server: generated credentials and configuration, started on loopback and waited for.

One user per service with the permissions of `libs.bus.topology`; the passwords are made on first start and never leave the home folder.
"""

import asyncio
import contextlib
import json
import os
import secrets
import shutil
import sys
from pathlib import Path
from typing import Any

import httpx

from libs.bus.connection import Connection
from libs.bus.topology import ADMIN, SERVICES, declare, permissions
from libs.plain_http import loopback_client
from libs.settings import BusSettings

MAX_PAYLOAD = 8 * 1024 * 1024
_GOGC = "40"  # 50,000 parked runs in 150 MB instead of 400, for a little more CPU
# The server's own bound is a share of the space that is free when it starts: on a nearly full disk it refuses streams that it has.
MAX_STORE = 1 << 40


def credentials(home: Path) -> dict[str, str]:
    """The passwords of all users; made on first use, missing ones added. Raises RuntimeError: the file is unusable."""
    path = home / "credentials.json"
    try:
        known = dict(json.loads(path.read_text())) if path.is_file() else {}
    except (ValueError, TypeError) as error:
        raise RuntimeError(f"{path} is spoilt ({error}): delete it, and the next start makes new passwords.") from error
    wanted = {user: known.get(user) or secrets.token_urlsafe(32) for user in (ADMIN, *SERVICES)}
    if wanted != known:
        write_secret(path, json.dumps(wanted, indent=1))
    return wanted


def write_secret(path: Path, text: str) -> None:
    """Write a file that only its owner can read, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    temporary = path.with_suffix(".new")
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def users(passwords: dict[str, str]) -> list[dict[str, Any]]:
    """The server's user list: everything for the administrator, the derived permissions for each service."""
    listed: list[dict[str, Any]] = [{"user": ADMIN, "password": passwords[ADMIN]}]
    for service in SERVICES:
        allowed = permissions(service)
        listed.append(
            {
                "user": service,
                "password": passwords[service],
                "permissions": {"publish": list(allowed.publish), "subscribe": list(allowed.subscribe)},
            }
        )
    return listed


def configuration(passwords: dict[str, str], store: Path, host: str, port: int, monitor_port: int, sync_interval: str) -> str:
    """A nats-server configuration; JSON is a subset of its language."""
    return json.dumps(
        {
            "listen": f"{host}:{port}",
            "http": f"127.0.0.1:{monitor_port}",
            "max_payload": MAX_PAYLOAD,
            "jetstream": {"store_dir": str(store), "sync_interval": sync_interval, "max_file_store": MAX_STORE},
            "authorization": {"users": users(passwords)},
        },
        indent=1,
    )


class Broker:
    """A nats-server process of ours."""

    def __init__(self, home: Path, port: int = 4222, monitor_port: int = 8222, sync_interval: str = "always") -> None:
        self.home = home
        self.port = port
        self.monitor_port = monitor_port
        self._sync_interval = sync_interval
        self.process: asyncio.subprocess.Process | None = None

    @property
    def url(self) -> str:
        """Where services connect."""
        return f"nats://127.0.0.1:{self.port}"

    async def start(self, ready_seconds: float = 15.0) -> None:
        """Write the configuration, start the server, wait until JetStream is ready, declare streams and consumers.

        Raises:
            RuntimeError: the server ended or was not ready in time; the text holds the end of its log.
        """
        await self.start_process(ready_seconds)
        await self.declare()

    async def start_process(self, ready_seconds: float = 15.0) -> None:
        """Start the server and wait until JetStream is ready."""
        config = self.home / "nats.conf"
        write_secret(
            config,
            configuration(credentials(self.home), self.home / "jetstream", "127.0.0.1", self.port, self.monitor_port, self._sync_interval),
        )
        with (self.home / "nats.log").open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                *(_binary(), "-c", str(config)),
                env={"PATH": os.environ.get("PATH", ""), "GOGC": os.environ.get("GOGC", _GOGC)},
                stdout=log,
                stderr=log,
                stdin=asyncio.subprocess.DEVNULL,
                start_new_session=True,
            )
        await self._wait_ready(ready_seconds)

    async def declare(self, ack_wait_seconds: float | None = None) -> None:
        """Declare streams and consumers."""
        settings = BusSettings(home=self.home, nats_url=self.url)
        admin = await Connection.open(settings, ADMIN)
        try:
            await declare(admin, ack_wait_seconds=ack_wait_seconds or settings.ack_wait_seconds)
        finally:
            await admin.close()

    def end(self) -> None:
        """Ask the server to end."""
        if self.process is not None and self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self.process.terminate()

    async def stop(self) -> None:
        """Ask the server to end; kill it when it does not."""
        if self.process is None or self.process.returncode is not None:
            return
        self.end()
        try:
            await asyncio.wait_for(self.process.wait(), 10)
        except TimeoutError:
            self.process.kill()
            await self.process.wait()

    async def _wait_ready(self, seconds: float) -> None:
        assert self.process is not None
        deadline = asyncio.get_running_loop().time() + seconds
        async with loopback_client() as client:
            while asyncio.get_running_loop().time() < deadline:
                if self.process.returncode is not None:
                    break
                with contextlib.suppress(httpx.HTTPError):
                    answer = await client.get(f"http://127.0.0.1:{self.monitor_port}/healthz?js-enabled-only=true")
                    if answer.status_code == 200:
                        return
                await asyncio.sleep(0.01)
        tail = (self.home / "nats.log").read_text(errors="replace")[-2000:]
        raise RuntimeError(f"nats-server is not ready on port {self.port} (is the port taken?):\n{tail}")


def _binary() -> str:
    beside = Path(sys.executable).parent / "nats-server"
    found = str(beside) if beside.is_file() else shutil.which("nats-server")
    if found is None:
        raise RuntimeError("nats-server is missing: run `make install`")
    return found
