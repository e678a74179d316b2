"""A chat as a client holds it: the UI-message stream taken apart strictly, a script of scenes, a second person with a token of an issuer.

A scene is told from another by its mark in the person's words; its replies are given in the order of the conversation.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import jwt
from cryptography.hazmat.primitives.asymmetric import ec

from libs.testkit.product import Product

Chunk = dict[str, Any]
ENDS = frozenset({"finish", "error", "abort"})
NOTHING_TO_REMEMBER = {"when": {"purpose": "memory"}, "replies": [{"content": '{"items": []}'}]}


def script(place: Path, scenes: Mapping[str, Sequence[Mapping[str, Any]]], rules: Sequence[Mapping[str, Any]] = (), **options: Any) -> str:
    """A script of scenes by mark; the value for MODEL. `rules` go before them."""
    found = [{"when": {"purpose": "chat", "contains": mark}, "replies": list(replies)} for mark, replies in scenes.items()]
    path = place / "chat.json"
    path.write_text(json.dumps({"name": "chat", "rules": [*rules, NOTHING_TO_REMEMBER, *found], **options}))
    return f"scripted:{path}"


def calls(*made: tuple[str, Mapping[str, Any]], content: str = "") -> dict[str, Any]:
    """A scripted reply that calls tools."""
    return {"content": content, "tool_calls": [{"name": name, "arguments": dict(arguments)} for name, arguments in made]}


class Reader:
    """The lines of a UI-message stream, checked as they come: parts are opened, filled and closed in order, and nothing follows the end."""

    def __init__(self) -> None:
        self.chunks: list[Chunk] = []
        self.done = False
        self._open: set[str] = set()
        self._ids: set[str] = set()

    def line(self, line: str) -> Chunk | None:
        """The chunk of a line; None for the others."""
        if not line.startswith("data: "):
            assert line in ("", ": heartbeat"), line
            return None
        assert not self.done, line
        if line == "data: [DONE]":
            self.done = True
            return None
        chunk: Chunk = json.loads(line[6:])
        self._check(chunk)
        self.chunks.append(chunk)
        return chunk

    def _check(self, chunk: Chunk) -> None:
        kind, _, verb = chunk["type"].partition("-")
        if kind not in ("text", "reasoning"):
            return
        if verb == "start":
            assert chunk["id"] not in self._ids, chunk
            self._ids.add(chunk["id"])
            self._open.add(chunk["id"])
        else:
            assert chunk["id"] in self._open, chunk
            if verb == "end":
                self._open.remove(chunk["id"])

    async def read(self, answer: httpx.Response) -> "Reader":
        """All lines that are left."""
        async for line in answer.aiter_lines():
            self.line(line)
        return self

    async def until_text(self, lines: AsyncIterator[str], text: str) -> None:
        """Read up to the moment when `text` is shown."""
        async for line in lines:
            self.line(line)
            if text in self.text:
                return
        raise AssertionError(f"the stream ended without {text!r}: {self.chunks}")

    @property
    def text(self) -> str:
        """What the answer says."""
        return "".join(c["delta"] for c in self.chunks if c["type"] == "text-delta")

    @property
    def kinds(self) -> list[str]:
        """The types in order, runs of one type as one."""
        kinds = [c["type"] for c in self.chunks]
        return [kind for place, kind in enumerate(kinds) if not place or kinds[place - 1] != kind]

    def only(self, kind: str) -> Chunk:
        """The one chunk of a type."""
        (found,) = (c for c in self.chunks if c["type"] == kind)
        return found


@dataclass
class Chat:
    """One person's conversations on a running product."""

    running: Product
    client: httpx.AsyncClient
    place: Path = field(default_factory=Path)

    async def say(self, session: str, text: str, **body: Any) -> Reader:
        """A message and its whole answer, which must be a stream that ends properly."""
        async with self.client.stream("POST", "/api/chat", json={"message": text, "session": session, **body}) as answer:
            return await self.whole(answer)

    async def whole(self, answer: httpx.Response) -> Reader:
        """The rest of an answer."""
        if answer.status_code != 200:
            raise AssertionError(f"{answer.status_code}: {(await answer.aread()).decode()}\n{self.running.log()}")
        assert answer.headers["x-vercel-ai-ui-message-stream"] == "v1"
        read = await Reader().read(answer)
        assert read.done, read.chunks
        assert read.chunks[-1]["type"] in ENDS, read.chunks
        return read

    async def resumed(self, session: str) -> Reader | None:
        """What a client gets that comes back; None when nothing is at work."""
        async with self.client.stream("GET", f"/api/chat/{session}/stream") as answer:
            return None if answer.status_code == 204 else await self.whole(answer)

    async def messages(self, session: str, **query: Any) -> list[dict[str, Any]]:
        """The active branch."""
        answer = await self.client.get(f"/api/sessions/{session}/messages", params=query)
        answer.raise_for_status()
        return list(answer.json()["messages"])

    async def texts(self, session: str, **query: Any) -> list[str]:
        """What each message of the active branch says."""
        return [words(message) for message in await self.messages(session, **query)]

    async def answer(self, session: str, **body: Any) -> dict[str, Any]:
        """Answer a call that waits."""
        answer = await self.client.post(f"/api/chat/{session}/answers", json=body)
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    async def answer_and_read(self, session: str, **body: Any) -> Reader:
        """Answer the call that waits and read what the turn says next, whether it has ended by then or not."""
        turn = (await self.answer(session, **body))["turn"]
        async with self.client.stream("GET", f"/api/chat/{session}/stream", params={"turn": turn}) as answer:
            return await self.whole(answer)


def words(message: Mapping[str, Any]) -> str:
    """The text of a stored message."""
    return "".join(part["text"] for part in message["parts"] if part["type"] == "text")


class Issuer:
    """Somebody who signs tokens for people, and publishes the key."""

    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self.url = ""
        self.down = False

    @asynccontextmanager
    async def running(self) -> AsyncIterator["Issuer"]:
        """Publish the key while the block runs."""
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            yield self
        finally:
            server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        public = jwt.get_algorithm_by_name("ES256").to_jwk(self._key.public_key(), as_dict=True)
        body = json.dumps({"keys": [{k: v for k, v in public.items() if k != "key_ops"} | {"kid": "k", "use": "sig"}]}).encode()
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            if self.down:
                raise ConnectionError
            head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n"
            writer.write(head + b"content-length: %d\r\n\r\n" % len(body) + body)
            await writer.drain()
        writer.close()

    def client(self, running: Product, user: str, kid: str = "k") -> httpx.AsyncClient:
        """A client of a person of the tenant `acme`; its token names the key `kid`."""
        claims = {"iss": self.url, "aud": "agent-coder", "sub": user, "exp": 4_102_444_800, "tenant": "acme"}
        token = jwt.encode(claims, self._key, "ES256", {"kid": kid})
        headers = {"Authorization": f"Bearer {token}"}
        return httpx.AsyncClient(base_url=running.client.base_url, headers=headers, timeout=30, trust_env=False)
