"""Carries commits between a workspace and the artifact store as git bundles."""

import asyncio
import secrets
from pathlib import Path
from typing import Protocol, TypeVar

from libs.bus.questions import FrameHandler
from libs.contracts.artifact import Chunk, FetchBundle, PutChunk, StoreBundle
from libs.contracts.envelope import BlobRef, Message, Question
from libs.contracts.sandbox import TakeSnapshot
from services.sandbox.errors import SandboxError

PIECE_BYTES = 512 * 1024
AnswerT = TypeVar("AnswerT", bound=Message)


class Ask(Protocol):
    """Asks another service (`Bus.ask`)."""

    async def __call__(self, question: Question[AnswerT], on_frame: FrameHandler | None = None) -> AnswerT:
        """The answer."""
        ...


async def fetch_bundle(ask: Ask, repository: str, commit: str, have: tuple[str, ...], path: Path) -> None:
    """Write a bundle of `commit` to `path`, less what `have` reaches. Raises Refusal and NoAnswer as the store says."""
    with path.open("wb") as file:

        async def on_frame(payload: bytes) -> None:
            await asyncio.to_thread(file.write, Chunk.model_validate_json(payload).data)

        await ask(FetchBundle(repository=repository, commit=commit, have=have), on_frame)


async def store_bundle(ask: Ask, repository: str, question: TakeSnapshot, commit: str, path: Path) -> None:
    """Send a bundle to the store, which points the step's hidden ref at `commit`; removes the file."""
    try:
        blob = await _put(ask, question.run_id, path)
    finally:
        path.unlink()
    await ask(StoreBundle(repository=repository, run_id=question.run_id, sequence=question.sequence, commit=commit, bundle=blob))


async def _put(ask: Ask, owner: str, path: Path) -> BlobRef:
    upload, offset, size = secrets.token_hex(12), 0, path.stat().st_size
    with path.open("rb") as file:
        while True:
            data = await asyncio.to_thread(file.read, PIECE_BYTES)
            last = offset + len(data) >= size
            answer = await ask(PutChunk(upload_id=upload, owner=owner, offset=offset, data=data, last=last))
            if answer.blob is not None:
                return answer.blob
            if last:
                raise SandboxError("the artifact store took the whole bundle and did not name it; the step can be tried again")
            offset += len(data)
