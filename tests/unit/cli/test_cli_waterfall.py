"""The waterfall: what hangs under what, and where bars lie."""

from services.cli.render import trace_summary, waterfall
from services.cli.waterfall import Row, bar, joined, rows, seconds, total_seconds

MS = 1_000_000


def span(id: str, parent: str | None, start: int, end: int, **more):
    base = {
        "trace_id": "t",
        "span_id": id,
        "parent_id": parent,
        "name": id,
        "service": "editor",
        "start_ns": start * MS,
        "end_ns": end * MS,
    }
    return base | more


def row(offset: float, duration: float) -> Row:
    return Row(0, "n", "s", offset, duration, False, 0, 0, 0.0, False)


def test_children_stand_under_their_parent_in_order_of_start():
    found = rows([span("c", "a", 30, 40), span("b", "a", 10, 20), span("a", None, 0, 50), span("d", "b", 12, 14)])
    assert [(r.name, r.depth) for r in found] == [("a", 0), ("b", 1), ("d", 2), ("c", 1)]


def test_a_span_whose_parent_is_not_there_stands_at_the_top():
    assert [(r.name, r.depth) for r in rows([span("b", "gone", 5, 6), span("a", None, 0, 1)])] == [("a", 0), ("b", 0)]


def test_a_span_that_names_itself_as_parent_is_shown_once():
    assert [r.name for r in rows([span("a", "a", 0, 1)])] == ["a"]


def test_a_deep_chain_needs_no_recursion():
    chain = [span(str(n), str(n - 1) if n else None, n, 5000) for n in range(3000)]
    assert rows(chain)[-1].depth == 2999


def test_tokens_cost_failures_and_redeliveries_are_read_from_the_attributes():
    attributes = {
        "gen_ai.usage.input_tokens": 10,
        "gen_ai.usage.output_tokens": 3,
        "agent_coder.cost_usd": 0.25,
        "agent_coder.delivery": 2,
    }
    (found,) = rows([span("a", None, 0, 1, status="error", attributes=attributes)])
    assert (found.input_tokens, found.output_tokens, found.cost_usd, found.failed, found.again) == (10, 3, 0.25, True, True)


def test_a_question_and_its_one_answer_become_one_line():
    spans = [
        span("a", None, 0, 50),
        span("b", "a", 1, 20, name="ask q.sandbox.open"),
        span("c", "b", 2, 19, name="answer q.sandbox.open", service="sandbox"),
        span("d", "c", 3, 5, name="ask q.artifact.bundle"),
    ]
    found = rows(joined(spans))
    assert [(r.name, r.depth, r.service) for r in found] == [
        ("a", 0, "editor"),
        ("q.sandbox.open", 1, "sandbox"),
        ("ask q.artifact.bundle", 2, "editor"),
    ]


def steps_of():
    return [
        span("root", None, 0, 2, name="POST /api/issues/{id}/solve", service="gateway"),
        span("p", "root", 3, 20, name="process run.opened", service="planner", attributes={"agent_coder.step": "plan"}),
        span("s", "p", 19, 20, name="send run.planned", service="planner"),
        span("e", "s", 21, 40, name="process run.planned", attributes={"agent_coder.step": "edit"}),
        span("t", "e", 22, 30, name="execute_tool read"),
    ]


def test_the_steps_stand_side_by_side_under_the_request_with_their_names():
    assert [(r.depth, r.name) for r in rows(joined(steps_of()))] == [
        (0, "POST /api/issues/{id}/solve"),
        (1, "plan: process run.opened"),
        (2, "send run.planned"),
        (1, "edit: process run.planned"),
        (2, "execute_tool read"),
    ]


def test_what_hangs_under_a_step_that_has_not_ended_is_held_together():
    at_work = [s for s in steps_of() if s["span_id"] != "e"] + [span("u", "e", 31, 33, name="execute_tool edit")]
    assert [(r.depth, r.name) for r in rows(joined(at_work))][-3:] == [
        (1, "editor: not ended"),
        (2, "execute_tool read"),
        (2, "execute_tool edit"),
    ]


def test_a_request_in_a_trace_of_its_sender_is_the_top_and_nothing_is_lost():
    spans = [s | {"parent_id": "theirs"} if s["span_id"] == "root" else s for s in steps_of()]
    assert [r.name for r in rows(joined(spans))] == [r.name for r in rows(joined(steps_of()))]
    without = [s for s in steps_of() if s["span_id"] not in ("root", "s")]
    assert {r.name for r in rows(joined(without))} >= {"plan: process run.opened", "edit: process run.planned", "execute_tool read"}


def test_a_failure_says_why():
    failed = span("a", None, 0, 1, status="error", attributes={"error.type": "ProviderFailure", "error.message": "429 slow down"})
    assert waterfall([failed], 120)[0].plain.endswith("failed: 429 slow down")
    asked = span("a", None, 0, 1, attributes={"error.type": "NeedsHuman", "error.message": "Shall it?"})
    assert waterfall([asked], 120)[0].plain.endswith("█ Shall it?")


def test_tokens_and_money_stay_whole_on_a_terminal_of_eighty_cells():
    spent = {"gen_ai.usage.input_tokens": 12_345, "gen_ai.usage.output_tokens": 678, "agent_coder.cost_usd": 0.0476}
    spans = [*steps_of(), span("c", "e", 23, 29, name="chat anthropic/claude-sonnet-4-5", service="inference", attributes=spent)]
    drawn = waterfall(joined(spans), 80)
    assert all(line.cell_len <= 80 for line in drawn)
    assert drawn[-1].plain.endswith("12,345→678 tok $0.0476") or drawn[-2].plain.endswith("12,345→678 tok $0.0476")


def test_no_spans_make_no_rows():
    assert rows([]) == []
    assert total_seconds([]) == 0.0


def test_a_bar_is_placed_in_proportion_and_stays_inside():
    assert bar(row(0.5, 0.5), 1.0, 10) == (5, "█" * 5)
    assert bar(row(1.0, 0.0), 1.0, 10) == (9, "█")
    assert bar(row(0.9, 0.5), 1.0, 10) == (9, "█")


def test_every_line_of_the_waterfall_fits_the_terminal():
    spans = [span("a" * 90, None, 0, 1000), span("模型" * 20, "a" * 90, 10, 20, attributes={"gen_ai.usage.input_tokens": 123_456})]
    drawn = waterfall(spans, 100)
    assert len(drawn) == 2
    assert all(line.cell_len <= 130 for line in drawn)
    assert "123,456→0 tok" in drawn[1].plain


def test_durations_are_in_units_of_people():
    assert [seconds(v) for v in (0.0042, 0.042, 4.2, 125)] == ["4.2 ms", "42 ms", "4.2 s", "2 min 5 s"]


def test_the_summary_adds_up():
    one = span("a", None, 0, 2000, attributes={"gen_ai.usage.input_tokens": 5, "agent_coder.cost_usd": 0.5})
    assert trace_summary([one, span("b", "a", 0, 1)]) == "2 spans, 2.0 s, 5 tokens in, 0 out, $0.5000"
