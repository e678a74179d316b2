"""litellm's list of models (prices, context sizes), read as the file that it is: litellm itself is not imported for it."""

import importlib.util
import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from services.inference.domain import MILLION, UNKNOWN_PRICE, Price

_LIST = "model_prices_and_context_window_backup.json"


@dataclass(frozen=True)
class Known:
    """What the list says of a model; nothing for one that it does not know."""

    price: Price = UNKNOWN_PRICE
    context_tokens: int | None = None
    most_output_tokens: int | None = None


class Catalogue:
    """Looks models up; the file is read at the first look and forgotten with this object."""

    @cached_property
    def _rows(self) -> dict[str, dict[str, Any]]:
        spec = importlib.util.find_spec("litellm")
        folders = spec.submodule_search_locations if spec else None
        if not folders:
            return {}
        return dict(json.loads(Path(next(iter(folders)), _LIST).read_text(encoding="utf-8")))

    def find(self, wire: str) -> Known:
        """The row of a model by litellm's name for it, with or without its provider's prefix. Local models cost nothing."""
        provider, _, rest = wire.partition("/")
        if provider == "ollama_chat":
            row = self._rows.get(f"ollama/{rest}", {})
            return Known(Price(source="listed"), _count(row.get("max_input_tokens")))
        row = self._rows.get(wire) or self._rows.get(rest) or {}
        if row.get("mode") not in ("chat", "responses", "completion"):
            return Known()
        context = _count(row.get("max_input_tokens") or row.get("max_tokens"))
        return Known(_price(row), context, _count(row.get("max_output_tokens")))


def _count(value: object) -> int | None:
    return int(value) if isinstance(value, int | float) and value >= 1 else None


def _price(row: dict[str, Any]) -> Price:
    given, made = row.get("input_cost_per_token"), row.get("output_cost_per_token")
    if given is None or made is None:
        return UNKNOWN_PRICE
    cached = row.get("cache_read_input_token_cost")
    cached_usd = None if cached is None else cached * MILLION
    return Price(input_usd=given * MILLION, output_usd=made * MILLION, cached_usd=cached_usd, source="listed")
