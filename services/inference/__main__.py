"""The composition root of the inference service."""

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from opentelemetry.trace import Span

from libs.bus.errors import Backoff
from libs.bus.kv import Kv
from libs.bus.service import Service
from libs.contracts.inference import Complete, DebugCompletion, DescribeModels, ReadAccount, ReadUsage
from libs.settings import BusSettings
from services.inference import handlers
from services.inference.books import Books
from services.inference.breaker import Breakers
from services.inference.budget import Budget
from services.inference.cache import Cache
from services.inference.domain import ModelSpec, Provider
from services.inference.litellm_provider import LiteLlmProvider, warm_up
from services.inference.replies import Replies
from services.inference.routing import Attributes, Route, Router, Tries
from services.inference.script import load_script
from services.inference.scripted import ScriptedProvider
from services.inference.settings import InferenceSettings, configured, read_settings
from services.inference.usage import UsageBook

log = logging.getLogger(__name__)


class BusRecords:
    """A bucket of the running service: the bus is there only while it runs."""

    def __init__(self, service: Service, bucket: str) -> None:
        self._service = service
        self._bucket = bucket

    async def get(self, key: str) -> tuple[bytes, int] | None:
        """The value and its revision."""
        return await Kv(self._service.bus.connection, self._bucket).get(key)

    async def put(self, key: str, value: bytes, expected_revision: int | None = None) -> int:
        """Store behind the fence."""
        return await Kv(self._service.bus.connection, self._bucket).put(key, value, expected_revision)

    async def scan(self, pattern: str) -> list[tuple[str, bytes]]:
        """All keys under a pattern."""
        return await Kv(self._service.bus.connection, self._bucket).scan(pattern)


def provider_of(spec: ModelSpec) -> Provider:
    """Where a configured model is spoken to."""
    if spec.script:
        return ScriptedProvider(load_script(spec.script))
    if not spec.direct:
        return LiteLlmProvider(spec)
    from services.inference.openai_provider import OpenAiProvider

    return OpenAiProvider(spec)


def _prepared(service: Service, routes: tuple[Route, ...]) -> tuple[Route, ...]:
    """Routes whose connections end with the service; litellm, which takes seconds to import, is there before the first call."""
    for route in routes:
        service.on_close(route.provider.close)
    if any(isinstance(route.provider, LiteLlmProvider) and not route.spec.missing_key for route in routes):
        service.background(warm_up)
    return routes


@contextmanager
def _span(service: Service, name: str, attributes: Attributes) -> Iterator[Span]:
    with service.bus.telemetry.span(name, "client") as span:
        span.set_attributes(attributes)
        yield span


def build(settings: InferenceSettings | None = None) -> Service:
    """The service, wired.

    Raises:
        SettingsError: with every fault of the model settings.
    """
    settings = settings or read_settings()
    models = configured(settings)
    service = Service("inference")
    books = Books(Budget(BusRecords(service, "BUDGET")), UsageBook(BusRecords(service, "USAGE")), models.governance)
    desk = handlers.Desk(
        chain=_prepared(service, tuple(Route(spec, provider_of(spec)) for spec in models.chain)),
        selectable=_prepared(service, tuple(Route(spec, provider_of(spec)) for spec in models.selectable)),
        advice=models.advice,
        router=Router(
            books,
            Tries(settings.tries, settings.call_timeout_seconds, backoff=Backoff(settings.backoff_seconds, 20.0)),
            Breakers(settings.breaker_failures, settings.breaker_cooldown_seconds),
            Cache(BusRecords(service, "CACHE")),
            partial(_span, service),
        ),
        replies=Replies(BusRecords(service, "REPLIES")),
        books=books,
        plans=models.governance.plans,
    )
    service.on_close(books.drained)
    if models.advice:
        log.warning("%s", models.advice)
    service.answer(Complete, concurrency=1024)(partial(handlers.complete, desk))
    service.answer(DescribeModels)(partial(handlers.describe, desk))
    service.answer(ReadAccount)(partial(handlers.read_account, desk))
    service.answer(ReadUsage)(partial(handlers.read_usage, desk))
    service.answer(DebugCompletion, concurrency=8)(partial(handlers.debug, desk))
    return service


def main() -> None:
    """Run until stopped."""
    asyncio.run(build().run(BusSettings()))


if __name__ == "__main__":
    main()
