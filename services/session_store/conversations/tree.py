"""Where a message goes in the tree. Pure.

A parent's first child continues its line of descent, every further child and every root begins one.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Place:
    """A message's line of descent, its depth on the path (the root has 1), and the path's sums up to it."""

    branch: int
    depth: int
    path_tokens: int
    path_bytes: int
    continued: bool = False


@dataclass(frozen=True)
class Fresh:
    """A message to place; no parent makes it a root."""

    id: str
    parent_id: str | None
    tokens: int
    size: int


@dataclass(frozen=True)
class Fork:
    """A new line of descent and where it leaves its parent's; a root's leaves none."""

    branch: int
    parent_branch: int | None
    parent_depth: int | None


@dataclass(frozen=True)
class Placed:
    """The places of new messages by id, the lines that begin with them, and how many lines there are then."""

    places: dict[str, Place]
    forks: tuple[Fork, ...]
    branches: int


def place(messages: Iterable[Fresh], known: Mapping[str, Place], branches: int) -> Placed:
    """Place messages in order. Every parent is in `known` or earlier in `messages`. Raises KeyError otherwise."""
    places, forks = dict(known), list[Fork]()
    fresh: list[str] = []
    for message in messages:
        parent = places[message.parent_id] if message.parent_id is not None else None
        if parent is None or parent.continued:
            branches += 1
            forks.append(Fork(branches, parent.branch if parent else None, parent.depth if parent else None))
            branch = branches
        else:
            branch = parent.branch
            places[str(message.parent_id)] = replace(parent, continued=True)
        above = parent or Place(0, 0, 0, 0)
        places[message.id] = Place(branch, above.depth + 1, above.path_tokens + message.tokens, above.path_bytes + message.size)
        fresh.append(message.id)
    return Placed({i: places[i] for i in fresh}, tuple(forks), branches)
