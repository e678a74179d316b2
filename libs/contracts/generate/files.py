"""The files of `proto/`: written from the contracts, or compared with what is there.

Invariants: a golden example is written once and stays; `published.json` only grows; nothing is written while there is a fault.
"""

import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from libs.contracts.envelope import Message
from libs.contracts.generate.catalogue import catalogue, versioned
from libs.contracts.generate.compatibility import Fields, faults, fields
from libs.contracts.generate.examples import example

PUBLISHED = "published.json"
DRAFT = "https://json-schema.org/draft/2020-12/schema"
Catalogue = Mapping[str, type[Message]]


@functools.cache
def schema(message: type[Message]) -> dict[str, Any]:
    """The JSON Schema (2020-12) of a message's payload, to be read only."""
    return {"$schema": DRAFT, "$id": f"{versioned(message)}.json", **message.model_json_schema()}


@functools.cache
def _fields(message: type[Message]) -> Fields:
    return fields(schema(message))


def text(document: object) -> str:
    """A document as it is written: JSON, indented, readable in any language."""
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def schema_files(messages: Catalogue) -> dict[str, str]:
    """The schema files by path in `proto/`."""
    return {f"schemas/{name}.json": text(schema(message)) for name, message in messages.items()}


def published(root: Path) -> dict[str, Fields]:
    """What was ever published, by name and version."""
    path = root / PUBLISHED
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else {}


def broken(root: Path, messages: Catalogue) -> list[str]:
    """What the messages break of what was published in `root`."""
    alive = {name.rpartition(".v")[0] for name in messages}
    found: list[str] = []
    for name, old in published(root).items():
        if name in messages:
            found.extend(f"{name}: {fault}" for fault in faults(old, _fields(messages[name])))
        elif name.rpartition(".v")[0] not in alive:
            found.append(f"{name}: the message was removed")
    return found


def _grown(root: Path, messages: Catalogue) -> dict[str, Fields]:
    return dict(sorted((published(root) | {name: _fields(m) for name, m in messages.items()}).items()))


def _generated(root: Path, messages: Catalogue, extra: Mapping[str, str]) -> dict[str, str]:
    return schema_files(messages) | {PUBLISHED: text(_grown(root, messages))} | dict(extra)


def check(root: Path, extra: Mapping[str, str], messages: Catalogue | None = None) -> list[str]:
    """What is wrong with the `proto/` in `root`, one line each; `extra` are further generated files by path."""
    known = catalogue() if messages is None else messages
    breaks = broken(root, known)
    found = list(breaks)
    for path, wanted in _generated(root, known, extra).items():
        file = root / path
        if not file.is_file():
            found.append(f"{path} is missing: run `make proto`")
        elif not breaks and file.read_text(encoding="utf-8") != wanted:
            found.append(f"{path} is not what the code says: run `make proto`")
    versions = published(root)
    for name in versions:
        found.extend(f"{f}/{name}.json is missing: it was published" for f in ("schemas", "golden") if not _has(root, f, name))
    for file in sorted([*root.glob("schemas/*.json"), *root.glob("golden/*.json")]):
        if file.stem not in versions:
            found.append(f"{file.relative_to(root)} belongs to no published message")
    return list(dict.fromkeys(found))


def _has(root: Path, folder: str, name: str) -> bool:
    return (root / folder / f"{name}.json").is_file()


def write(root: Path, extra: Mapping[str, str], messages: Catalogue | None = None) -> list[str]:
    """Write `proto/` to `root`. Returns what the messages break of what was published; then nothing was written."""
    known = catalogue() if messages is None else messages
    found = broken(root, known)
    if found:
        return found
    for path, wanted in _generated(root, known, extra).items():
        _put(root / path, wanted)
    for name, message in known.items():
        if not _has(root, "golden", name):
            _put(root / "golden" / f"{name}.json", text(example(message).model_dump(mode="json", exclude_none=True)))
    return []


def _put(path: Path, content: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content, encoding="utf-8")
