"""The scripted model: the same prompt gets the same reply, and its references are changes that the edit applier takes."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libs.contracts.inference import ChatMessage, Complete, ToolDefinition
from libs.contracts.run import Plan
from libs.edits.applier import apply_patch, apply_search_replace, apply_whole_files, replace
from services.inference import reference
from services.inference.domain import Call, ProviderFailure
from services.inference.script import ScriptError, load_script
from services.inference.scripted import ScriptedProvider


def question(*texts, purpose="edit", turns=0, tools=()):
    messages = [ChatMessage(role="user", content=text) for text in texts or ("go",)]
    messages += [ChatMessage(role="assistant", content="…")] * turns
    definitions = tuple(
        ToolDefinition(name=n, description="", parameters={"type": "object", "properties": p}) for n, p in dict(tools).items()
    )
    return Complete(request_id="r", account="run", purpose=purpose, messages=tuple(messages), tools=definitions)


@pytest.fixture
def scripted(tmp_path):
    def scripted(script):
        (tmp_path / "script.json").write_text(json.dumps(script))
        return ScriptedProvider(load_script(tmp_path / "script.json"))

    return scripted


async def test_the_first_rule_that_fits_answers(scripted):
    provider = scripted(
        {
            "rules": [
                {"when": {"purpose": "plan", "contains": ["subseconds", "parse"]}, "replies": [{"content": "plan"}]},
                {"when": {"purpose": "edit", "lacks": "feedback"}, "replies": [{"content": "one"}, {"content": "two"}]},
                {"replies": [{"content": "rest"}]},
            ]
        }
    )

    async def text(q):
        return (await provider.complete(Call(q), None)).content

    assert await text(question("parse", "subseconds", purpose="plan")) == "plan"
    assert await text(question("parse", purpose="plan")) == "rest"
    assert [await text(question(turns=t)) for t in (0, 1, 0, 5)] == ["one", "two", "one", "two"]
    assert await text(question("feedback: no")) == "rest"


async def test_errors_end_after_their_number_of_tries(scripted):
    provider = scripted(
        {"rules": [{"replies": [{"error": {"status": 429, "message": "slow", "times": 2, "retry_after_seconds": 1}, "content": "ok"}]}]}
    )
    with pytest.raises(ProviderFailure) as caught:
        await provider.complete(Call(question(), attempt=1), None)
    assert (caught.value.code, caught.value.retryable, caught.value.retry_after_seconds) == ("rate_limited", True, 1)
    assert (await provider.complete(Call(question(), attempt=2), None)).content == "ok"


async def test_cut_off_arguments_come_as_they_are(scripted):
    provider = scripted({"rules": [{"replies": [{"tool_calls": [{"name": "read", "arguments": '{"pa'}]}]}]})
    assert (await provider.complete(Call(question()), None)).tool_calls[0].arguments == '{"pa'


async def test_text_is_streamed_in_pieces_and_a_drop_is_a_failure(scripted):
    provider = scripted({"rules": [{"replies": [{"content": "one two three", "dropped": True}]}]})
    seen = []

    async def on_delta(delta):
        seen.append(delta.text)

    with pytest.raises(ProviderFailure, match="lost in mid-reply"):
        await provider.complete(Call(question()), on_delta)
    assert seen == ["one ", "two ", "three"]


async def test_a_stream_comes_in_pieces_of_the_size_that_the_script_says(scripted):
    reply = {
        "content": "你好 world",
        "reasoning": "hmm",
        "tool_calls": [{"name": "read", "arguments": {"path": "a"}}],
        "chunk_characters": 2,
    }
    provider = scripted({"stream_delay_seconds": 0.001, "chunk_characters": 5, "rules": [{"replies": [reply]}]})
    seen = []

    async def on_delta(delta):
        seen.append(delta)

    await provider.complete(Call(question()), on_delta)
    assert [d.reasoning for d in seen if d.reasoning] == ["hm", "m"]
    assert [d.text for d in seen if d.text] == ["你好", " w", "or", "ld"]
    calls = [d for d in seen if d.tool_index is not None]
    assert json.loads("".join(d.arguments for d in calls)) == {"path": "a"}
    assert [d.tool_name for d in calls] == ["read"] + [None] * (len(calls) - 1)


async def test_a_prompt_without_a_rule_is_an_error_that_says_so(scripted):
    provider = scripted({"rules": [{"when": {"purpose": "plan"}, "replies": [{"content": "x"}]}]})
    with pytest.raises(ProviderFailure, match="no rule for a prompt with the purpose 'edit' at turn 0"):
        await provider.complete(Call(question()), None)


@pytest.mark.parametrize("text", ["", "[]", '{"rules": []}', '{"rules": [{"replies": []}]}', '{"reference": "x.json"}', '{"rulez": 1}'])
def test_a_script_that_is_no_script_is_refused(tmp_path, text):
    (tmp_path / "s.json").write_text(text)
    with pytest.raises(ScriptError, match=r"docs/models\.md"):
        load_script(tmp_path / "s.json")


OLD = {"src/a.py": "".join(f"line {n}\n" for n in range(60)) + "same\nsame\nsame\n", "nämé ☃.py": "x = 1"}
NEW = {
    "src/a.py": OLD["src/a.py"].replace("line 7\n", "line seven\n").replace("line 50\n", "").replace("same\nsame\n", "same\nother\n"),
    "nämé ☃.py": "x = 2",
    "new/b.txt": "你好\n=======\nend\n",
}


@pytest.fixture
def folders(tmp_path):
    for name, text in OLD.items():
        path = tmp_path / "repo" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode())
    (tmp_path / "reference.json").write_text(json.dumps(NEW))
    return tmp_path


def read(name):
    return OLD[name].encode() if name in OLD else None


def texts(changes):
    return {change.path: change.content.decode() for change in changes}


@pytest.mark.parametrize(
    ("form", "apply"),
    [("whole_file", apply_whole_files), ("search_replace", apply_search_replace), ("unified_diff", apply_patch)],
)
async def test_a_reference_told_in_text_is_the_change(scripted, folders, form, apply):
    provider = scripted({"reference": "reference.json", "form": form, "originals": "repo"})
    reply = await provider.complete(Call(question()), None)
    made = texts(apply(reply.content, read))
    assert {name: text.rstrip("\n") for name, text in made.items()} == {name: text.rstrip("\n") for name, text in NEW.items()}


async def test_a_reference_told_in_tool_calls_is_the_change(scripted, folders):
    tools = {"edit": {}, "write": {}, "done": {}}
    provider = scripted({"reference": "reference.json", "form": "tool_calls", "originals": "repo"})
    reply = await provider.complete(Call(question(tools=tools)), None)
    made = {name: text.encode() for name, text in OLD.items()}
    for call in reply.tool_calls:
        if call.name == "write":
            made[call.arguments["path"]] = call.arguments["content"].encode()
        else:
            made[call.arguments["path"]] = replace(made[call.arguments["path"]], call.arguments["old"], call.arguments["new"])
    assert {name: data.decode() for name, data in made.items()} == NEW
    last = await provider.complete(Call(question(tools=tools, turns=1)), None)
    assert [call.name for call in last.tool_calls] == ["done"]


async def test_a_planning_prompt_gets_a_valid_plan_that_names_the_files(scripted, folders):
    provider = scripted({"reference": "reference.json", "form": "whole_file"})
    reply = await provider.complete(Call(question(purpose="plan")), None)
    plan = Plan.model_validate_json(reply.content)
    assert {path for step in plan.steps for path in step.files} == set(NEW)
    called = await provider.complete(Call(question(purpose="plan", tools={"submit": {"steps": {}}})), None)
    assert called.tool_calls[0].name == "submit"
    Plan.model_validate(called.tool_calls[0].arguments)


def test_a_plan_of_many_files_stays_within_five_steps():
    assert len(reference.plan_for({f"f{n}": "" for n in range(400)}).steps) == 5


LINES = st.lists(st.sampled_from(["a\n", "b\n", "same\n", "\n", "end"]), min_size=1, max_size=40).map("".join)


@given(old=LINES, new=LINES)
@settings(max_examples=300, deadline=None)
def test_changed_places_applied_in_order_give_the_new_text(old, new):
    text = old
    for before, after in reference.changed_places(old, new):
        assert text.count(before) == 1
        text = text.replace(before, after)
    assert text == new
