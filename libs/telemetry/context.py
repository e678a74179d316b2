"""One tracer per service, and the W3C trace context in and out of message headers (W3C Trace Context, section 3.2)."""

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanLimits, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.trace import Link, NonRecordingSpan, Span, SpanContext, SpanKind, Status, StatusCode, TraceFlags

HEADER = "traceparent"
_EXPORT_MILLISECONDS = 2000  # storing spans competes with answers for the database: seldom and many is cheaper
_WORDS = 300  # characters of an error
_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
_KINDS = {
    "internal": SpanKind.INTERNAL,
    "producer": SpanKind.PRODUCER,
    "consumer": SpanKind.CONSUMER,
    "client": SpanKind.CLIENT,
    "server": SpanKind.SERVER,
}


def inject(context: Context | None = None) -> dict[str, str]:
    """The current trace context as headers; empty outside of a span."""
    span = trace.get_current_span(context).get_span_context()
    if not span.is_valid:
        return {}
    return {HEADER: f"00-{span.trace_id:032x}-{span.span_id:016x}-{span.trace_flags:02x}"}


def extract(headers: Mapping[str, str] | None) -> SpanContext | None:
    """The span that a message was sent in; None when its headers carry none or a broken one."""
    match = _TRACEPARENT.fullmatch((headers or {}).get(HEADER, ""))
    if match is None:
        return None
    trace_digits, span_digits, flags = match.groups()
    found = SpanContext(int(trace_digits, 16), int(span_digits, 16), is_remote=True, trace_flags=TraceFlags(int(flags, 16)))
    return found if found.is_valid else None


def trace_id(headers: Mapping[str, str] | None) -> str | None:
    """The trace id of a message, 32 hex digits."""
    span = extract(headers)
    return f"{span.trace_id:032x}" if span else None


class Telemetry:
    """The tracer of one service."""

    def __init__(self, service: str, exporter: SpanExporter | None = None) -> None:
        resource = Resource({"service.name": service, "service.namespace": "agent-coder"})
        self._provider = TracerProvider(resource=resource, span_limits=SpanLimits(max_span_attributes=64), shutdown_on_exit=False)
        self._tracer = self._provider.get_tracer("agent-coder")
        if exporter is not None:
            self.add(exporter)
        if os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT") or os.environ.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"):
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

            self.add(OTLPSpanExporter())

    def add(self, exporter: SpanExporter) -> None:
        """Export finished spans in batches from a thread of its own."""
        self._provider.add_span_processor(BatchSpanProcessor(exporter, max_queue_size=20_000, schedule_delay_millis=_EXPORT_MILLISECONDS))

    @contextmanager
    def span(
        self, name: str, kind: str = "internal", *, parent: SpanContext | None = None, link: SpanContext | None = None, **attributes: Any
    ) -> Iterator[Span]:
        """A span around a block; an exception is noted and passes on. Without `parent` the current span is the parent.

        An exception marks the span as failed unless its class says `is_failure = False`.
        """
        context = trace.set_span_in_context(NonRecordingSpan(parent)) if parent is not None else None
        links = [Link(link)] if link is not None else None
        with self._tracer.start_as_current_span(
            name, context, _KINDS[kind], {k.replace("__", "."): v for k, v in attributes.items()}, links, set_status_on_exception=False
        ) as span:
            try:
                yield span
            except BaseException as error:
                span.set_attributes({"error.type": type(error).__name__, "error.message": str(error)[:_WORDS]})
                if getattr(error, "is_failure", True):
                    span.set_status(Status(StatusCode.ERROR, type(error).__name__))
                raise

    def shutdown(self) -> None:
        """Export what is left."""
        self._provider.shutdown()
