"""Events and runs in words."""

from datetime import UTC, datetime
from typing import Any, get_args

from rich.console import Console

from libs.contracts import run as events
from libs.contracts import team
from libs.contracts.registry import EVENTS
from services.cli.render import age, diff_lines, ending, lines, run_words, runs_table
from services.cli.words import describe, plain, short

RUN: dict[str, Any] = {
    "instanceId": "01ABC",
    "status": "editing",
    "attempt": 1,
    "issue": {"id": "42", "title": "修复登录"},
    "repo": "/srv/app",
    "requested_by": "local",
    "created_at": "2026-01-01T00:00:00Z",
    "usage": {"input_tokens": 1200, "output_tokens": 30, "cost_usd": 0.5},
}
COMMIT = {
    "branch": "fix/issue-42",
    "sha": "a" * 40,
    "clone_url": "http://127.0.0.1:8787/git/app.git",
    "repository": "app",
    "message": "fix",
}


def text(found) -> str:
    return "\n".join(line for _, line in found)


def test_every_event_of_a_run_has_words():
    for event in EVENTS:
        if issubclass(event, events.RunEvent) and event is not events.ToolStarted:
            assert "dim" not in [style for style, line in describe(event.type, _sample(event)) if line == event.type], event.type


def _sample(event: type[events.RunEvent]) -> dict[str, Any]:
    now = datetime.now(UTC)
    given: dict[str, Any] = {
        "run_id": "r",
        "issue": {"id": "1", "title": "t"},
        "repo": "x",
        "opened_at": now,
        "expires_at": now,
        "step": "edit",
        "of": 1,
        "delivery": 1,
        "worker": "w",
        "error": "e",
        "attempt": 1,
        "plan": {"steps": [{"title": "do it", "why": "because", "files": ["a.py"]}]},
        "repository": "app",
        "base_branch": "main",
        "base_commit": "a" * 40,
        "commit": "b" * 40,
        "tree": "c" * 40,
        "changed_files": [{"path": "a.py", "status": "modified", "added_lines": 1, "deleted_lines": 2}],
        "verdict": {"ok": True, "outcome": "passed"},
        "branch": "fix/issue-1",
        "sha": "d" * 40,
        "message": "fix(1): t",
        "url": "https://example.org/pull/1",
        "number": 1,
        "question": "Really?",
        "by": "local",
        "source": "review",
        "feedback": "rename it",
        "text": "why?",
        "key": "k1",
        "kind": "pr_ready",
        "recipient": "dev@example.org",
        "sender": "dev@example.org",
        "message_id": "<1@example.org>",
        "outcome": "sent",
        "action": "comment",
        "reason": "over",
        "attempts": 1,
        "call": 1,
        "model": "m",
        "call_id": "c1",
        "tool": "read",
    }
    if event is team.RunMerged:
        given["by"] = ("reviewer",)
    if event is events.RunFailed:
        given["kind"] = "permanent"
    known = {key: value for key, value in given.items() if key in event.model_fields}
    return event.model_validate(known).model_dump(mode="json", exclude_none=True)


def test_an_event_of_a_later_version_is_named():
    assert describe("run.invented", {}) == [("dim", "run.invented")]


def test_terminal_controls_of_untrusted_text_are_dropped():
    assert plain("a\x1b[31mb\x1b]0;title\x07c\u202ed\r\n") == "ab]0;titlecd\n"
    assert "\x1b" not in text(describe("run.failed", {"reason": "\x1b[2Jgone"}))
    assert "\x1b" not in text(diff_lines("+\x1b[2Jx"))


def test_a_result_shows_its_first_line_without_the_boundary_around_untrusted_text():
    result = '<untrusted_data source="a.py">\n    1\tprint()\n</untrusted_data>'
    assert describe("run.tool_returned", {"tool": "read", "result": result}) == [("dim", "    1 print()")]
    assert describe("run.tool_returned", {"tool": "write_ahead", "result": "[]"}) == []
    assert describe("run.tool_returned", {"tool": "setup", "result": ""}) == [("dim", "  the workspace is set up")]


