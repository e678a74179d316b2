"""Git's pre-receive hook: decides about a push before any reference moves. A script of its own that needs only the standard library.

Reads `<old> <new> <reference>` lines; what it writes to standard error, git shows to the one who pushes. A non-zero exit refuses the
whole push. AGENT_CODER_MAX_FILE_BYTES is the limit for one file.
"""

import os
import subprocess
import sys
from collections.abc import Iterable

_ALLOWED = ("refs/heads/", "refs/tags/", "refs/notes/")


def refused_reference(references: Iterable[str]) -> str | None:
    """Why one of the references may not be pushed to."""
    for reference in references:
        if not reference.startswith(_ALLOWED):
            return f"{reference} takes no push. Push branches, tags or notes."
    return None


def oversized(tips: list[str], limit_bytes: int) -> str | None:
    """Which new file of the commits is over the limit."""
    listing = ["git", "rev-list", "--objects", "--stdin", "--not", "--all"]
    sizing = ["git", "cat-file", "--batch-check=%(objecttype) %(objectsize) %(rest)"]
    found = subprocess.run(listing, input="\n".join([*tips, ""]).encode(), stdout=subprocess.PIPE, check=True)
    sizes = subprocess.run(sizing, input=found.stdout, stdout=subprocess.PIPE, check=True)
    for line in sizes.stdout.splitlines():
        kind, size, path = line.split(b" ", 2)
        if kind == b"blob" and int(size) > limit_bytes:
            name = path.decode("utf-8", "replace")
            return f"{name!r} has {int(size):,} bytes, over the limit of {limit_bytes:,} bytes a file. Leave it out, or raise the limit."
    return None


def main() -> int:
    """0 lets the push through."""
    updates = [line.split(" ", 2) for line in os.fsdecode(sys.stdin.buffer.read()).splitlines()]
    tips = [new for _, new, _ in updates if set(new) != {"0"}]
    reason = refused_reference(reference for _, _, reference in updates)
    reason = reason or (oversized(tips, int(os.environ["AGENT_CODER_MAX_FILE_BYTES"])) if tips else None)
    if reason:
        sys.stderr.write(f"refused: {reason}\n")
    return 1 if reason else 0


if __name__ == "__main__":
    sys.exit(main())
