"""Context blocks as the system prompt shows them. Pure."""

from collections.abc import Mapping, Sequence

from libs.contracts.conversation import ContextBlock
from services.session_store.conversations.content import estimate
from services.session_store.errors import OverLimitError

_MARK = "══"
_LISTED = 100
ENTRY_KINDS = ("searchable", "loadable")


def usage(block: ContextBlock) -> str:
    """How full a block with a limit is: `45% — 495/1100 tokens`."""
    if block.max_tokens is None:
        return f"{block.tokens} tokens"
    return f"{round(100 * block.tokens / block.max_tokens)}% — {block.tokens}/{block.max_tokens} tokens"


def counted(block: ContextBlock) -> ContextBlock:
    """The block with the tokens of its content; empty content has none.

    Raises:
        OverLimitError: that is over its limit.
    """
    tokens = estimate(block.content) if block.content else 0
    if block.max_tokens is not None and tokens > block.max_tokens:
        over = tokens - block.max_tokens
        raise OverLimitError(f"block {block.label} would have {tokens} tokens, its limit is {block.max_tokens}: shorten it by {over} first")
    return block.model_copy(update={"tokens": tokens})


def render(blocks: Sequence[ContextBlock], keys: Mapping[str, Sequence[str]]) -> str:
    """The blocks in order, each under its header; of a searchable one how many entries it has, of a loadable one their keys."""
    return "\n\n".join(_block(block, keys.get(block.label, ())) for block in blocks)


def _block(block: ContextBlock, keys: Sequence[str]) -> str:
    words = f" ({block.description})" if block.description else ""
    full = f" [{usage(block)}]" if block.kind != "readonly" and block.max_tokens is not None else ""
    lines = [f"{_MARK} {block.label.upper()}{words}{full} [{block.kind}]"]
    if block.content:
        # A block that the model writes must not look like the header of another one.
        lines.append(block.content.replace(_MARK, "=="))
    if block.kind == "searchable":
        lines.append(f"{len(keys)} entries indexed")
    if block.kind == "loadable":
        lines += [f"- {key.replace(_MARK, '==')}" for key in keys[:_LISTED]]
        lines += [f"- … and {len(keys) - _LISTED} more"] if len(keys) > _LISTED else []
    return "\n".join(lines)
