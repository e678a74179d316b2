"""An answer as plain text: the text alone, and in brackets on a line of its own whatever else a person at a terminal must know. Pure."""

import json
from collections.abc import Sequence
from typing import Any

from libs.contracts.turn import PendingCall
from services.gateway.chat.weave import Chunk

_SHOWN = 4000


class PlainText:
    """Feed chunks with `take`; it gives the bytes to send, none for most. `chat` is how the conversation is addressed."""

    def __init__(self, chat: str, turn_id: str) -> None:
        self._chat, self._turn_id = chat, turn_id
        self._calls: dict[str, str] = {}
        self._middle = False

    def take(self, chunk: Chunk) -> bytes:
        """A chunk as a terminal shows it."""
        match chunk:
            case {"type": "text-delta", "delta": str() as delta}:
                self._middle = self._middle if not delta else not delta.endswith("\n")
                return delta.encode("utf-8", "replace")
            case {"type": "text-end"}:
                self._middle = False
                return b"\n"
        return self._note(self._told(chunk)).encode("utf-8", "replace")

    def _note(self, text: str) -> str:
        """A line in brackets, which begins where a line begins."""
        if not text:
            return ""
        begin, self._middle = "\n" if self._middle else "", False
        return f"{begin}[{text}]\n"

    def _told(self, chunk: Chunk) -> str:
        told = ""
        match chunk:
            case {"type": "error", "errorText": str() as text}:
                told = f"error: {text}"
            case {"type": "abort"}:
                told = "stopped"
            case {"type": "data-notice", "data": {"text": str() as text}}:
                told = text
            case {"type": "tool-input-available", "toolCallId": str() as call, "toolName": str() as tool}:
                self._calls[call] = made(tool, chunk.get("input"))
            case {"type": "tool-approval-request", "toolCallId": str() as call}:
                told = waiting("approval", self._calls.pop(call, "a tool"), self._chat, self._turn_id, call)
            case {"type": "tool-output-available" | "tool-output-error" | "tool-output-denied", "toolCallId": str() as call}:
                self._calls.pop(call, None)
            case {"type": "finish", "messageMetadata": {"paused": True}}:
                told = "]\n[".join(waiting("client", said, self._chat, self._turn_id, call) for call, said in self._calls.items())
        return told


def made(tool: str, arguments: Any) -> str:
    """A call with its arguments, on one line."""
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return f"{tool} {text}" if len(text) <= _SHOWN else f"{tool} {text[:_SHOWN]}… ({len(text) - _SHOWN:,} characters more)"


def waiting(waits_for: str, call: str, chat: str, turn_id: str, call_id: str) -> str:
    """What a turn waits for, and how it is answered."""
    wish, word = ("your consent to", '"approved": true') if waits_for == "approval" else ("the output of", '"output": "…"')
    body = f'{{"turn": "{turn_id}", "call_id": "{call_id}", {word}}}'
    return f"waits for {wish} {call}; answer with POST /api/chat/{chat}/answers {body}"


def queued(blocking: Sequence[PendingCall], chat: str, turn_id: str) -> str:
    """Why a message is not answered yet: the turn before it waits for somebody."""
    waits = "; ".join(waiting(call.waits_for, made(call.tool, call.arguments), chat, turn_id, call.call_id) for call in blocking)
    return f'queued behind an answer that {waits}; or stop that with POST /api/chat/{chat}/cancel {{"turn": "{turn_id}"}}'
