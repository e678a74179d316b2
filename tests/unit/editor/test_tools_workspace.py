import json

import pytest

from libs.agent import MemoryTranscript, ToolFailed, Tools
from libs.bus import Refusal, Retryable
from libs.contracts.sandbox import Executed
from libs.contracts.work import ToolCall
from libs.workspace.tools import BODY_LIMIT, WorkspaceTools, numbered
from libs.workspace.workspace import Workspace
from libs.workspace.writes import JournaledWrites
from tests.unit.editor.world import BASE, World

RENAMES = "diff --git a/a.py b/b.py\nsimilarity index 100%\nrename from a.py\nrename to b.py\n"
FILLS = "diff --git a/empty b/empty\n--- a/empty\n+++ b/empty\n@@ -0,0 +1 @@\n+full\n"
DELETES = "diff --git a/win.txt b/win.txt\ndeleted file mode 100644\n--- a/win.txt\n+++ /dev/null\n@@ -1,2 +0,0 @@\n-one\n-two\n"
FILES = {
    "a.py": b"x = 1\ny = 2\n",
    "win.txt": b"\xef\xbb\xbfone\r\ntwo\r\n",
    "logo.png": b"\x89PNG\x00\x00",
    "nämé ☃.py": "z = '雪'\n".encode(),
    "empty": b"",
}


class Bench:
    """The tools over a world, called by name as the loop calls them."""

    def __init__(self):
        self.world, self.shown, self.calls = World(FILES, []), [], 0
        self.workspace = Workspace(self.world.ask, "run-1", 5)
        self.tools = WorkspaceTools(self.workspace, JournaledWrites(self.workspace, MemoryTranscript()), self.show).all()
        self.world.files = dict(FILES)

    async def show(self, kind, text):
        self.shown.append((kind, text))

    async def __call__(self, name, /, **arguments):
        call = ToolCall(id="c", name=name, arguments=json.dumps(arguments))
        self.calls += 1
        return await self.tools.find(call).run(self.tools.arguments(call), f"call-{self.calls}")


@pytest.fixture
def bench():
    return Bench()


def test_the_tools_are_the_published_ones():
    forms = [tool.form() for tool in Bench().tools._tools.values()]
    assert forms == [
        "read(path: string, start?: integer, end?: integer)",
        "ls(path?: string)",
        "glob(pattern: string)",
        "grep(pattern: string, path?: string)",
        "write(path: string, content: string)",
        "edit(path: string, old: string, new: string, replace_all?: boolean)",
        "patch(diff: string)",
        "exec(command: string, timeout_seconds?: number)",
        "think(topic: string, reasoning: string)",
    ]
    assert isinstance(Bench().tools, Tools)


async def test_read_numbers_lines_and_marks_them_as_data(bench):
    assert await bench("read", path="a.py", start=2) == (
        '<untrusted_data source="a.py">\n    2\ty = 2\n[lines 2 to 2 of 2]\n</untrusted_data>'
    )
    assert "z = '雪'" in await bench("read", path="./nämé ☃.py")
    assert "[the file is empty]" in await bench("read", path="empty")


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("gone.py", "no file gone.py"),
        ("logo.png", "not text"),
        ("../x", "contains '..'"),
        ("/etc/passwd", "absolute"),
        (".git/config", "git"),
    ],
)
async def test_a_file_that_cannot_be_read_is_told_in_words(bench, path, words):
    with pytest.raises(ToolFailed, match=words):
        await bench("read", path=path)


def test_long_files_are_cut_at_a_line_with_the_next_call_to_make():
    lines = tuple(f"line {n}" for n in range(1, 5000))
    text = numbered(lines, 1, len(lines))
    assert len(text) <= BODY_LIMIT + 200
    following = int(text.rsplit("start=", 1)[1].rstrip("]"))
    assert numbered(lines, following, len(lines)).startswith(f"{following:>5}\tline {following}")
    assert "has 20,000 characters" in numbered(("x" * 20_000,), 1, 1)
    assert numbered(lines, 9000, 9001) == "[the file has 4999 lines; there is no line 9000]"


