"""An OpenAI-compatible server for tests: scripted replies, odd tool-call deltas, errors with headers, broken streams. It counts its calls.

Every reply is on a connection of its own, so that one can be cut off in the middle.
"""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, cast

JsonObject = dict[str, Any]


@dataclass(frozen=True)
class ServerReply:
    """One reply. `tool_calls` are `{"id", "name", "arguments"}`; `deltas` are sent as they are, in place of everything made from the rest,
    `last_choice` in place of the end of a stream.

    `cut_after` closes the connection after that many events of a stream, `holds_after` sends no more until the server's `release` is set,
    `event_delay_seconds` is waited before each event; `body` is sent raw, as `content_type`.
    """

    content: str = ""
    reasoning: str = ""
    tool_calls: tuple[JsonObject, ...] = ()
    finish_reason: str | None = None
    usage: tuple[int, int] = (11, 7)
    cached_tokens: int = 0
    status: int = 200
    headers: JsonObject = field(default_factory=dict)
    body: str | None = None
    content_type: str = "application/json"
    deltas: tuple[JsonObject, ...] | None = None
    last_choice: JsonObject | None = None
    cut_after: int | None = None
    holds_after: int | None = None
    event_delay_seconds: float = 0.0
    ends_early: bool = False
    delay_seconds: float = 0.0


def error_reply(status: int, message: str, code: str | None = None, **headers: str) -> ServerReply:
    """An error as the OpenAI API words it; header names take `_` for `-`."""
    body = json.dumps({"error": {"message": message, "type": "error", "code": code}})
    return ServerReply(status=status, body=body, headers={name.replace("_", "-"): value for name, value in headers.items()})


Answer = Callable[[JsonObject], ServerReply]


