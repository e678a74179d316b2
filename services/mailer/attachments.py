"""Which files of a mail are kept: pictures, PDF, plain text and documents without macros. The bytes decide, not their name."""

import io
import re
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass

from libs.agent.blobs import put_blob
from libs.contracts.envelope import Ask
from libs.contracts.team import Attachment
from services.mailer.parsing import File

MAX_FILES, MAX_BYTES = 20, 10 * 1024 * 1024
_MAGIC = {".png": b"\x89PNG\r\n", ".jpg": b"\xff\xd8\xff", ".jpeg": b"\xff\xd8\xff", ".gif": b"GIF8", ".webp": b"RIFF", ".pdf": b"%PDF"}
_DOCUMENTS = {".docx", ".xlsx", ".pptx", ".odt", ".ods", ".odp"}
_TEXTS = re.compile(
    r"\.(?:txt|md|rst|log|csv|tsv|jsonl?|xml|ya?ml|toml|ini|cfg|conf|diff|patch|out|err|trace|lock|sql|proto|graphql"
    r"|py|tsx?|jsx|go|rs|java|kt|swift|c|h|cc|[ch]pp|cs|rb|php)"
)
_TYPES = {".jpg": "image/jpeg", ".pdf": "application/pdf"}
_MACROS = re.compile(r"vbaProject|/macros?/|\.bin$|Basic/|Scripts/", re.IGNORECASE)
_PROGRAMS = (b"MZ", b"\x7fELF", b"\xcf\xfa\xed\xfe", b"\xfe\xed\xfa", b"\xca\xfe\xba\xbe", b"#!", b"\xd0\xcf\x11\xe0")


@dataclass(frozen=True)
class Sorted:
    """The files that are kept, each with the media type that its bytes show, and `name: reason` of the others."""

    kept: tuple[File, ...] = ()
    dropped: tuple[str, ...] = ()


def sort(files: Sequence[File], max_bytes: int = MAX_BYTES) -> Sorted:
    """Tell the files that are kept from the others."""
    kept: list[File] = []
    dropped: list[str] = []
    for file in files:
        why = f"more than {MAX_FILES} files" if len(kept) >= MAX_FILES else _refusal(file, max_bytes)
        if why:
            dropped.append(f"{file.name[:150]}: {why}")
        else:
            kept.append(File(file.name, _media_type(file.name), file.content))
    return Sorted(tuple(kept), tuple(dropped[:100]))


async def store(ask: Ask, owner: str, files: Sequence[File]) -> tuple[Attachment, ...]:
    """Put files into the artifact store. Raises Refusal or NoAnswer."""
    return tuple([Attachment(name=f.name, media_type=f.media_type, blob=await put_blob(ask, owner, f.content)) for f in files])


def _extension(name: str) -> str:
    return "." + name.lower().rpartition(".")[2] if "." in name else ""


def _media_type(name: str) -> str:
    kind = _extension(name)
    if kind in _MAGIC:
        return _TYPES.get(kind, f"image/{kind[1:]}")
    return "application/octet-stream" if kind in _DOCUMENTS else "text/plain"


def _refusal(file: File, max_bytes: int) -> str:
    """Why a file is not kept; empty when it is."""
    if len(file.content) > max_bytes:
        return f"larger than {max_bytes / 1024 / 1024:g} MB"
    if not file.content:
        return "empty"
    if file.content.startswith(_PROGRAMS):
        return "a program, or a format that can hold one"
    return _by_kind(_extension(file.name), file.content)


def _by_kind(kind: str, content: bytes) -> str:
    if kind in _MAGIC:
        return "" if content.startswith(_MAGIC[kind]) else f"it is no {kind[1:].upper()}"
    if kind in _DOCUMENTS:
        return _document(content)
    if _TEXTS.fullmatch(kind):
        return "" if b"\0" not in content else "it is no text"
    return f"files of the kind {kind or 'without extension'} are not kept"


def _document(content: bytes) -> str:
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            names = archive.namelist()
    except (zipfile.BadZipFile, ValueError, NotImplementedError, OSError):
        return "it cannot be read"
    return "it holds macros, or other programs" if len(names) > 5000 or any(map(_MACROS.search, names)) else ""
