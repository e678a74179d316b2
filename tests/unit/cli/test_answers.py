"""An answer that is told again after a broken connection is shown once."""

from typing import Any

import pytest

from services.cli.answers import Telling

Chunk = dict[str, Any]
CALL = {"type": "tool-input-available", "toolCallId": "t-1.1", "toolName": "x", "input": {}}
WHOLE: list[Chunk] = [
    {"type": "start", "messageId": "answer-T"},
    *({"type": "text-start", "id": "text-1"}, {"type": "text-delta", "delta": "Let me "}, {"type": "text-delta", "delta": "see."}),
    *({"type": "text-end", "id": "text-1"}, CALL, CALL | {"type": "tool-output-available"}),
    *({"type": "text-start", "id": "text-2"}, {"type": "text-delta", "delta": "你好"}, {"type": "text-end", "id": "text-2"}),
    {"type": "finish"},
]


def merged(chunks: list[Chunk]) -> list[Chunk]:
    """As another delivery would tell it: pieces of one text as one."""
    found: list[Chunk] = []
    for chunk in chunks:
        if found and chunk["type"] == found[-1]["type"] == "text-delta":
            found[-1] = found[-1] | {"delta": found[-1]["delta"] + chunk["delta"]}
        else:
            found.append(chunk)
    return found


@pytest.mark.parametrize("broken_after", range(len(WHOLE)))
def test_what_was_shown_before_the_connection_broke_is_not_shown_again(broken_after: int) -> None:
    telling = Telling()
    shown = [made for chunk in WHOLE[:broken_after] if (made := telling.take(chunk))]
    assert (telling.turn_id, telling.ended) == ("T" if broken_after else None, False)
    telling.again()
    shown += [made for chunk in merged(WHOLE) if (made := telling.take(chunk))]
    assert telling.ended
    assert merged(shown) == merged(WHOLE)
