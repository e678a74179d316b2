"""Server-sent events as a client reads them."""

from services.cli.sse import ServerEvent, events
from services.cli.watching import follow


def test_an_event_ends_with_a_blank_line():
    lines = ["id: 7", "event: run.planned", 'data: {"a": 1}', "", 'data: {"cut": "off"}']
    assert list(events(lines)) == [ServerEvent("run.planned", {"a": 1}, "7")]


def test_data_of_several_lines_is_one_object():
    assert list(events(["data: {", 'data: "titel": "修复"}', ""])) == [ServerEvent("message", {"titel": "修复"})]


def test_comments_unknown_fields_and_broken_data_are_passed_over():
    assert list(events([": heartbeat", "", "retry: 2000", "", "data: nonsense", "", "data: [1]", ""])) == []


def test_progress_carries_no_id():
    found = list(events(["id: 3", "event: run.opened", "data: {}", "", "event: progress", "data: {}", ""]))
    assert [(e.event, e.id) for e in found] == [("run.opened", "3"), ("progress", None)]


def test_an_event_that_comes_twice_is_shown_once():
    seen: list[str] = []
    live: list[dict] = []
    stream = [
        ServerEvent("run.opened", {"data": {}}, "1"),
        ServerEvent("progress", {"text": "x"}),
        ServerEvent("run.opened", {"data": {}}, "1"),
        ServerEvent("run.planned", {"data": {}}, "2"),
        ServerEvent("end", {"status": "finished"}),
    ]
    follow(stream, lambda kind, data: seen.append(kind), live.append)
    assert seen == ["run.opened", "run.planned"]
    assert live == [{"text": "x"}]