def test_square_brackets_are_no_markup():
    console = Console(record=True, markup=False, width=80)
    lines(console, [("", "[bold]x[/bold] [/nothing]")])
    assert "[bold]x[/bold] [/nothing]" in console.export_text()


def test_a_long_text_is_cut_with_a_mark():
    assert short("x" * 200, 10) == "x" * 9 + "…"


def test_an_open_question_names_the_two_answers():
    asked = RUN | {"status": "waiting", "pending": {"step": "edit", "question": "Approve the plan?"}}
    assert "agent-coder approve 01ABC" in text(ending(asked))
    assert "agent-coder deny 01ABC" in text(ending(asked))


def test_a_question_about_the_plan_does_not_repeat_the_plan():
    plan = {"attempt": 1, "base_branch": "main", "base_commit": "a" * 40}
    plan["plan"] = {"summary": "两位小数", "steps": [{"title": "toFixed(2)"}]}
    asked = {"step": "edit", "question": "Shall this plan be carried out?\n两位小数\n1. toFixed(2)\nIt is large."}
    run = RUN | {"status": "waiting", "pending": asked, "why": asked["question"]}
    said = text(run_words(run, describe("run.planned", plan)))
    assert said.count("toFixed(2)") == 1
    assert said.count("Shall this plan") == 1
    assert "  It is large." in said


def test_a_run_that_opens_names_itself():
    opened = describe("run.opened", {"run_id": "01ABC", "issue": {"id": "42", "title": "修复"}, "repo": "/srv/我的 仓库"})
    assert text(opened) == "issue 42: 修复\nrun 01ABC in /srv/我的 仓库"


def test_a_branch_that_is_fetched_anyway_needs_no_hint():
    assert "agent-coder fetch" not in text(ending(RUN | {"status": "finished", "commit": COMMIT}, fetched=True))


def test_a_commit_says_how_to_get_it():
    said = text(run_words(RUN | {"status": "finished", "commit": COMMIT}))
    assert "fix/issue-42" in said
    assert "agent-coder fetch 01ABC" in said
    assert "修复登录" in said
    assert "$0.5000" in said


def test_a_failed_run_tells_why_and_how_to_go_on():
    said = text(run_words(RUN | {"status": "failed", "why": "no model answers: set MODEL"}))
    assert "set MODEL" in said
    assert "agent-coder retry 01ABC" in said


def test_statuses_have_a_style_or_none_and_never_break_the_table():
    rows = [
        {"run_id": "r", "issue_id": "1", "title": "[x]", "status": s, "attempt": 1, "created_at": "2026-01-01T00:00:00Z"}
        for s in get_args(__import__("libs.contracts.fold", fromlist=["RunStatus"]).RunStatus)
    ]
    assert runs_table(rows, 200).row_count == len(rows)


def test_on_a_narrow_terminal_each_run_is_one_line_with_enough_of_its_id():
    long = {"run_id": "YMVKOXHFVBQ7CFUMWFTZTDDMXY", "issue_id": "1", "title": "金额应当总是显示两位小数" * 3, "status": "finished"}
    console = Console(record=True, width=80)
    console.print(runs_table([long | {"attempt": 1, "created_at": "2026-01-01T00:00:00Z", "usage": {"cost_usd": 12.5}}], 80))
    head, line = console.export_text().splitlines()
    assert head.split() == ["run", "status", "title", "cost", "age"]
    assert line.startswith("YMVKOXHFVB  finished  金额")
    assert "$12.500" in line


def test_age_is_in_one_unit():
    now = datetime(2026, 1, 3, tzinfo=UTC)
    assert [age(t, now) for t in ("2026-01-01T00:00:00Z", "2026-01-02T23:00:00Z", "2026-01-02T23:59:50Z", "2026-01-04T00:00:00Z")] == [
        "2 d",
        "1 h",
        "10 s",
        "0 s",
    ]


def test_who_asked_is_named_without_the_way_that_is_named_beside():
    issue = {"id": "7", "title": "t"}
    told = describe("run.opened", {"issue": issue, "repo": "r", "run_id": "R", "requested_by": "github:dev", "origin": "github"})
    assert told[1][1] == "run R in r, asked on GitHub by dev"
