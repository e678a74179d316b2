"""Hooks of an agent, and the attached repository's workspace, on a real broker; the other services answer from memory."""

import asyncio
from contextlib import AsyncExitStack
from dataclasses import replace

import pytest

from libs.bus import Permanent
from libs.bus.connection import Connection
from libs.contracts import artifact, sandbox
from libs.contracts.inference import ChatMessage
from libs.testkit.broker import broker
from services.assistant.agents import ASSISTANT, block, substitute
from tests.integration.assistant.chat_live import Chat, serving
from tests.unit.agent.fake_step import FakeStep
from tests.unit.assistant.chat_world import MODELS, STORE, World, says
from tests.unit.editor import world as editor

SKILL = b"---\nname: lint\ndescription: How to lint here.\n---\nRun make lint.\n"
FILES = {"a.py": b"x = 1\n", ".agent-coder/skills/lint/SKILL.md": SKILL, "docs/skills/no/SKILL.md": SKILL}
SANDBOX = (
    sandbox.OpenWorkspace,
    sandbox.ReadFile,
    sandbox.WriteFiles,
    sandbox.ListDirectory,
    sandbox.Glob,
    sandbox.Grep,
    sandbox.Execute,
    sandbox.TakeSnapshot,
)
ARTIFACT = (artifact.ImportRepository, artifact.ListTree, artifact.ReadCommitted, artifact.PutChunk)
EDIT = ("edit", '{"path": "a.py", "old": "x = 1", "new": "x = 2"}')
REPO = "https://example.org/x.git"


class Repository(editor.World):
    def __init__(self):
        super().__init__(FILES, [])
        self.imports, self.opens = [], []

    def on_ImportRepository(self, question):
        self.imports.append(question.source)
        return artifact.Imported(repository="x", base_branch="main", base_commit=editor.BASE, default_branch="main")

    def on_OpenWorkspace(self, question):
        self.opens.append(question)
        return super().on_OpenWorkspace(question)


@pytest.fixture
async def chat(tmp_path):
    world, repository = World(says("Hello there.")), Repository()
    store = FakeStep(repository, ())
    async with AsyncExitStack() as stack:
        _, settings = await stack.enter_async_context(broker(tmp_path / "home"))
        served = (
            ("session_store", STORE, world.ask),
            ("inference", MODELS, world.ask),
            ("sandbox", SANDBOX, store.ask),
            ("artifact", ARTIFACT, store.ask),
        )
        for name, questions, ask in served:
            await stack.enter_async_context(serving(name, questions, ask).running(settings))
        connection = await Connection.open(settings, "gateway")
        stack.push_async_callback(connection.close)
        found = Chat(connection, world, settings, tmp_path)
        found.repository = repository
        yield found


async def answered(chat, *replies, agent=ASSISTANT, turn_id="t1", **fields):
    chat.world.replies["chat"] = list(replies)
    async with chat.assistant(agent):
        await chat.send("Do it", turn_id, **fields)
        await chat.until(turn_id, "finished")
    return [part for part in chat.world.message(f"answer-{turn_id}").parts if part["type"].startswith("tool-")]


async def test_a_repository_is_imported_once_and_its_workspace_opened_by_the_first_call_that_needs_it(chat):
    await answered(chat, says("Hi."), repository=REPO)
    assert (chat.repository.imports, chat.repository.opens) == ([REPO], [])
    parts = await answered(chat, says("", ("read", '{"path": "a.py"}'), EDIT), says("Done."), turn_id="t2")
    assert [part["state"] for part in parts] == ["output-available"] * 2
    assert chat.repository.files["a.py"] == b"x = 2\n"
    assert len(chat.repository.opens) == 1
    await answered(chat, says("", ("read", '{"path": "a.py"}')), says("Done."), turn_id="t3")
    assert chat.repository.imports == [REPO]
    first, second = chat.repository.opens
    assert first.workspace_id == second.workspace_id
    assert (first.commit, second.commit) == (editor.BASE, editor.SAVED)
    assert second.token > first.token


