"""One trace tells a run's whole story, from the request to the commit; with an OTLP endpoint the same spans arrive there."""

import asyncio
import gzip
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from libs.testkit.product import FAST, product
from tests.faults.story import repository, request, script

EXPECTED = {
    "POST /api/issues/{id}/solve",
    "process run.opened",
    "invoke_agent planner",
    "chat scripted:adder",
    "send run.planned",
    "invoke_agent editor",
    "execute_tool edit",
    "execute_tool exec",
    "send run.edited",
    "invoke_agent verifier",
    "process run.verified",
    "process run.committed",
}


class Collector:
    """An OTLP/HTTP receiver."""

    def __init__(self) -> None:
        self.spans: list = []
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                    collector.spans.extend(span for scope in resource.scope_spans for span in scope.spans)
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}"


@pytest.fixture
def collector():
    running = Collector()
    yield running
    running.server.shutdown()
    running.server.server_close()


async def test_a_run_is_one_trace_here_and_at_the_collector(tmp_path, collector):
    repo = repository(tmp_path / "repo")
    environment = {**FAST, "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url}
    async with product(tmp_path / "home", f"scripted:{script(tmp_path)}", "--split", environment=environment) as running:
        run_id = await running.solve("7", request(repo))
        await running.wait(run_id)
        async with asyncio.timeout(30):
            while True:
                trace = (await running.client.get(f"/api/runs/{run_id}/trace")).json()
                if {s["name"] for s in trace["spans"]} >= EXPECTED:
                    break
                await asyncio.sleep(0.2)
    known = {s["span_id"] for s in trace["spans"]}
    roots = [s["name"] for s in trace["spans"] if s.get("parent_id") is None]
    assert roots == ["POST /api/issues/{id}/solve"]
    assert [s["name"] for s in trace["spans"] if s.get("parent_id") and s["parent_id"] not in known] == []
    chats = [s["attributes"] for s in trace["spans"] if s["name"].startswith("chat ")]
    assert len(chats) == 6
    assert all(c["gen_ai.usage.input_tokens"] > 0 and c["gen_ai.usage.output_tokens"] > 0 for c in chats)
    assert all(s.get("links") for s in trace["spans"] if s["name"].startswith("process "))
    assert {s["service"] for s in trace["spans"]} >= {"gateway", "planner", "editor", "verifier", "artifact", "sandbox", "inference"}
    there = {s.name for s in collector.spans if s.trace_id.hex() == trace["trace_id"]}
    assert there >= EXPECTED