async def test_edit_keeps_line_endings_and_bom(bench):
    assert await bench("edit", path="win.txt", old="two", new="2\n3") == "Changed: win.txt"
    assert bench.world.files["win.txt"] == b"\xef\xbb\xbfone\r\n2\r\n3\r\n"


async def test_write_over_an_existing_file_keeps_line_endings_and_bom(bench):
    await bench("write", path="win.txt", content="1\n2\n")
    assert bench.world.files["win.txt"] == b"\xef\xbb\xbf1\r\n2\r\n"


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("edit", {"path": "a.py", "old": "nothing like it at all", "new": "x"}, "not in the file"),
        ("edit", {"path": "gone.py", "old": "a", "new": "b"}, "no file gone.py"),
        ("edit", {"path": "logo.png", "old": "PNG", "new": "GIF"}, "not text"),
        ("write", {"path": "logo.png", "content": "text"}, "not text"),
        ("write", {"path": "../out", "content": "text"}, r"'\.\.'"),
        ("patch", {"diff": "nonsense"}, "No file header"),
        ("grep", {"pattern": "("}, "Unmatched"),
    ],
)
async def test_a_change_that_does_not_fit_is_told_and_changes_nothing(bench, name, arguments, words):
    with pytest.raises(ToolFailed, match=words):
        await bench(name, **arguments)
    assert bench.world.files == FILES


async def test_a_patch_renames_and_reaches_several_files(bench):
    await bench("patch", diff=RENAMES + FILLS)
    assert "a.py" not in bench.world.files
    assert (bench.world.files["b.py"], bench.world.files["empty"]) == (FILES["a.py"], b"full\n")


async def test_a_file_changed_meanwhile_is_not_overwritten(bench):
    read = bench.world.on_ReadFile

    def stale(question):
        answer = read(question)
        bench.world.files["a.py"] = b"changed by a command\n"
        return answer

    bench.world.on_ReadFile = stale
    with pytest.raises(ToolFailed, match="changed meanwhile"):
        await bench("edit", path="a.py", old="x = 1", new="x = 2")
    assert bench.world.files["a.py"] == b"changed by a command\n"


async def test_listings_say_when_there_is_more(bench):
    assert "[there are more; use a narrower pattern]" in await bench("glob", pattern="**")
    assert "a.py:1: x = 1" in await bench("grep", pattern="x")
    assert "win.txt" in await bench("ls")


async def test_exec_gives_exit_code_and_output(bench):
    assert await bench("exec", command="pytest") == (
        'exit code 0 after 1.5 s\n<untrusted_data source="output of the command">\nstdout:\n2 passed\n</untrusted_data>'
    )
    assert bench.world.commands == ["pytest"]


async def test_exec_keeps_the_end_of_long_output(bench):
    bench.world.operations["call-1"] = Executed(outcome="timeout", stdout="x" * 9000 + "END", stderr="e" * 9000 + "LAST")
    text = await bench("exec", command="pytest")
    assert text.startswith("stopped: timeout")
    assert "END\n" in text
    assert "LAST\n" in text
    assert len(text) < 8000


async def test_an_unknown_outcome_is_never_taken_for_success(bench):
    bench.world.operations["call-1"] = Executed(outcome="unknown")
    with pytest.raises(ToolFailed, match="outcome of the command is unknown"):
        await bench("exec", command="make release")


async def test_a_lost_workspace_makes_the_step_start_again(bench):
    bench.world.on_ReadFile = lambda q: (_ for _ in ()).throw(Refusal("no_workspace", "no workspace run-1"))
    with pytest.raises(Retryable, match="workspace was lost"):
        await bench("read", path="a.py")


async def test_renames_and_deletions_survive_a_lost_workspace():
    world = World(FILES, [])
    world.files = dict(FILES)
    workspace, transcript = Workspace(world.ask, "run-1", 5), MemoryTranscript()
    writes = JournaledWrites(workspace, transcript)
    tools = WorkspaceTools(workspace, writes, Bench().show).all()
    call = ToolCall(id="c", name="patch", arguments=json.dumps({"diff": RENAMES + DELETES}))
    await tools.find(call).run(tools.arguments(call), "call-1")
    after = dict(world.files)
    world.lose()
    await workspace.open("demo", BASE, reset=False)
    for _ in range(2):
        await writes.restore(world.generation)
        assert world.files == after
