"""Blobs: in chunks, once, under their digest, for as long as somebody holds them."""

import asyncio
import hashlib
import os
from pathlib import Path

import pytest

from services.artifact.blobs import DiskBlobStore, Upload
from services.artifact.errors import BlobNotFound, InvalidName, TooLarge, UploadRefused

DATA = bytes(range(256)) * 4000
DIGEST = hashlib.sha256(DATA).hexdigest()
STEP = 300_000


@pytest.fixture
def blobs(tmp_path: Path) -> DiskBlobStore:
    return DiskBlobStore(tmp_path / "blobs", max_bytes=2_000_000)


async def put(blobs: DiskBlobStore, owner: str = "run-1", upload: str = "u1", data: bytes = DATA) -> Upload:
    answer = Upload(0)
    for offset in range(0, max(len(data), 1), STEP):
        answer = await blobs.put_chunk(owner, upload, offset, data[offset : offset + STEP], last=offset + STEP >= len(data))
    return answer


async def read(blobs: DiskBlobStore, sha256: str, offset: int = 0) -> bytes:
    return b"".join([piece async for piece in blobs.read(sha256, offset)])


def files(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file() and path.name != "lock")


async def test_a_blob_comes_back_as_it_went_in(blobs: DiskBlobStore) -> None:
    assert await put(blobs) == Upload(len(DATA), DIGEST)
    assert await read(blobs, DIGEST) == DATA
    assert await read(blobs, DIGEST, 999_999) == DATA[999_999:]
    assert await read(blobs, DIGEST, 10**9) == b""


async def test_an_empty_blob_is_a_blob(blobs: DiskBlobStore) -> None:
    stored = await put(blobs, data=b"")
    assert stored == Upload(0, hashlib.sha256().hexdigest())
    assert await read(blobs, str(stored.sha256)) == b""


async def test_an_unfinished_blob_is_not_visible(blobs: DiskBlobStore) -> None:
    assert await blobs.put_chunk("run-1", "u1", 0, DATA[:STEP], last=False) == Upload(STEP)
    with pytest.raises(BlobNotFound):
        await read(blobs, hashlib.sha256(DATA[:STEP]).hexdigest())


async def test_a_repeated_chunk_is_taken_once(blobs: DiskBlobStore) -> None:
    await blobs.put_chunk("run-1", "u1", 0, DATA[:10], last=False)
    await blobs.put_chunk("run-1", "u1", 10, DATA[10:20], last=False)
    await blobs.put_chunk("run-1", "u1", 0, DATA[:10], last=False)
    await blobs.put_chunk("run-1", "u1", 10, DATA[10:20], last=False)
    first = await blobs.put_chunk("run-1", "u1", 20, DATA[20:], last=True)
    again = await blobs.put_chunk("run-1", "u1", 20, DATA[20:], last=True)
    assert first == again == Upload(len(DATA), DIGEST)
    assert await put(blobs, upload="u1") == first


async def test_an_upload_that_starts_over_holds_only_the_new_bytes(blobs: DiskBlobStore) -> None:
    await blobs.put_chunk("run-1", "u1", 0, b"old old", last=False)
    assert (await put(blobs)).sha256 == DIGEST


async def test_a_gap_is_refused_with_the_place_to_go_on(blobs: DiskBlobStore) -> None:
    await blobs.put_chunk("run-1", "u1", 0, b"12345", last=False)
    with pytest.raises(UploadRefused, match="Continue at 5"):
        await blobs.put_chunk("run-1", "u1", 9, b"x", last=True)


async def test_a_blob_over_the_limit_is_refused_and_leaves_nothing(blobs: DiskBlobStore, tmp_path: Path) -> None:
    await blobs.put_chunk("run-1", "u1", 0, b"x" * 1_500_000, last=False)
    with pytest.raises(TooLarge, match="2,000,000"):
        await blobs.put_chunk("run-1", "u1", 1_500_000, b"x" * 500_001, last=True)
    assert files(tmp_path) == []


async def test_equal_content_is_kept_once_and_until_the_last_owner_lets_go(blobs: DiskBlobStore, tmp_path: Path) -> None:
    await asyncio.gather(*(put(blobs, owner, f"{owner}-{number}") for owner in ("run-1", "run-2") for number in range(3)))
    content = list((tmp_path / "blobs" / "content").rglob("*/*"))
    assert len(content) == 1
    assert await blobs.delete_owner("run-1") == 1
    assert await read(blobs, DIGEST) == DATA
    assert await blobs.delete_owner("run-2") == 1
    with pytest.raises(BlobNotFound):
        await read(blobs, DIGEST)
    assert await blobs.delete_owner("run-2") == 0
    assert files(tmp_path) == []


async def test_an_owner_can_be_called_anything(blobs: DiskBlobStore, tmp_path: Path) -> None:
    for owner in ("../../etc", "a/b", "修复 ☃", ".", "\0"):
        await put(blobs, owner, "../u", b"data")
        assert await blobs.delete_owner(owner) == 1
    assert {path.name for path in tmp_path.iterdir()} == {"blobs"}


@pytest.mark.parametrize("name", ["", "../../etc/passwd", "A" * 64, "0" * 63, "0" * 64 + "\n"])
async def test_only_a_digest_names_a_blob(name: str, blobs: DiskBlobStore) -> None:
    with pytest.raises(InvalidName):
        await read(blobs, name)


async def test_sweeping_drops_what_was_left_behind(blobs: DiskBlobStore, tmp_path: Path) -> None:
    await put(blobs)
    await blobs.put_chunk("run-1", "left", 0, b"x", last=False)
    orphan = tmp_path / "blobs" / "content" / "ff" / ("f" * 64)
    orphan.parent.mkdir(exist_ok=True)
    orphan.write_bytes(b"x")
    for path in (tmp_path / "blobs" / "owners").rglob("uploads/*"):
        os.utime(path, (1, 1))
    await blobs.sweep(3600, 3600)
    assert await read(blobs, DIGEST) == DATA
    assert not orphan.exists()
    assert not any(path.is_file() for path in (tmp_path / "blobs" / "owners").rglob("uploads/*"))
    os.utime(next((tmp_path / "blobs" / "owners").glob("*/blobs")), (1, 1))
    await blobs.sweep(3600, 3600)
    assert files(tmp_path) == []


async def test_one_blob_can_be_let_go(blobs: DiskBlobStore) -> None:
    await put(blobs, "git", "u1")
    await put(blobs, "run-1", "u2")
    await blobs.release("git", DIGEST)
    await blobs.release("git", DIGEST)
    assert await read(blobs, DIGEST) == DATA
    await blobs.release("run-1", DIGEST)
    with pytest.raises(BlobNotFound):
        await read(blobs, DIGEST)
