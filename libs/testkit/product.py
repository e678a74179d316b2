"""The product from outside: `agent-coder up` as a process of its own, spoken to over HTTP as a client would."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from libs.plain_http import loopback_client

ENDED = frozenset({"finished", "failed", "cancelled", "denied"})
COMMAND = str(Path(sys.executable).parent / "agent-coder")


FAST = {
    "AGENT_CODER_ACK_WAIT_SECONDS": "2",
    "AGENT_CODER_SILENCE_SECONDS": "3",
    "AGENT_CODER_BACKOFF_BASE_SECONDS": "0.2",
    "AGENT_CODER_BACKOFF_CAP_SECONDS": "2",
}
"""For servers of which something is killed: what died is missed sooner."""


@dataclass
class Product:
    """A running server. `processes()` names the process of each part when it was started split."""

    home: Path
    client: httpx.AsyncClient
    process: asyncio.subprocess.Process

    async def solve(self, issue_id: str, body: Mapping[str, Any], key: str | None = None) -> str:
        """Open a run and return its id.

        Raises:
            AssertionError: the answer was not 202.
        """
        headers = {"Idempotency-Key": key} if key else {}
        answer = await self.client.post(f"/api/issues/{issue_id}/solve", json=dict(body), headers=headers)
        assert answer.status_code == 202, answer.text
        return str(answer.json()["instanceId"])

    async def run(self, run_id: str) -> dict[str, Any]:
        """The run as the API shows it; asked again while a part of the server is down."""
        async with asyncio.timeout(60):
            while True:
                try:
                    answer = await self.client.get(f"/api/runs/{run_id}")
                    if answer.status_code == 200:
                        return dict(answer.json())
                except httpx.TransportError:
                    pass
                await asyncio.sleep(0.2)

    async def wait(self, run_id: str, statuses: frozenset[str] = ENDED, seconds: float = 150) -> dict[str, Any]:
        """Wait until the run has one of `statuses`.

        Raises:
            AssertionError: it did not in time; the text shows the run and the end of the server's log.
        """
        shown: dict[str, Any] = {}
        try:
            async with asyncio.timeout(seconds):
                while True:
                    shown = await self.run(run_id)
                    if shown["status"] in statuses:
                        return shown
                    await asyncio.sleep(0.1)
        except TimeoutError as error:
            raise AssertionError(f"not {sorted(statuses)} after {seconds} s: {json.dumps(shown)[:4000]}\n{self.log()}") from error

    async def events(self, run_id: str) -> list[dict[str, Any]]:
        """All events of a run, as JSON."""
        found: list[dict[str, Any]] = []
        after = 0
        while True:
            answer = await self.client.get(
                f"/api/runs/{run_id}/events", params={"after": after, "limit": 100}, headers={"Accept": "application/json"}
            )
            answer.raise_for_status()
            page = answer.json()
            found.extend(page["events"])
            if not page.get("next_after"):
                return found
            after = page["next_after"]

    def processes(self) -> dict[str, int]:
        """Process ids by part."""
        runtime = json.loads((self.home / "runtime.json").read_text())
        return {name: value[0] for name, value in runtime["processes"].items()}

    def log(self) -> str:
        """The end of what the server printed."""
        return (self.home / "up.log").read_text(errors="replace")[-6000:]


@asynccontextmanager
async def product(home: Path, model: str | None, *options: str, environment: Mapping[str, str] | None = None) -> AsyncIterator[Product]:
    """Start the server in `home` on any free port and wait until it is ready; everything is gone afterwards.

    Raises:
        AssertionError: it ended, or was not ready within a minute.
    """
    home.mkdir(parents=True, exist_ok=True)
    variables = {k: v for k, v in os.environ.items() if not k.startswith(("MODEL", "AGENT_CODER_"))}
    variables |= {
        "AGENT_CODER_HOME": str(home),
        "AGENT_CODER_RATE_LIMIT_REQUESTS": "0",
        **({"MODEL": model} if model else {}),
        **(environment or {}),
    }
    with (home / "up.log").open("ab") as log:
        process = await asyncio.create_subprocess_exec(
            COMMAND, "up", "--port", "0", "--verbose", *options, env=variables, stdout=log, stderr=log, stdin=asyncio.subprocess.DEVNULL
        )
    try:
        url = await _ready(home, process)
        headers = {"Authorization": f"Bearer {(home / 'token').read_text().strip()}"}
        async with loopback_client(base_url=url, headers=headers, timeout=30) as client:
            yield Product(home, client, process)
    finally:
        await _stop(process)


async def _ready(home: Path, process: asyncio.subprocess.Process) -> str:
    runtime = home / "runtime.json"
    try:
        async with asyncio.timeout(60), loopback_client() as client:
            while process.returncode is None:
                try:
                    url = str(json.loads(runtime.read_text())["url"])
                    if (await client.get(f"{url}/readyz")).status_code == 200:
                        return url
                except (OSError, ValueError, httpx.TransportError):
                    pass
                await asyncio.sleep(0.05)
    except TimeoutError:
        pass
    raise AssertionError(f"the server is not ready:\n{(home / 'up.log').read_text(errors='replace')[-6000:]}")


async def _stop(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.send_signal(signal.SIGTERM)
    try:
        await asyncio.wait_for(process.wait(), 30)
    except TimeoutError:
        process.kill()
        await process.wait()
        raise AssertionError("the server did not stop within 30 s of SIGTERM") from None
