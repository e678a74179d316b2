"""How much disk a hostile folder takes. Depth, strange names and removed permissions must not hide anything."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from services.sandbox.errors import SandboxError

WALK_SECONDS = 120.0


@dataclass(frozen=True)
class DiskUsage:
    """Bytes on disk, blocks counted, a hard link once."""

    bytes: int


async def disk_usage(folders: Sequence[Path]) -> DiskUsage:
    """Sum of the folders (du(1), which survives any depth). Folders that were closed to us are opened and counted."""
    code, output = await _run("du", "-sxB1", "--", *map(str, folders))
    if code != 0:
        await _run("chmod", "-Rf", "u+rwX", "--", *map(str, folders))
        _, output = await _run("du", "-sxB1", "--", *map(str, folders))
    return DiskUsage(bytes=sum(int(line.split(b"\t", 1)[0]) for line in output.splitlines() if line))


async def remove_tree(folder: Path) -> None:
    """Remove a folder whatever is in it, following no links; raises SandboxError when something stays."""
    code, _ = await _run("rm", "-rf", "--one-file-system", "--", str(folder))
    if code != 0:
        await _run("chmod", "-Rf", "u+rwX", "--", str(folder))
        code, _ = await _run("rm", "-rf", "--one-file-system", "--", str(folder))
    if code != 0:
        raise SandboxError(f"{folder.name} could not be removed whole: look for files that belong to another user or a mount below it")


async def _run(*command: str) -> tuple[int, bytes]:
    process = await asyncio.create_subprocess_exec(
        *command, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
    )
    try:
        output, _ = await asyncio.wait_for(process.communicate(), WALK_SECONDS)
    except BaseException:
        if process.returncode is None:
            process.kill()
        await process.wait()
        raise
    return process.returncode or 0, output
