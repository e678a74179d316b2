"""The frames of the reference's chat protocol (npm package `agents`), both ways. Pure.

Frames from a client are read leniently: one that cannot be read is none.
"""

import json
from collections.abc import Iterable
from typing import Any

from libs.contracts.conversation import StoredMessage
from libs.contracts.envelope import JsonObject
from services.gateway.chat.halves import mended

REQUEST = "cf_agent_use_chat_request"
RESPONSE = "cf_agent_use_chat_response"
MESSAGES = "cf_agent_chat_messages"
CLEAR = "cf_agent_chat_clear"
CANCEL = "cf_agent_chat_request_cancel"
RESUME_REQUEST = "cf_agent_stream_resume_request"
RESUME_ACK = "cf_agent_stream_resume_ack"
TOOL_RESULT = "cf_agent_tool_result"
TOOL_APPROVAL = "cf_agent_tool_approval"
STATE = "cf_agent_state"
RPC = "rpc"
READONLY = "Connection is readonly"
WRITES = frozenset({REQUEST, CLEAR, CANCEL, TOOL_RESULT, TOOL_APPROVAL, STATE, MESSAGES})


def parse(text: str) -> JsonObject | None:
    """A frame from a client; None for what is none."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return mended(found) if isinstance(found, dict) and isinstance(found.get("type"), str) else None


def body_of(text: Any) -> JsonObject:
    """The body of a chat request; an empty one for what is none."""
    try:
        found = json.loads(text) if isinstance(text, str) else {}
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def identity(agent: str, name: str) -> JsonObject:
    """Which agent and conversation this is."""
    return {"type": "cf_agent_identity", "name": name, "agent": agent}


def state(value: Any) -> JsonObject:
    """The state that clients share."""
    return {"type": STATE, "state": value}


def state_error(text: str) -> JsonObject:
    """A write that was refused."""
    return {"type": "cf_agent_state_error", "error": text}


def mcp_servers() -> JsonObject:
    """The MCP servers of the agent; there are none."""
    return {"type": "cf_agent_mcp_servers", "mcp": {"servers": {}, "tools": [], "prompts": [], "resources": []}}


def messages(found: Iterable[StoredMessage], *, connect: bool = False) -> JsonObject:
    """The active branch."""
    return {"type": MESSAGES, "messages": [ui_message(m) for m in found], **({"connect": True} if connect else {})}


def ui_message(message: StoredMessage) -> JsonObject:
    """A stored message as an AI SDK UI message."""
    return {
        "id": message.id,
        "role": message.role,
        "parts": list(message.parts),
        **({"metadata": message.metadata} if message.metadata else {}),
    }


def updated(message: StoredMessage, call_id: str, changes: JsonObject) -> JsonObject:
    """A message of which one call was answered."""
    parts = tuple({**part, **changes} if part.get("toolCallId") == call_id else part for part in message.parts)
    return {"type": "cf_agent_message_updated", "message": ui_message(message.model_copy(update={"parts": parts}))}


def chunk(request_id: str, body: JsonObject, **flags: Any) -> JsonObject:
    """One chunk of an answer."""
    text = json.dumps(body, ensure_ascii=False, separators=(",", ":"))
    return {"type": RESPONSE, "id": request_id, "body": text, "done": False, **flags}


def done(request_id: str, **flags: Any) -> JsonObject:
    """The end of an answer."""
    return {"type": RESPONSE, "id": request_id, "body": "", "done": True, **flags}


def failed(request_id: str, text: str) -> JsonObject:
    """There is no answer."""
    return {"type": RESPONSE, "id": request_id, "body": text, "done": True, "error": True}


def resuming(turn_id: str, probe_id: str | None = None) -> JsonObject:
    """An answer is being written: acknowledge to get it."""
    return {"type": "cf_agent_stream_resuming", "id": turn_id, **({"probeId": probe_id} if probe_id else {})}


def resume_none(probe_id: str | None = None) -> JsonObject:
    """Nothing is being written."""
    return {"type": "cf_agent_stream_resume_none", "reason": "idle", **({"probeId": probe_id} if probe_id else {})}


def rpc_error(call_id: Any, text: str) -> JsonObject:
    """A call that was refused."""
    return {"type": RPC, "id": call_id, "success": False, "error": text}
