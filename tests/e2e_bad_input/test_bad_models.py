"""Models that answer nothing, nonsense or mischief, and files that are hard to edit: a clear end each, and no byte changed by accident."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.e2e_bad_input.hostile import ADDER, DONE, FIX, Case, Link

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(180)]
LATIN = "# caf\xe9\nprice = 'a - b \xa3'\n".encode("latin-1")
CRLF = b"first\r\nsecond\r\nthird\r\n"
BOM = b"\xef\xbb\xbfone\r\ntwo\r\n"
PNG = bytes(range(256)) * 8
PLAIN = {**ADDER, "crlf.txt": CRLF, "bom.txt": BOM, "latin.py": LATIN, "image.png": PNG, "run.sh": "echo a\n", "tail.txt": "no newline"}
MEBI = 1024 * 1024


def _plan(**fields: object) -> list[dict[str, str]]:
    return [{"content": json.dumps(fields)}]


def _step(*files: str) -> dict[str, object]:
    return {"title": "Fix it", "files": list(files)}


def _text(content: str) -> dict[str, str]:
    return {"content": content}


ESCAPES = [
    ("read", {"path": "../../etc/passwd"}),
    ("read", {"path": "/etc/passwd"}),
    ("read", {"path": "/proc/self/environ"}),
    ("read", {"path": "/workspace/../etc/passwd"}),
    ("write", {"path": "../outside.txt", "content": "x"}),
    ("write", {"path": "/tmp/agent-coder-escape", "content": "x"}),
    ("write", {"path": ".git/hooks/pre-commit", "content": "#!/bin/sh\n"}),
    ("write", {"path": ".GIT/config", "content": "x"}),
    ("write", {"path": "sub/.git/config", "content": "x"}),
    ("write", {"path": "a\u0000b", "content": "x"}),
    ("write", {"path": "", "content": "x"}),
    ("write", {"path": ".", "content": "x"}),
    ("write", {"path": "n" * 5000, "content": "x"}),
    ("write", {"path": "d/" * 3000 + "x", "content": "x"}),
    ("patch", {"diff": "--- a/../../x\n+++ b/../../x\n@@ -0,0 +1 @@\n+x\n"}),
    ("patch", {"diff": "--- /dev/null\n+++ b/.git/hooks/post-commit\n@@ -0,0 +1 @@\n+x\n"}),
    ("patch", {"diff": "rubbish"}),
    ("ls", {"path": "../.."}),
    ("glob", {"pattern": "../../**/*"}),
    ("glob", {"pattern": "[" * 200}),
    ("grep", {"pattern": "(a+)+$", "path": ".."}),
    ("grep", {"pattern": "((((("}),
]


def _mixed(calls: Sequence[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """A thought after each call, so that the caps on failures in a row are not met."""
    return [part for number, call in enumerate(calls) for part in (call, ("think", {"topic": f"{call[0]} {number}", "reasoning": "Odd."}))]


MALFORMED = [
    [("frobnicate", {"x": 1}), ("edit", {"path": 3, "old": None}), ("read", {}), ("write", {"path": "x.txt"})],
    [("edit", '{"path": "adder.py", "old": "a - b", "ne')],
    [("read", "[1, 2"), ("read", '"just text"'), ("read", "null"), ("read", "")],
    [
        ("exec", {"command": "echo hi", "timeout_seconds": -5}),
        ("exec", {"command": ""}),
        ("read", {"path": "adder.py", "start": -3, "end": "x"}),
    ],
    [("edit", {"path": "adder.py", "old": "", "new": "x"}), ("edit", {"path": "adder.py", "old": "not there", "new": "x"})],
    [("write", '{"path": "lone.txt", "content": "\\ud800"}'), ("think", '{"topic": "\\ud800", "reasoning": "\\u0000"}')],
]
BYTES = [
    ("edit", {"path": "crlf.txt", "old": "second\n", "new": "zweite\nhalf\n"}),
    ("edit", {"path": "bom.txt", "old": "one", "new": "eins"}),
    ("edit", {"path": "latin.py", "old": "a - b", "new": "a + b"}),
    ("edit", {"path": "image.png", "old": "A", "new": "B"}),
    ("edit", {"path": "tail.txt", "old": "newline", "new": "end"}),
    ("read", {"path": "image.png"}),
]
CASES = {
    "silent": Case(plan=[_text("")]),
    "nonsense": Case(plan=[_text("As a large language model I like turtles. {{{ ")]),
    "wrong-json": Case(plan=_plan(stages=["a"])),
    "fifty-steps": Case(plan=_plan(summary="s", steps=[_step("adder.py")] * 50)),
    "outside-plan": Case(plan=_plan(summary="s", steps=[_step("../../etc/passwd", "/etc/shadow", ".git/config")])),
    "deep-plan": Case(plan=[_text('{"steps":' + "[" * 100_000)]),
    "braces-plan": Case(plan=[_text("{" * 200_000)]),
    "nested-plan": Case(plan=[_text('{"steps":' * 20_000)]),
    "plan-lone-surrogate": Case(plan=[_text('{"summary": "\\ud800", "steps": [{"title": "\\ud800 x", "files": ["adder.py"]}]}')]),
    "plan-error": Case(plan=[{"error": {"status": 400, "message": "no \u0000 such"}}]),
    "silent-editor": Case(turns=[_text("")]),
    "chatty-editor": Case(turns=[_text("I have fixed everything, trust me.")]),
    "repeating-editor": Case(turns=[[("read", {"path": "adder.py"})]]),
    "printed-call": Case(turns=[_text(f"<tool_call>{json.dumps({'name': n, 'arguments': a})}</tool_call>") for n, a in (*FIX, *DONE)]),
    "escapes": Case(turns=[_mixed(ESCAPES), FIX, DONE]),
    "malformed": Case(turns=[*map(_mixed, MALFORMED), FIX, DONE]),
    "escaping": Case(turns=[ESCAPES, FIX, DONE]),
    "babbling": Case(turns=[*MALFORMED, FIX, DONE]),
    "bytes": Case(files=PLAIN, turns=[[*FIX, *BYTES], DONE]),
    "overwrite-binary": Case(files=PLAIN, turns=[[*FIX, ("write", {"path": "image.png", "content": "text"})], DONE]),
    "link-made": Case(
        turns=[[*FIX, ("exec", {"command": "ln -s /etc/passwd stolen; ln -s / root; mkfifo pipe"})], [("read", {"path": "stolen"})], DONE]
    ),
    "huge-file": Case(turns=[[*FIX, ("exec", {"command": f"head -c {20 * MEBI} /dev/urandom > big.bin"})], DONE]),
    "huge-edit": Case(
        files={**ADDER, "big.txt": "0123456789abcde\n" * (MEBI // 2)},
        turns=[
            [
                ("edit", {"path": "big.txt", "old": "0123456789abcde\n", "new": "x", "replace_all": True}),
                ("read", {"path": "big.txt"}),
                *FIX,
            ],
            DONE,
        ],
    ),
    "network": Case(
        turns=[
            [
                ("exec", {"command": "python3 -c \"import urllib.request as u; print(u.urlopen('http://1.1.1.1', timeout=3).status)\""}),
                ("exec", {"command": "python3 -c \"import socket; socket.create_connection(('127.0.0.1', 4222), 2); print('reached')\""}),
                ("exec", {"command": "cat /root/.ssh/* /etc/shadow; env; ls /"}),
            ],
            FIX,
            DONE,
        ]
    ),
    "deletes-git": Case(
        turns=[[("exec", {"command": "rm -rf .git; echo evil > .git/config; git config core.pager evil; ls -a"})], FIX, DONE]
    ),
    "many-files": Case(turns=[[*FIX, ("exec", {"command": "mkdir m; for i in $(seq 3000); do echo $i > m/$i; done"})], DONE]),
    "plan-only": Case(turns=[DONE]),
    "nested-repository": Case(turns=[[*FIX, ("exec", {"command": "git init -q inner; echo x > inner/x"})], DONE]),
    "nested-config": Case(files={**ADDER, ".agent-coder.toml": "a = " + "[" * 50_000}),
    "nested-manifests": Case(files={**ADDER, "pyproject.toml": "a = " + "[" * 50_000, "package.json": "[" * 100_000}),
    "odd-manifests": Case(
        files={
            **ADDER,
            "package.json": '{"scripts": ["x"], "dependencies": 3, "devDependencies": "y", "workspaces": {"a": 1}, "name": null}',
            "pyproject.toml": 'project = "x"\ntool = 3\nbuild-system = []\n',
            "Cargo.toml": "[[[",
            "go.mod": "\0",
            "pom.xml": "<a>" * 1000,
        },
        policy={"setup_commands": [], "test_commands": ["python3 -m unittest"]},
    ),
    "long-lines": Case(
        files={**ADDER, "min.js": "ab" * 700_000},
        turns=[[("edit", {"path": "min.js", "old": "ab", "new": "abab", "replace_all": True}), *FIX], DONE],
    ),
    "printed-junk": Case(turns=[_text("<tool_call>{" * 2_000), _text("\n" * 20_000), FIX, DONE]),
    "reads-link": Case(files={**ADDER, "conftest.py": Link("/etc/passwd")}, turns=[FIX, DONE]),
}


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("silent", ("no usable plan", "more capable model")),
        ("nonsense", ("no usable plan",)),
        ("wrong-json", ("no usable plan", "steps")),
        ("fifty-steps", ("no usable plan", "5")),
        ("outside-plan", ("leaves the repository", "absolute", "belongs to git")),
        ("deep-plan", ("no usable plan",)),
        ("braces-plan", ("no usable plan",)),
        ("nested-plan", ("no usable plan",)),
        ("plan-lone-surrogate", ("no usable plan",)),
        ("plan-error", ("400",)),
        ("silent-editor", ()),
        ("chatty-editor", ()),
        ("repeating-editor", ("read",)),
        ("plan-only", ("nothing",)),
        ("huge-file", ("big.bin", "cannot be saved")),
        ("escaping", ("tool calls failed in a row",)),
        ("babbling", ("malformed tool calls in a row",)),
        ("nested-config", (".agent-coder.toml",)),
    ],
)
async def test_a_useless_model_ends_the_run_with_a_reason(served, name, words):
    shown = await served.failed(name, *words)
    assert "Traceback" not in shown["why"]
    assert shown["dead_letter"] is None, shown["why"]


@pytest.mark.parametrize(
    "name", ["printed-call", "network", "deletes-git", "nested-manifests", "odd-manifests", "printed-junk", "reads-link"]
)
async def test_an_odd_model_still_solves_the_issue(served, name):
    shown = await served.finished(name)
    assert served.changed(shown) == ["adder.py", "test_adder.py"]


async def test_no_path_of_a_tool_call_leaves_the_workspace(served):
    shown = await served.finished("escapes")
    told = [told for told in await served.results("escapes") if told[0] != "think"][: len(ESCAPES)]
    assert len(told) == len(ESCAPES)
    for (tool, ok, text), (_, arguments) in zip(told, ESCAPES, strict=True):
        assert not ok or tool in {"glob", "grep", "ls"}, (tool, arguments, text)
        assert "root:x:0:0" not in text
        assert "Traceback" not in text
    assert served.changed(shown) == ["adder.py", "test_adder.py"]
    assert not Path("/tmp/agent-coder-escape").exists()


async def test_malformed_calls_are_told_to_the_model_and_the_run_goes_on(served):
    shown = await served.finished("malformed")
    told = await served.results("malformed")
    assert any("frobnicate" in text for _, ok, text in told if not ok)
    assert all(text for _, ok, text in told if not ok)
    assert set(served.changed(shown)) <= {"adder.py", "test_adder.py", "lone.txt"}


async def test_edits_keep_line_ends_marks_and_encodings(served):
    shown = await served.finished("bytes")
    assert served.blob(shown, "crlf.txt") == b"first\r\nzweite\r\nhalf\r\nthird\r\n"
    assert served.blob(shown, "bom.txt") == b"\xef\xbb\xbfeins\r\ntwo\r\n"
    assert served.blob(shown, "latin.py") in {LATIN, LATIN.replace(b"a - b", b"a + b")}
    assert served.blob(shown, "image.png") == PNG
    assert served.blob(shown, "tail.txt") == b"no end"


async def test_bytes_that_are_no_text_are_never_rewritten(served):
    shown = await served.finished("overwrite-binary")
    assert served.blob(shown, "image.png") == PNG


async def test_links_out_of_the_workspace_are_committed_as_links_and_never_followed(served):
    shown = await served.ended("link-made")
    for _, _, text in await served.results("link-made"):
        assert "root:x:0:0" not in text
    if shown["status"] == "finished":
        assert served.blob(shown, "stolen") == b"/etc/passwd"


async def test_a_file_over_the_edit_limit_is_refused_and_the_rest_goes_on(served):
    await served.finished("huge-edit")
    tool, ok, text = (await served.results("huge-edit"))[0]
    assert tool == "edit"
    assert not ok
    assert "more than can be read or edited whole" in text


async def test_commands_reach_no_network_and_no_secret(served):
    told = [text for tool, _, text in await served.results("network") if tool == "exec"]
    assert "200" not in told[0]
    assert "reached" not in told[1]
    assert "root:" not in told[2]
    assert "AGENT_CODER" not in told[2]


async def test_many_new_files_are_committed(served):
    shown = await served.finished("many-files")
    assert len(served.changed(shown)) == 3002


async def test_a_repository_made_inside_of_the_workspace_does_no_harm(served):
    shown = await served.ended("nested-repository")
    assert shown["status"] in {"finished", "failed"}
    assert shown["status"] == "finished" or "inner" in shown["why"], shown["why"]
