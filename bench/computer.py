"""How long a sandbox takes to its first command, beside the same command without a sandbox."""

import asyncio
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from services.sandbox.backends import CommandSpec
from services.sandbox.backends.process import ProcessBackend


@dataclass(frozen=True)
class FirstCommand:
    """Milliseconds, medians."""

    sandbox_ms: float
    bare_ms: float


async def first_command(tries: int = 30) -> FirstCommand:
    """Run `true` in a fresh sandbox and bare, in turn."""
    inside: list[float] = []
    bare: list[float] = []
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as runtime:
        backend = ProcessBackend.on_this_machine(Path(runtime))
        for _ in range(tries):
            begin = time.perf_counter()
            result = await backend.run(CommandSpec(command="true", workspace=Path(folder), timeout_seconds=20))
            inside.append(time.perf_counter() - begin)
            if result.exit_code != 0:
                raise RuntimeError(f"the sandbox did not run: {result.reason or result.stderr.decode()}")
            begin = time.perf_counter()
            await (await asyncio.create_subprocess_shell("true")).wait()
            bare.append(time.perf_counter() - begin)
    return FirstCommand(statistics.median(inside) * 1000, statistics.median(bare) * 1000)
