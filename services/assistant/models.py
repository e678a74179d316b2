"""The models of each plan, asked for once in a few seconds: every turn needs them, and they change with a restart alone."""

import time

from libs.contracts.envelope import Ask
from libs.contracts.inference import DescribeModels, Models

_SECONDS = 5.0


class KnownModels:
    """What the inference service said last. That there is no model is not kept."""

    def __init__(self) -> None:
        self._known: dict[str | None, tuple[Models, float]] = {}

    async def of(self, ask: Ask, plan: str | None) -> Models:
        """The models of a plan. Raises Refusal or NoAnswer of the inference service."""
        known = self._known.get(plan)
        if known is not None and time.monotonic() - known[1] < _SECONDS:
            return known[0]
        models: Models = await ask(DescribeModels(plan=plan))
        if models.models:
            self._known[plan] = (models, time.monotonic())
        return models
