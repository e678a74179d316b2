"""Models that err: what they are told, that a right second answer is taken, and how a run ends that gets nowhere."""

import json

import pytest
import pytest_asyncio

from libs.testkit.product import product
from tests.e2e.scenes import DONE, FIX, Scene, Stage, say, set_stage

pytestmark = pytest.mark.asyncio(loop_scope="module")
OLD, NEW = "    return a - b", "    return a + b"


def block(old: str) -> str:
    return f"The sign is wrong.\n\nadder.py\n<<<<<<< SEARCH\n{old}\n=======\n{NEW}\n>>>>>>> REPLACE\n"


def diff(old: str) -> str:
    return f"The sign is wrong.\n\n--- a/adder.py\n+++ b/adder.py\n@@ -11,9 +12,9 @@\n def add(a, b):\n-{old}\n+{NEW}\n"


RENAME = "diff --git a/adder.py b/lib/adder.py\nsimilarity index 100%\nrename from adder.py\nrename to lib/adder.py\n"
PRINTED = "\n".join(f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>" for name, arguments in (FIX, DONE))
TOO_MUCH = ("exec", {"command": "seq 1 400000; echo the end"})
CUT = ("edit", '{"path": "adder.py", "old": "a - b", "ne')
ONCE = {"max_attempts": 1}
SCENES = {
    "printed call": Scene([say(content=PRINTED)]),
    "cut off": Scene([say(CUT, finish_reason="length"), say(FIX), say(DONE)]),
    "too much": Scene([say(TOO_MUCH), say(TOO_MUCH), say(FIX), say(TOO_MUCH), say(DONE)], model="small"),
    "silent": Scene([say()], policy=ONCE),
    "chatter": Scene([say(content="I could look into it, if you wish.")], policy=ONCE),
    "same again": Scene([say(("read", {"path": "adder.py"}))], policy=ONCE),
    "cut off for ever": Scene([say(CUT)], policy=ONCE),
    "wrong block": Scene([say(content=block("    return a-b-c")), say(content=block(OLD))], model="search_replace"),
    "wrong diff": Scene([say(content=diff("    total = sum(numbers) / len(numbers)")), say(content=diff(OLD))], model="unified_diff"),
    "no file": Scene([say(content="Done!"), say(content=f'<file path="adder.py">\ndef add(a, b):\n{NEW}\n</file>')], model="whole_file"),
    "never right": Scene([say(content=block("nowhere"))], model="search_replace", policy=ONCE),
    "rename": Scene([say(("patch", {"diff": RENAME})), say(DONE)], policy={"test_commands": ["python3 -m compileall -q ."]}),
    "bad plan": Scene([say(FIX), say(DONE)], plan={"summary": "s", "steps": []}),
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stage(tmp_path_factory):
    place = tmp_path_factory.mktemp("stage")
    model = set_stage(place, SCENES)
    async with product(place / "home", model) as running:
        yield Stage(running, place, SCENES)


async def test_a_tool_call_printed_as_text_is_made(stage):
    await stage.finished("printed call")


async def test_arguments_that_are_cut_off_are_told_and_the_next_call_counts(stage):
    shown = await stage.finished("cut off")
    ok, text = next((ok, text) for tool, ok, text in await stage.results(shown) if tool == "edit")
    assert not ok
    assert "end in the middle" in text


async def test_a_result_larger_than_the_context_is_cut_and_the_run_goes_on(stage):
    shown = await stage.finished("too much")
    outputs = [text for tool, _, text in await stage.results(shown) if tool == "exec"]
    assert len(outputs) == 3
    for text in outputs:
        assert "characters are left out; write the output to a file and read that" in text
        assert "the end" in text
        assert len(text) < 9000


@pytest.mark.parametrize(
    ("name", "told"),
    [("wrong block", "return a - b"), ("wrong diff", "return a - b"), ("no file", '<file path="path/of/file">')],
)
async def test_an_answer_that_does_not_apply_comes_back_with_the_reason_and_the_second_one_counts(stage, name, told):
    shown = await stage.finished(name)
    assert shown["attempt"] == 1
    ok, text = next((ok, text) for tool, ok, text in await stage.results(shown) if tool == "apply")
    assert not ok
    assert "Nothing of your answer was applied" in text
    assert told in text


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("silent", ("with empty replies", "Choose a model that can call tools")),
        ("chatter", ("without calling a tool", "if you wish", "Choose a model that can call tools")),
        ("same again", ("called read 5 times with the same arguments", "A retry makes as many again")),
        ("cut off for ever", ("malformed tool calls in a row", "edit", "A retry makes as many again")),
        ("never right", ("failed in a row", "A retry makes as many again")),
        ("bad plan", ("no usable plan in", "Choose a more capable model")),
    ],
)
async def test_a_model_that_gets_nowhere_ends_the_run_with_its_reason_and_what_to_do(stage, name, words):
    shown = await stage.ended(name)
    assert shown["status"] == "failed"
    assert [word for word in words if word not in shown["why"]] == [], shown["why"]
    assert shown["commit"] is None


async def test_a_pure_rename_is_committed(stage):
    shown = await stage.ended("rename")
    assert shown["status"] == "finished", shown["why"]
    assert stage.git(shown, "show", "--format=", "--name-status", "-M", shown["commit"]["sha"]) == ["R100\tadder.py\tlib/adder.py"]
    assert [(file["status"], file["renamed_from"]) for file in shown["changed_files"]] == [("renamed", "adder.py")]
