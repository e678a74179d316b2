"""Payloads too large for the journal, kept in the artifact store under the digest of their content."""

import hashlib

from libs.contracts.artifact import BlobPut, Chunk, GetBlob, PutChunk
from libs.contracts.envelope import Ask, BlobRef

INLINE_BYTES = 48 * 1024
_CHUNK_BYTES = 256 * 1024


async def put_blob(ask: Ask, owner: str, data: bytes) -> BlobRef:
    """Store `data`; done twice it is stored once. Raises Refusal or NoAnswer."""
    upload_id = hashlib.sha256(owner.encode() + b"\0" + data).hexdigest()
    answer = BlobPut(received=0)
    for offset in range(0, max(len(data), 1), _CHUNK_BYTES):
        chunk = data[offset : offset + _CHUNK_BYTES]
        last = offset + _CHUNK_BYTES >= len(data)
        answer = await ask(PutChunk(upload_id=upload_id, owner=owner, offset=offset, data=chunk, last=last))
    return answer.blob or BlobRef(sha256=hashlib.sha256(data).hexdigest(), size=len(data))


async def get_blob(ask: Ask, blob: BlobRef) -> bytes:
    """The content of a blob. Raises Refusal or NoAnswer, ValueError when the content is not what was stored."""
    received = bytearray()

    async def take(payload: bytes) -> None:
        received.extend(Chunk.model_validate_json(payload).data)

    await ask(GetBlob(sha256=blob.sha256), on_frame=take)
    if hashlib.sha256(received).hexdigest() != blob.sha256:
        raise ValueError(f"blob {blob.sha256[:12]} came back damaged")
    return bytes(received)
