"""What a compaction covers, and what old tool outputs are cut to. Pure.

The head and the tail of a path stay. A summary covers whole messages, never a tool call without its result.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain

from libs.contracts.conversation import StoredMessage
from services.session_store.conversations.content import is_tool, message_tokens, shorten_results

_MASK_KEEP_MESSAGES, _MASK_STEP, _MASK_KEEP_CHARS = 4, 8, 500
_MASK_NOTE = "[{left_out} characters of this old output are left out; run the tool again to see them]"


@dataclass(frozen=True)
class Overlay:
    """A summary over the messages of a path from one depth to another."""

    from_id: str
    to_id: str
    from_depth: int
    to_depth: int
    summary: str
    tokens: int
    covered_tokens: int

    def covers(self, from_depth: int, to_depth: int) -> bool:
        """Whether it lies over all of that range."""
        return self.from_depth <= from_depth and to_depth <= self.to_depth


@dataclass(frozen=True)
class Item:
    """A message of a path with its depth, its tokens, and the tokens of the path up to and with it."""

    message: StoredMessage
    depth: int
    tokens: int
    path_tokens: int


@dataclass(frozen=True)
class Limits:
    """How many messages are protected at the head, how many tokens and messages at the tail, how many tokens one pass takes."""

    protect_head: int
    tail_tokens: int
    min_tail_messages: int
    max_tokens: int


def outermost(overlays: Iterable[Overlay]) -> list[Overlay]:
    """The overlays that show, in order: one that lies inside another, or begins inside it, is hidden."""
    shown: list[Overlay] = []
    for overlay in sorted(overlays, key=lambda o: (o.from_depth, -o.to_depth)):
        if not shown or overlay.from_depth > shown[-1].to_depth:
            shown.append(overlay)
    return shown


def call_ids(message: StoredMessage) -> set[str]:
    """The tool calls that a message makes or answers."""
    found = (part.get("toolCallId") or part.get("tool_call_id") for part in message.parts if is_tool(part))
    return {str(i) for i in found if i}


def cuts(messages: Sequence[StoredMessage]) -> list[bool]:
    """For every i up to len(messages): whether a range may begin or end before message i. It may not between a call and its result."""
    spans: dict[str, tuple[int, int]] = {}
    for index, message in enumerate(messages):
        for call in call_ids(message):
            spans[call] = (spans.get(call, (index, index))[0], index)
    open_calls = [0] * (len(messages) + 2)
    for first, last in spans.values():
        open_calls[first + 1] += 1
        open_calls[last + 1] -= 1
    answers = (message.role == "tool" for message in messages)
    return [n == 0 and not answer for n, answer in zip(accumulate(open_calls[:-1]), chain(answers, (False,)), strict=True)]


def choose(items: Sequence[Item], previous: Overlay | None, leaf_tokens: int, leaf_depth: int, limits: Limits) -> tuple[int, int] | None:
    """The range of `items` to summarise, as indexes (first, behind the last); None when there is none.

    `items` are consecutive messages of a path and begin at the root, or behind `previous`, the overlay that the new one extends.
    """
    legal = cuts([i.message for i in items])
    start = 0 if previous else next((i for i in range(len(items)) if items[i].depth > limits.protect_head and legal[i]), len(items))
    tail = next((i for i, item in enumerate(items) if _in_tail(item, leaf_tokens, leaf_depth, limits)), len(items))
    ends = [i for i in range(start + 1, tail + 1) if legal[i]]
    if not ends or (previous and not legal[0]):
        return None
    spent = items[start].path_tokens - items[start].tokens
    fitting = [i for i in ends if items[i - 1].path_tokens - spent <= limits.max_tokens]
    return start, (fitting[-1] if fitting else ends[0])


def _in_tail(item: Item, leaf_tokens: int, leaf_depth: int, limits: Limits) -> bool:
    behind = leaf_tokens - (item.path_tokens - item.tokens)
    return behind <= limits.tail_tokens or item.depth > leaf_depth - limits.min_tail_messages


def mask_until(leaf_depth: int) -> int:
    """The depth up to which tool outputs are cut. It moves in steps of eight: the prompt's beginning, and its cache, stay."""
    return max(0, leaf_depth - _MASK_KEEP_MESSAGES) // _MASK_STEP * _MASK_STEP


def masked(message: StoredMessage) -> StoredMessage:
    """A copy with its tool outputs cut to 500 characters and a note; the same message when they are short."""
    parts = tuple(shorten_results(p, _MASK_KEEP_CHARS, _MASK_NOTE) for p in message.parts)
    if all(a is b for a, b in zip(parts, message.parts, strict=True)):
        return message
    return message.model_copy(update={"parts": parts, "tokens": message_tokens(parts)})