async def test_a_workspace_that_was_lost_in_a_turn_is_filled_again_from_the_journal(chat):
    chat.world.replies["chat"] = [says("", EDIT), says("HOLD"), says("", ("read", '{"path": "a.py"}')), says("Done.")]
    async with chat.assistant():
        await chat.send("Do it", repository=REPO)
        async with asyncio.timeout(60):
            await chat.world.held.wait()
    chat.repository.lose()
    held = chat.world.questions()[1]
    chat.world.answered[held.request_id] = says("", ("read", '{"path": "a.py"}'))
    chat.world.replies["chat"] = [says("Done.")]
    async with chat.assistant():
        await chat.until("t1", "finished")
    assert "x = 2" in chat.world.message("answer-t1").parts[3]["output"]


async def test_skills_of_the_repository_are_named_and_loaded_as_data(chat):
    parts = await answered(chat, says("", ("load_skill", '{"name": "lint"}')), says("Done."), repository=REPO)
    assert parts[0]["output"].startswith('<untrusted_data source="skill lint of the repository">')
    assert "- lint: How to lint here." in chat.world.questions()[0].messages[0].content


async def test_a_member_of_another_tenant_cannot_attach_a_folder_of_the_server(chat):
    chat.world.replies["chat"] = [says("I cannot see it.")]
    async with chat.assistant():
        await chat.send("Look", repository="/etc", tenant="acme", user="ann")
        await chat.until("t1", "finished")
    assert chat.repository.imports == []
    assert "could not be attached" in chat.world.questions()[0].messages[0].content
    assert "read" not in {tool.name for tool in chat.world.questions()[0].tools}


async def test_hooks_block_substitute_and_change_calls_before_they_run(chat):
    async def before(turn, tool, arguments):
        if tool == "remember":
            return block("nothing is kept here")
        return substitute("noon") if tool == "current_time" else None

    async def after(turn, tool, arguments, result):
        return result.replace("# Code review", "# Redacted")

    agent = replace(ASSISTANT, before_tool_call=before, after_tool_call=after)
    calls = [("remember", '{"content": "x"}'), ("current_time", "{}"), ("load_skill", '{"name": "code-review"}')]
    blocked, given, changed = await answered(chat, says("", *calls), says("Done."), agent=agent)
    assert (blocked["state"], blocked["errorText"]) == ("output-error", "This call was blocked: nothing is kept here")
    assert given["output"] == "noon"
    assert changed["output"].startswith("# Redacted")
    assert chat.world.remembered == []


async def test_hooks_change_the_prompt_and_hear_of_the_end_and_may_fail_there(chat):
    heard = asyncio.Queue()

    async def before(turn, messages):
        return (*messages, ChatMessage(role="user", content=f"for {turn.turn_id}"))

    async def ended(turn, end):
        heard.put_nowait((turn.turn_id, end.status, end.text))
        raise Permanent("the hook fails")

    agent = replace(ASSISTANT, before_turn=before, on_turn_end=ended)
    chat.world.replies["chat"] = [says("Hello there.")]
    async with chat.assistant(agent):
        for name in ("t1", "t2"):
            await chat.send("Hi", name)
            await chat.until(name, "finished")
        async with asyncio.timeout(60):
            assert {await heard.get(), await heard.get()} == {("t1", "finished", "Hello there."), ("t2", "finished", "Hello there.")}
    assert chat.world.questions()[0].messages[-1].content == "for t1"


async def test_consent_is_asked_for_by_arguments(chat):
    agent = replace(ASSISTANT, approvals={"load_skill": lambda arguments: arguments["name"] == "code-review"})
    chat.world.replies["chat"] = [
        says("", ("load_skill", '{"name": "fix-failing-test"}'), ("load_skill", '{"name": "code-review"}')),
        says("Done."),
    ]
    async with chat.assistant(agent):
        await chat.send("Hi")
        state = await chat.until("t1", "waiting")
    assert [p.arguments for p in state.pending] == ['{"name": "code-review"}']
