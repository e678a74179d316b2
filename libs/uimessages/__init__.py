"""AI SDK 6 UI messages: the parts of a stored answer, and the chunks of one that is being written."""

from libs.uimessages.live import Live, ShownTranscript
from libs.uimessages.parts import call_id, chat_messages, ended_calls, fitted, in_order, message_parts, text_of, tool_name, within

__all__ = [
    "Live",
    "ShownTranscript",
    "call_id",
    "chat_messages",
    "ended_calls",
    "fitted",
    "in_order",
    "message_parts",
    "text_of",
    "tool_name",
    "within",
]
