"""Spans on their way out of a process: an exporter that hands batches to the bus from the exporting thread."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from libs.contracts.session import Span, SpanBatch

_BATCH = 400


class BusSpanExporter(SpanExporter):
    """Publishes finished spans as `SpanBatch` messages; a batch that cannot be sent is dropped, never waited for."""

    def __init__(self, publish: Callable[[bytes], Coroutine[Any, Any, None]], loop: asyncio.AbstractEventLoop) -> None:
        self._publish = publish
        self._loop = loop

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Called by the batch processor's thread."""
        for start in range(0, len(spans), _BATCH):
            batch = SpanBatch(spans=tuple(_span(s) for s in spans[start : start + _BATCH]))
            if self._loop.is_closed():
                return SpanExportResult.FAILURE
            asyncio.run_coroutine_threadsafe(self._publish(batch.model_dump_json(exclude_defaults=True).encode()), self._loop)
        return SpanExportResult.SUCCESS

    def shutdown(self) -> None:
        """Nothing is held here."""


def _span(span: ReadableSpan) -> Span:
    context, parent = span.get_span_context(), span.parent
    assert context is not None
    return Span(
        trace_id=f"{context.trace_id:032x}",
        span_id=f"{context.span_id:016x}",
        parent_id=f"{parent.span_id:016x}" if parent else None,
        name=span.name,
        kind=span.kind.name.lower(),
        service=str(span.resource.attributes.get("service.name", "")),
        start_ns=span.start_time or 0,
        end_ns=span.end_time or 0,
        status=span.status.status_code.name.lower(),
        attributes=dict(span.attributes or {}),
        links=tuple(f"{link.context.trace_id:032x}-{link.context.span_id:016x}" for link in span.links),
    )
