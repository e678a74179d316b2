"""The HTTP client against a server on a real socket: problems, prefixes, pages, and a stream that breaks and resumes."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

import pytest

from services.cli.client import Address, Api
from services.cli.errors import ApiProblem, Unreachable, Usage

RUNS = ["01AAA", "01AAB", "01BCD"]


class Handler(BaseHTTPRequestHandler):
    """Answers like the gateway, as far as the client asks."""

    protocol_version = "HTTP/1.1"
    seen: ClassVar[list[tuple[str, dict[str, str]]]] = []
    streams: ClassVar[list[bytes]] = []

    def log_message(self, *arguments):
        pass

    def do_GET(self):
        self.seen.append((self.path, {k.lower(): v for k, v in self.headers.items()}))
        path, _, query = self.path.partition("?")
        if path.endswith("/events"):
            return self._stream()
        if path == "/api/runs":
            return self._json(200, self._page(query))
        name = path.removeprefix("/api/runs/")
        if name in RUNS:
            return self._json(200, {"instanceId": name})
        problem = {"title": "Not Found", "status": 404, "detail": f"there is no run {name}", "next": "GET /api/runs lists the runs"}
        return self._json(404, problem)

    def do_POST(self):
        self.rfile.read(int(self.headers.get("content-length", 0)))
        self._json(503, {"title": "Service Unavailable", "detail": "no model is configured", "next": "set MODEL"})

    def _page(self, query):
        if "cursor=2" in query:
            return {"runs": [{"run_id": r} for r in RUNS[2:]], "next_cursor": None}
        return {"runs": [{"run_id": r} for r in RUNS[:2]], "next_cursor": "2"}

    def _json(self, status, body):
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _stream(self):
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        piece = self.streams.pop(0)
        self.wfile.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
        if b"event: end" in piece:
            self.wfile.write(b"0\r\n\r\n")
        self.close_connection = True


@pytest.fixture
def server():
    Handler.seen, Handler.streams = [], []
    found = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=found.serve_forever)
    thread.start()
    yield found
    found.shutdown()
    thread.join()
    found.server_close()


@pytest.fixture
def api(server):
    return Api(Address(f"http://127.0.0.1:{server.server_port}", "secret"), retry_seconds=0.01, away_seconds=5)


def frame(sequence: int, kind: str) -> bytes:
    return f'id: {sequence}\nevent: {kind}\ndata: {{"data": {{}}}}\n\n'.encode()


END = b'event: end\ndata: {"status": "finished"}\n\n'


def test_the_token_goes_with_every_request(api):
    api.get("/api/runs")
    assert Handler.seen[0][1]["authorization"] == "Bearer secret"


def test_a_run_is_found_by_a_beginning_that_is_its_own(api):
    assert api.run_id("01AAA") == "01AAA"
    assert api.run_id("01B") == "01BCD"
    assert api.run_id("01bc") == "01BCD"


def test_a_beginning_of_several_or_of_none_is_a_wrong_call(api):
    with pytest.raises(Usage, match="begins 2 run ids: 01AAA, 01AAB"):
        api.run_id("01A")
    with pytest.raises(Usage, match="no run 修复"):
        api.run_id("修复")
    with pytest.raises(Usage, match="id is missing"):
        api.run_id(" ")


def test_pages_are_put_together(api):
    assert [run["run_id"] for run in api.runs(100)["runs"]] == RUNS
    assert api.runs(2)["next_cursor"] == "2"


def test_a_problem_is_told_with_what_to_do(api):
    with pytest.raises(ApiProblem) as caught:
        api.post("/api/issues/1/solve", {})
    assert caught.value.message == "no model is configured"
    assert caught.value.hint == "set MODEL"


def test_a_broken_stream_goes_on_behind_the_last_event(api):
    Handler.streams = [frame(5, "run.opened") + frame(8, "run.planned"), b": nothing\n\n", frame(9, "run.finished") + END]
    kinds = [event.event for event in api.follow("01AAA")]
    assert kinds == ["run.opened", "run.planned", "run.finished", "end"]
    assert [headers.get("last-event-id") for path, headers in Handler.seen] == [None, "8", "8"]


def test_a_stream_may_start_behind_an_event(api):
    Handler.streams = [END]
    list(api.follow("01AAA", "7"))
    assert Handler.seen[0][1]["last-event-id"] == "7"


def test_a_server_that_stays_away_is_unreachable():
    gone = Api(Address("http://127.0.0.1:1", None), retry_seconds=0.01, away_seconds=0.05)
    with pytest.raises(Unreachable, match=r"http://127\.0\.0\.1:1"):
        list(gone.follow("01AAA"))
    with pytest.raises(Unreachable):
        gone.get("/api/runs")
