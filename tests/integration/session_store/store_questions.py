"""Asking the store without a bus."""

from typing import Any

from libs.contracts.conversation import Appended, AppendMessages, History, StoredMessage
from services.session_store.__main__ import ANSWERS, Opened
from services.session_store.conversations.history import WrittenHistory


async def ask(opened: Opened, question: Any) -> Any:
    """The answer of the question's handler, as the bus would carry it."""
    part, handler = ANSWERS[type(question)]
    answer = await handler(opened.parts[part], question)
    if isinstance(answer, WrittenHistory):  # its messages are written, not parsed
        return History.model_validate_json(answer.model_dump_json(exclude_none=True))
    return answer


def said(message_id: str, text: str = "hello", role: str = "user", **fields: Any) -> StoredMessage:
    """A message of one text."""
    return StoredMessage.model_validate({"id": message_id, "role": role, "parts": [{"type": "text", "text": text}], **fields})


async def append(opened: Opened, session_id: str, *messages: StoredMessage, **fields: Any) -> Appended:
    """Append messages."""
    answer: Appended = await ask(opened, AppendMessages(session_id=session_id, messages=messages, **fields))
    return answer
