"""From text to seconds."""

import re

SECONDS = {"d": 86_400, "h": 3_600, "m": 60, "s": 1}


def parse(text: str) -> int:
    """Return the seconds that `text` means: 5400 for `1h 30m`."""
    parts = re.findall(r"(\d+)\s*([dhms])", text.lower())
    return sum(int(number) * SECONDS[unit] for number, unit in parts)
