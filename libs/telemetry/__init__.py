"""Tracing: one trace a run, W3C context in message headers, spans named after the messaging and GenAI conventions.

Spans are exported off the path: to the session store through the bus, and to a collector when an OTLP endpoint is set.
"""

from libs.telemetry.context import Telemetry, extract, inject, trace_id

__all__ = ["Telemetry", "extract", "inject", "trace_id"]
