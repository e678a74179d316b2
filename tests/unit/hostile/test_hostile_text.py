"""Texts made to cost much: whatever a model, a repository or a test prints is read in time that grows with its length."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libs.agent.tools import Arguments, MalformedCall, Tool, Tools
from libs.contracts.inference import Completion, ToolCall
from libs.edits.applier import EditError, apply_patch
from libs.edits.replacing import replace
from libs.repository import ConfigError, Snapshot, detect
from libs.repository.symbols import symbols_of
from services.inference.domain import RawReply, RawToolCall
from services.inference.normalise import normalise
from services.planner.domain import BadPlan, parse_plan
from services.verifier.reports import parse_report


class _Read(Arguments):
    path: str


async def _nothing(arguments: _Read, call_id: str) -> str:
    return f"{arguments.path} {call_id}"


pytestmark = pytest.mark.timeout(20)
SIZE = 400_000


@pytest.mark.parametrize(
    "part",
    ["<tool_call>{", "<tool_call>", "```json\n{}\n", "```\n{\n```\n", "<function=read>{", '{"name":"read","arguments":{', "\n", "{", "["],
)
def test_a_reply_of_repeated_beginnings_stays_text(part):
    text = part * (SIZE // len(part))
    assert normalise(RawReply(content=text), ["read"], "r").tool_calls == ()


def test_half_characters_of_a_model_never_reach_the_journal():
    raw = RawReply(content="a\ud800b", reasoning="\udfff", tool_calls=(RawToolCall("i\ud800", "read", '{"path": "\ud800"}'),))
    reply = normalise(raw, ["read"], "r")
    assert reply.content == "a?b"
    assert reply.tool_calls[0].model_dump_json()
    whole = normalise(RawReply(tool_calls=(RawToolCall("1", "read", {"path": "中文 \ud800"}),)), ["read"], "r").tool_calls[0]
    assert whole.arguments == json.dumps({"path": "中文 \ud800"})
    tools = Tools([Tool("read", "Read.", _Read, _nothing)])
    with pytest.raises(MalformedCall, match="half of a character"):
        tools.arguments(whole)


@pytest.mark.parametrize("part", ['{"steps":', "{", '{"a":1,', '{"steps":[', "```\n", '{"a":"'])
def test_a_plan_of_repeated_beginnings_is_no_plan(part):
    text = part * (SIZE // len(part))
    with pytest.raises(BadPlan):
        parse_plan(Completion(model="m", content=text))
    with pytest.raises(BadPlan):
        parse_plan(Completion(model="m", tool_calls=(ToolCall(id="1", name="plan", arguments=text),)))


def test_many_matches_on_one_line_are_all_replaced():
    assert replace(b"ab" * SIZE + b"\nab\n", "ab", "abab", replace_all=True) == b"ab" * (2 * SIZE) + b"\nabab\n"


def test_a_long_hunk_on_a_long_file_is_told_not_to_fit():
    data = b"0123456789abcde\n" * 200_000
    diff = "--- a/f\n+++ b/f\n@@ @@\n" + "-0123456789abcde\n" * 20_000 + "-q\n+x\n"
    with pytest.raises(EditError, match="does not fit"):
        apply_patch(diff, lambda _: data)


@pytest.mark.parametrize("part", ["\x1b]", "\x1b[", '{"Action":', "[", "\n", "FAILED "])
def test_output_of_repeated_marks_is_no_report(part):
    assert parse_report("go test -json ./...", part * (SIZE // len(part))).counts is None


def test_nested_settings_are_refused_and_nested_manifests_are_passed_over():
    nested = "a = " + "[" * 50_000
    with pytest.raises(ConfigError, match="not valid TOML"):
        detect(Snapshot([".agent-coder.toml"], {".agent-coder.toml": nested}))
    texts = {"pyproject.toml": nested, "package.json": "[" * 100_000, "test_a.py": "import unittest\n"}
    assert detect(Snapshot(list(texts), texts)).test_commands


def test_settings_that_are_no_text_are_refused():
    with pytest.raises(ConfigError, match="not text in UTF-8"):
        detect(Snapshot([".agent-coder.toml"], {}))


@pytest.mark.parametrize("part", ["\n", "func (\n", "a\n", "public\n", "pub(\n", "async\n", "fun a", "///\n", "import ", "a a "])
@pytest.mark.parametrize("name", ["a.py", "a.kt", "a.java", "a.go", "a.rs", "a.ts", "test_a.py"])
def test_sources_of_repeated_beginnings_are_read(name, part):
    text = part * (SIZE // len(part))
    symbols_of(name, text)
    detect(Snapshot([name, "Cargo.toml"], {name: text}))


KEYS = ["project", "tool", "poetry", "group", "dev", "test", "dependencies", "dev-dependencies", "dependency-groups", "dynamic", "scripts"]
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from([*KEYS, "optional-dependencies", "workspaces"]), inner, max_size=4)
    ),
    max_leaves=12,
)


@settings(max_examples=200, deadline=None)
@given(value=VALUES)
def test_manifests_of_any_shape_are_taken_for_what_they_are(value):
    toml = "\n".join(f"{key} = {_toml(item)}" for key, item in value.items()) if isinstance(value, dict) else ""
    detect(Snapshot(["pyproject.toml", "package.json"], {"pyproject.toml": toml, "package.json": json.dumps(value)}))


def _toml(value) -> str:
    match value:
        case dict():
            return "{" + ", ".join(f"{key} = {_toml(item)}" for key, item in value.items()) + "}"
        case list():
            return "[" + ", ".join(map(_toml, value)) + "]"
        case None:
            return "0"
        case _:
            return json.dumps(value)
