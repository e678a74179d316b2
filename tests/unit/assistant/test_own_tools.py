"""The assistant's own tools, called directly."""

import json

import pytest

from libs.agent import ToolFailed, Tools
from libs.agent.skills import Skill
from libs.bus import Fenced, Refusal
from libs.contracts import conversation as c
from libs.contracts.fold import Recorded, fold
from libs.contracts.sources import may_name
from libs.contracts.work import ToolCall
from libs.workspace import WorkspaceTools
from services.assistant.tools import OWN_TOOLS, WITH_REPOSITORY, OwnTools, recalled
from tests.unit.assistant.chat_world import EPOCH, World, opened, says, user


class Runs:
    """Journals of runs in memory."""

    def __init__(self):
        self.events = {}

    async def append(self, event, *, follows, causation=None):
        if event.run_id in self.events:
            raise Fenced
        self.events[event.run_id] = event
        return 1

    async def state(self, run_id):
        found = [Recorded(sequence=1, at=EPOCH, event=self.events[run_id])] if run_id in self.events else []
        return fold(found, run_id)


class Desk:
    """One turn's tools, called by name as the loop calls them."""

    def __init__(self, repository=None, runs=None, **fields):
        self.world, self.runs = World(says("")), runs or Runs()
        self.world.put(user("Tea 绿茶", "u1"))
        skills = {"lint": Skill("lint", "How to lint.", "Run it.")}
        self.tools = Tools(OwnTools(self.world.ask, self.runs, opened(**fields), repository, skills).all())

    async def __call__(self, name, /, call_id="t1-2-1.1", **arguments):
        call = ToolCall(id="c", name=name, arguments=json.dumps(arguments))
        return await self.tools.find(call).run(self.tools.arguments(call), call_id)


def test_the_tools_are_the_published_ones():
    assert list(Desk().tools.names) == [
        *("solve_issue", "run_status", "set_context", "search_context", "search_sessions"),
        *("load_skill", "unload_skill", "remember", "recall", "current_time"),
    ]


async def test_an_issue_is_opened_once_for_its_call_on_the_attached_repository():
    desk = Desk(repository="demo", tenant="local", user="local", model="m")
    first = await desk("solve_issue", title="Fix it", body="now")
    again = await desk("solve_issue", title="Fix it", body="now")
    other = await desk("solve_issue", title="Fix it", call_id="t1-2-2.1")
    run_id = first.split()[1]
    assert again == f"Run {run_id} was opened before."
    assert run_id not in other
    event = desk.runs.events[run_id]
    assert (event.repo, event.origin, event.tenant, event.user, event.policy.model) == ("demo", "chat", "local", "local", "m")


async def test_an_issue_needs_a_repository_that_the_person_may_name():
    with pytest.raises(ToolFailed, match="No repository"):
        await Desk()("solve_issue", title="x")
    with pytest.raises(ToolFailed, match="http"):
        await Desk(tenant="acme", user="ann")("solve_issue", title="x", repo="/etc")


@pytest.mark.parametrize("repo", ["/etc", "demo", "file:///etc", "ssh://git@host/x", "git@host:x"])
def test_what_is_on_the_servers_disk_is_the_owners_alone(repo):
    assert may_name("local", repo)
    assert not may_name("acme", repo)
    assert may_name("acme", "https://example.org/x.git")


def test_the_tools_that_are_told_are_those_that_there_are():
    own = OwnTools(None, None, opened(), None, {})
    assert tuple(tool.name for tool in own.all()) == OWN_TOOLS
    assert tuple(tool.name for tool in WorkspaceTools(None, None, None).tools()) == WITH_REPOSITORY


async def test_a_person_sees_the_status_of_their_own_runs_only():
    ann = Desk(repository="https://example.org/x", tenant="acme", user="ann")
    run_id = (await ann("solve_issue", title="Secret")).split()[1]
    assert "Secret" in await ann("run_status", run_id=run_id)
    for tenant, name in (("acme", "bob"), ("other", "ann"), ("local", "local")):
        with pytest.raises(ToolFailed, match="no run"):
            await Desk(runs=ann.runs, tenant=tenant, user=name)("run_status", run_id=run_id)
    with pytest.raises(ToolFailed, match="no run"):
        await ann("run_status", run_id="none")


async def test_the_owner_sees_all_runs_of_the_installation():
    member = Desk(repository="demo", user="bob")
    run_id = (await member("solve_issue", title="x")).split()[1]
    assert "queued" in await Desk(runs=member.runs)("run_status", run_id=run_id)


async def test_messages_of_all_or_of_this_conversation_are_found_and_wrapped_as_data():
    desk = Desk()
    desk.world.put(user("绿茶 again", "u2"), session="s2")
    found = await desk("search_sessions", query="绿茶")
    assert found.startswith("<untrusted_data")
    assert "again" in found
    assert "again" not in await desk("search_sessions", query="绿茶", only_this=True)
    assert await desk("search_sessions", query="coffee") == "[nothing found]"


async def test_a_written_block_says_how_full_it_is():
    desk = Desk()
    desk.world.on_ReadContexts(c.ReadContexts(session_id="s1", define=(c.ContextBlock(label="notes", max_tokens=100),)))
    assert await desk("set_context", label="notes", content="x" * 180) == "notes is written. [45% — 45/100 tokens]"
    with pytest.raises(Refusal):
        await desk("set_context", label="nothing", content="x")


async def test_facts_are_kept_for_the_person_or_for_the_project_and_recalled_with_both():
    desk = Desk(repository="demo")
    await desk("remember", content="Likes tea.")
    await desk("remember", content="Deploys on Fridays.", about_project=True)
    assert [item.project for item in desk.world.remembered] == ["", "demo"]
    assert "Fridays" in await desk("recall", query="deploy")
    other = await recalled(desk.world.ask, {"tenant": "local", "user": "local"}, "x", None)
    assert "tea" in other
    assert "Fridays" not in other
    assert "nothing" in await Desk()("recall", query="x")


async def test_skills_are_read_by_name():
    assert await Desk()("load_skill", name="lint") == "Run it."
    with pytest.raises(ToolFailed, match="The skills are: lint"):
        await Desk()("load_skill", name="../lint")


async def test_the_time_is_told_in_a_zone():
    assert "Asia/Shanghai" in await Desk()("current_time", zone="Asia/Shanghai")
    for zone in ("Nowhere/Land", "../etc/passwd", ""):
        with pytest.raises(ToolFailed, match="IANA"):
            await Desk()("current_time", zone=zone)