class OpenAiServer:
    """Serves chat completions on a free port of the loopback. `requests` are the bodies that came in, `keys` the bearer tokens.

    `answer` is a function of the request's body, or a list of replies to give in order. `hung_up` counts the clients that went away in the
    middle of a stream.
    """

    def __init__(self, answer: Answer | Sequence[ServerReply]) -> None:
        self._replies = list(answer) if not callable(answer) else []
        self._answer = answer if callable(answer) else self._next
        self.requests: list[JsonObject] = []
        self.keys: list[str] = []
        self.base_url = ""
        self.arrived = asyncio.Event()
        self.release = asyncio.Event()
        self.hung_up = 0
        self._open: set[asyncio.Task[None]] = set()

    @property
    def calls(self) -> int:
        """How many requests came in."""
        return len(self.requests)

    def _next(self, _: JsonObject) -> ServerReply:
        return self._replies.pop(0) if self._replies else error_reply(501, "the test has no reply left for this request")

    @asynccontextmanager
    async def running(self, port: int = 0) -> AsyncIterator["OpenAiServer"]:
        """Serve while the block runs."""
        server = await asyncio.start_server(self._serve, "127.0.0.1", port, backlog=1024)
        self.base_url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        try:
            yield self
        finally:
            server.close()
            for task in self._open.copy():
                task.cancel()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = cast("asyncio.Task[None]", asyncio.current_task())
        self._open.add(task)
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:])}
            request = json.loads(await reader.readexactly(int(headers.get("content-length", "0"))) or b"{}")
            self.requests.append(request)
            self.keys.append(headers.get("authorization", "").removeprefix("Bearer "))
            self.arrived.set()
            reply = self._answer(request)
            if reply.delay_seconds:
                await asyncio.sleep(reply.delay_seconds)
            if request.get("stream") and reply.body is None:
                await self._stream(reader, writer, reply, request)
            else:
                await _send_whole(writer, reply, request)
        self._open.discard(task)
        writer.close()

    async def _stream(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, reply: ServerReply, request: JsonObject) -> None:
        """Send a stream; stop when the client goes away."""
        sending = asyncio.create_task(_send_stream(writer, reply, request, self.release))
        leaving = asyncio.create_task(reader.read())
        try:
            await asyncio.wait({sending, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if not sending.done():
                self.hung_up += 1
        finally:
            sending.cancel()
            leaving.cancel()
            await asyncio.gather(sending, leaving, return_exceptions=True)


async def _send_whole(writer: asyncio.StreamWriter, reply: ServerReply, request: JsonObject) -> None:
    body = (reply.body if reply.body is not None else json.dumps(_completion(reply, request))).encode()
    size = len(body) + (50 if reply.cut_after is not None else 0)
    writer.write(_head(reply.status, {"content-type": reply.content_type, "content-length": str(size), **reply.headers}) + body)
    await writer.drain()


async def _send_stream(writer: asyncio.StreamWriter, reply: ServerReply, request: JsonObject, release: asyncio.Event) -> None:
    writer.write(_head(200, {"content-type": "text/event-stream", "transfer-encoding": "chunked", **reply.headers}))
    events = [_chunk(request, choice) for choice in _choices(reply)]
    if not reply.ends_early:
        events.append(_chunk(request, None, _usage(reply)))
    for number, event in enumerate(events):
        if number == reply.cut_after:
            return
        if number == reply.holds_after:
            await release.wait()
        if reply.event_delay_seconds:
            await asyncio.sleep(reply.event_delay_seconds)
        _write_chunk(writer, f"data: {json.dumps(event)}\n\n")
        await writer.drain()
    if not reply.ends_early:
        _write_chunk(writer, "data: [DONE]\n\n")
    writer.write(b"0\r\n\r\n")
    await writer.drain()


def _write_chunk(writer: asyncio.StreamWriter, text: str) -> None:
    data = text.encode()
    writer.write(b"%x\r\n%s\r\n" % (len(data), data))


def _head(status: int, headers: JsonObject) -> bytes:
    lines = [f"HTTP/1.1 {status} Scripted", *(f"{name}: {value}" for name, value in headers.items()), "connection: close"]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def _usage(reply: ServerReply) -> JsonObject:
    given, made = reply.usage
    details = {"cached_tokens": reply.cached_tokens}
    return {"prompt_tokens": given, "completion_tokens": made, "total_tokens": given + made, "prompt_tokens_details": details}


def _calls(reply: ServerReply) -> list[JsonObject]:
    return [
        {"id": call.get("id"), "type": "function", "function": {"name": call["name"], "arguments": call["arguments"]}}
        for call in reply.tool_calls
    ]


def _finish(reply: ServerReply) -> str:
    return reply.finish_reason or ("tool_calls" if reply.tool_calls else "stop")


def _completion(reply: ServerReply, request: JsonObject) -> JsonObject:
    message: JsonObject = {"role": "assistant", "content": reply.content or None}
    if reply.reasoning:
        message["reasoning_content"] = reply.reasoning
    if reply.tool_calls:
        message["tool_calls"] = _calls(reply)
    choices = [{"index": 0, "message": message, "finish_reason": _finish(reply)}]
    return _envelope(request, "chat.completion") | {"choices": choices, "usage": _usage(reply)}


def _envelope(request: JsonObject, kind: str) -> JsonObject:
    return {"id": "chatcmpl-test", "object": kind, "created": int(time.time()), "model": request.get("model", "")}


def _chunk(request: JsonObject, choice: JsonObject | None, usage: JsonObject | None = None) -> JsonObject:
    event = _envelope(request, "chat.completion.chunk") | {"choices": [choice] if choice is not None else []}
    return event | ({"usage": usage} if usage else {})


def _choices(reply: ServerReply) -> list[JsonObject]:
    """The choices of a stream's events: role, text word by word, each tool call in three pieces, the end."""
    if reply.deltas is not None:
        deltas = list(reply.deltas)
    else:
        deltas = [{"role": "assistant", "content": ""}]
        deltas += [{"reasoning_content": reply.reasoning}] if reply.reasoning else []
        deltas += [{"content": piece + " "} for piece in reply.content.split(" ")[:-1]]
        deltas += [{"content": reply.content.split(" ")[-1]}] if reply.content else []
        deltas += [{"tool_calls": [piece]} for index, call in enumerate(_calls(reply)) for piece in _pieces(index, call)]
    choices = [{"index": 0, "delta": delta, "finish_reason": None} for delta in deltas]
    return choices if reply.ends_early else [*choices, reply.last_choice or {"index": 0, "delta": {}, "finish_reason": _finish(reply)}]


def _pieces(index: int, call: JsonObject) -> list[JsonObject]:
    arguments = call["function"]["arguments"]
    half = len(arguments) // 2
    first = {"index": index, "id": call["id"], "type": "function", "function": {"name": call["function"]["name"], "arguments": ""}}
    return [first, *({"index": index, "function": {"arguments": part}} for part in (arguments[:half], arguments[half:]))]
