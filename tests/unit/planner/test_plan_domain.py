import json

import pytest

from libs.bus import Permanent, Refusal
from libs.contracts.inference import Completion
from libs.contracts.run import Policy, RunRejected, Verdict
from libs.contracts.team import RunFollowedUp
from libs.contracts.work import ToolCall
from libs.repository import Command
from services.planner.domain import PLAN_SCHEMA, BadPlan, for_a_person, next_attempt, parse_plan, shell_lines

PLAN = {"summary": "原因", "steps": [{"title": "Fix", "detail": "d", "why": "w", "files": ["src/a.py", "nämé ☃.py"]}]}
TEXT = json.dumps(PLAN, ensure_ascii=False)


def reply(text, **fields):
    return Completion(model="m", content=text, **fields)


@pytest.mark.parametrize(
    "text",
    [
        TEXT,
        f"```json\n{TEXT}\n```",
        f"Here is the plan {{really}}:\n\n{TEXT}\n\nGood luck!",
        f"<think>a {{ b</think>\n```\n{TEXT}\n```\nDone.",
        json.dumps({"plan": PLAN}),
        TEXT.replace("src/a.py", "./src/a.py"),
    ],
)
def test_a_plan_is_found_in_every_common_form(text):
    plan = parse_plan(reply(text))
    assert (plan.summary, plan.steps[0].files) == ("原因", ("src/a.py", "nämé ☃.py"))


def test_a_list_of_steps_and_a_single_file_are_understood():
    plan = parse_plan(reply('[{"title": "Fix", "files": "a.py", "why": null}, "Then test"]'))
    assert [(step.title, step.files) for step in plan.steps] == [("Fix", ("a.py",)), ("Then test", ())]


def test_a_plan_in_a_tool_call_is_understood():
    assert parse_plan(reply("", tool_calls=(ToolCall(id="1", name="plan", arguments=TEXT),))).summary == "原因"


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "no JSON object"),
        ("I would look at a.py first.", "no JSON object"),
        (TEXT[:40], "no JSON object"),
        ('{"steps": []}', "steps: Tuple should have at least 1 item"),
        (json.dumps({"steps": [{"title": str(n)} for n in range(6)]}), "at most 5"),
        ('{"steps": [{"detail": "no title"}]}', "steps.0.title: Field required"),
        ('{"answer": 42}', "steps: Field required"),
        ("[" * 100_000, "no JSON object"),
    ],
)
def test_what_is_no_plan_is_named(text, fault):
    with pytest.raises(BadPlan, match=fault):
        parse_plan(reply(text))


@pytest.mark.parametrize(
    ("path", "fault"),
    [
        ("/etc/passwd", "absolute"),
        ("C:\\x", "absolute"),
        ("~/x", "absolute"),
        ("a/../../x", "leaves"),
        (".git/hooks/x", "git"),
        ("", "no path"),
    ],
)
def test_paths_outside_of_the_repository_are_refused(path, fault):
    with pytest.raises(BadPlan, match=fault):
        parse_plan(reply(json.dumps({"steps": [{"title": "t", "files": [path]}]})))


def test_an_answer_cut_at_its_limit_is_named():
    with pytest.raises(BadPlan, match="cut off"):
        parse_plan(reply(TEXT[:30], finish_reason="length"))


def rejected(attempt):
    verdict = Verdict(ok=False, outcome="failed", reasons=("test_x fails", "test_y fails"))
    return RunRejected(run_id="r", attempt=attempt, verdict=verdict)


def test_attempts_end_with_the_last_reasons():
    assert next_attempt(rejected(1), Policy(max_attempts=2), 0) == 2
    with pytest.raises(Permanent, match=r"after 2 attempts\. The last one: test_x fails; test_y fails") as ended:
        next_attempt(rejected(2), Policy(max_attempts=2), 0)
    assert ended.value.kind == "attempts"


def test_attempts_are_counted_anew_after_a_follow_up():
    follow_up = RunFollowedUp(run_id="r", by="reviewer", source="review", feedback="rename it")
    assert next_attempt(follow_up, Policy(max_attempts=2), 2) == 3
    assert next_attempt(rejected(3), Policy(max_attempts=2), 2) == 4
    with pytest.raises(Permanent, match="after 2 attempts"):
        next_attempt(rejected(4), Policy(max_attempts=2), 2)


def test_attempts_are_counted_anew_after_a_person_retries_a_run_that_used_them_up():
    assert next_attempt(rejected(2), Policy(max_attempts=2), 0, 2) == 3
    assert next_attempt(rejected(3), Policy(max_attempts=2), 0, 2) == 4
    with pytest.raises(Permanent, match="after 2 attempts"):
        next_attempt(rejected(4), Policy(max_attempts=2), 0, 2)


def test_a_follow_up_that_changes_nothing_says_that_the_branch_stays():
    idle = RunRejected(run_id="r", attempt=4, verdict=Verdict(ok=False, outcome="no_change", reasons=("nothing was changed",)))
    with pytest.raises(Permanent, match="the branch stays as it was"):
        next_attempt(idle, Policy(max_attempts=2), 2)
    with pytest.raises(Permanent, match="No change passed"):
        next_attempt(idle, Policy(max_attempts=4), 0)


@pytest.mark.parametrize("code", ["unknown_base", "authentication_required", "no_model"])
def test_a_refusal_becomes_a_reason_with_advice(code):
    error = for_a_person(Refusal(code, "It cannot be used."))
    assert isinstance(error, Permanent)
    assert str(error).startswith("It cannot be used. ")
    assert len(str(error)) > 40


def test_a_refusal_that_may_pass_stays_retryable_and_a_budget_is_a_limit():
    later = Refusal("unreachable", "no route", retryable=True)
    assert for_a_person(later) is later
    assert for_a_person(Refusal("budget_exceeded", "used up")).kind == "limit"


def test_an_optional_command_never_fails():
    assert shell_lines([Command(run="a"), Command(run="b", optional=True)]) == ("a", "(\nb\n) || true")


def test_the_schema_names_what_the_contract_takes():
    assert set(PLAN_SCHEMA["properties"]) == {"summary", "steps"}
    assert set(PLAN_SCHEMA["properties"]["steps"]["items"]["properties"]) == {"title", "detail", "why", "files"}
