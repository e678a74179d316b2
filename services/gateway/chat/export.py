"""A conversation as one document: JSON with every branch, or Markdown of one branch. Pages are read from the store as they are needed."""

import json
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any

from libs.contracts.conversation import ReadHistory, ReadTree, SessionDescription, SessionTree, StoredMessage
from services.gateway.clients import GatewayBus

_PAGE = 200
_MAX_LEAVES = 500
_LONG_OUTPUT = 2000


async def branch(bus: GatewayBus, owned: dict[str, str], session_id: str, leaf_id: str | None, known: set[str]) -> Sequence[StoredMessage]:
    """The messages of a branch from the root on, but for those in `known`, which must be a whole path to a message of it."""
    pages: list[tuple[StoredMessage, ...]] = []
    before: str | None = None
    while True:
        page = await bus.ask(ReadHistory(**owned, session_id=session_id, leaf_id=leaf_id, limit=_PAGE, before_id=before))
        fresh = tuple(m for m in page.messages if m.id not in known)
        pages.append(fresh)
        if not page.more or not page.messages or len(fresh) < len(page.messages):
            return [message for part in reversed(pages) for message in part]
        before = page.messages[0].id


def leaves(tree: SessionTree) -> list[str]:
    """The messages that branches end with, the active one first."""
    parents = {node.parent_id for node in tree.nodes}
    found = [node.id for node in tree.nodes if node.id not in parents]
    active = [tree.leaf_id] if tree.leaf_id is not None else []
    return active + [leaf for leaf in found if leaf != tree.leaf_id]


async def as_json(bus: GatewayBus, owned: dict[str, str], session: SessionDescription) -> AsyncIterator[bytes]:
    """`{"session", "leaf_id", "truncated", "messages"}`: every message of every branch, each after its parent."""
    tree = await bus.ask(ReadTree(**owned, session_id=session.session_id))
    wanted = leaves(tree)
    head = {"session": session.model_dump(mode="json"), "leaf_id": tree.leaf_id, "truncated": tree.truncated or len(wanted) > _MAX_LEAVES}
    yield json.dumps(head, ensure_ascii=False)[:-1].encode() + b', "messages": ['
    known: set[str] = set()
    for leaf in wanted[:_MAX_LEAVES]:
        messages = await branch(bus, owned, session.session_id, leaf, known)
        for message in messages:
            yield (b",\n" if known else b"\n") + message.model_dump_json(exclude_none=True).encode()
            known.add(message.id)
    yield b"\n]}\n"


async def as_markdown(bus: GatewayBus, owned: dict[str, str], session: SessionDescription, leaf_id: str | None) -> AsyncIterator[bytes]:
    """One branch for reading."""
    yield f"# {_line(session.name) or session.session_id}\n".encode()
    for message in await branch(bus, owned, session.session_id, leaf_id, set()):
        yield ("\n" + markdown_of(message)).encode("utf-8", "replace")


def markdown_of(message: StoredMessage) -> str:
    """A message for reading: its texts as they are, tools with input and output as fenced JSON, the rest named."""
    when = f" · {message.created_at:%Y-%m-%d %H:%M} UTC" if message.created_at else ""
    return f"## {message.role}{when}\n\n" + "".join(f"{block}\n\n" for block in _blocks(message.parts))


def _blocks(parts: Iterable[dict[str, Any]]) -> Iterable[str]:
    for part in parts:
        kind = str(part.get("type", ""))
        if kind == "text":
            yield str(part.get("text", ""))
        elif kind == "reasoning":
            yield "\n".join(f"> {line}" for line in str(part.get("text", "")).splitlines())
        elif kind.startswith("tool-") or kind == "dynamic-tool":
            yield _tool(part, kind)
        elif kind not in ("step-start",):
            yield f"*({_line(kind)})*"


def _tool(part: dict[str, Any], kind: str) -> str:
    name = part.get("toolName") or kind.removeprefix("tool-")
    lines = [f"**{_line(str(name))}** ({_line(str(part.get('state', '')))})", _fenced(part.get("input"))]
    if part.get("output") is not None or part.get("errorText"):
        lines.append(_fenced(part.get("output", part.get("errorText"))))
    return "\n\n".join(lines)


def _fenced(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=2)
    if len(text) > _LONG_OUTPUT:
        text = f"{text[:_LONG_OUTPUT]}\n… {len(text) - _LONG_OUTPUT:,} characters more"
    fence = "`" * max(3, _longest_run(text) + 1)
    return f"{fence}\n{text}\n{fence}"


def _longest_run(text: str) -> int:
    longest = run = 0
    for character in text:
        run = run + 1 if character == "`" else 0
        longest = max(longest, run)
    return longest


def _line(text: str) -> str:
    return " ".join(text.split())[:200]
