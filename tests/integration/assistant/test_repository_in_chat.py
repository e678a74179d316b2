"""The whole product: a repository attached to a conversation, worked on in a real sandbox, over turns and a lost workspace."""

import shutil
import subprocess

import pytest

from libs.testkit.product import product
from tests.e2e.chat_client import Chat, calls, script

SKILL = "---\nname: lint\ndescription: How to lint here.\n---\nRun make lint.\n"
EDIT = ("edit", {"path": "nämé ☃.py", "old": "x = 1", "new": "x = 2"})
SCENES = {
    "#look": [calls(("read", {"path": "nämé ☃.py"}), ("load_skill", {"name": "lint"})), {"content": "Seen."}],
    "#edit": [calls(EDIT, ("exec", {"command": "cat *.py; echo new > made.txt"})), {"content": "Changed."}],
}
AGAIN = [calls(("read", {"path": "nämé ☃.py"}), ("read", {"path": "made.txt"})), {"content": "Still there."}]
pytestmark = pytest.mark.timeout(150)


@pytest.fixture
def repository(tmp_path):
    folder = tmp_path / "repository"
    (folder / ".claude/skills/lint").mkdir(parents=True)
    (folder / ".claude/skills/lint/SKILL.md").write_text(SKILL)
    (folder / "nämé ☃.py").write_text("x = 1\n")
    who = ("-c", "user.name=t", "-c", "user.email=t@example.org")
    for command in (("init", "-q", "-b", "main"), ("add", "-A"), (*who, "commit", "-q", "-m", "first")):
        subprocess.run(("git", "-C", str(folder), *command), check=True)
    return folder


def outputs(read):
    return [str(c.get("output", c.get("errorText"))) for c in read.chunks if c["type"].startswith("tool-output")]


async def test_a_conversation_keeps_its_changes_over_turns_and_over_the_loss_of_its_workspace(tmp_path, repository):
    home = tmp_path / "home"
    async with product(home, script(tmp_path, SCENES)) as running:
        chat = Chat(running, running.client)
        seen = outputs(await chat.say("look", "#look", repository=str(repository)))
        assert "x = 1" in seen[0]
        assert "Run make lint." in seen[1]
        changed = outputs(await chat.say("edit", "#edit", repository=str(repository)))
        assert "x = 2" in changed[1]
        workspaces = list((home / "sandbox" / "workspaces").glob("chat-*"))
        assert len(workspaces) == 2
    for workspace in workspaces:
        shutil.rmtree(workspace)
    async with product(home, script(tmp_path, {"#again": [*SCENES["#edit"], *AGAIN]})) as running:
        kept = outputs(await Chat(running, running.client).say("edit", "#again"))
    assert "x = 2" in kept[0]
    assert "new" in kept[1]
    assert (repository / "nämé ☃.py").read_text() == "x = 1\n"
