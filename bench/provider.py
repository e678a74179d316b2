"""The fake provider of `bench.chat` in a process of its own: the same short reply at once, or word by word when the prompt says `paced`."""

import asyncio
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from libs.testkit.openai_server import OpenAiServer, ServerReply, error_reply

FIRST = "Once"
PACED = "paced"
_REPLY = ServerReply(content=f"{FIRST} there was a very small model that said the same to everybody.")
_PACED = ServerReply(content=" ".join([FIRST, *(["word"] * 28)]), event_delay_seconds=0.1)


def answer(request: Mapping[str, Any]) -> ServerReply:
    """The reply to a request."""
    if not request.get("messages"):
        return error_reply(404, "there are only chat completions")
    return _PACED if PACED in str(request["messages"][-1]["content"]) else _REPLY


@asynccontextmanager
async def provider() -> AsyncIterator[str]:
    """The base URL of a provider that runs while the block does."""
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", "bench.provider", stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    try:
        yield (await asyncio.wait_for(process.stdout.readline(), 30)).decode().strip()
    finally:
        process.kill()
        await process.wait()


async def serve() -> None:
    """Print the base URL and serve until killed."""
    async with OpenAiServer(answer).running() as server:
        print(server.base_url, flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve())
