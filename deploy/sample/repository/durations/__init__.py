"""Durations as people write them."""

from durations.parsing import parse

__all__ = ["parse"]
