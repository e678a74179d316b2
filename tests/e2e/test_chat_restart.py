"""A question of consent outlives the server, and an issue is solved from the chat."""

import asyncio
import json
import subprocess

from libs.contracts.ids import derived_id
from libs.testkit.product import product
from tests.e2e.chat_client import Chat, calls, script
from tests.e2e.scenes import DONE, FIX, PLAN, say
from tests.faults.story import repository

WORK = [
    {"when": {"purpose": "plan"}, "replies": [{"content": json.dumps(PLAN)}]},
    {"when": {"purpose": "edit"}, "replies": [say(FIX), say(DONE)]},
]
LOOKS = calls(("read", {"path": "adder.py"}), content="It subtracts. ")
ASKS = calls(("solve_issue", {"title": "add subtracts", "body": "add(1, 2) is -1."}), content="May I? ")


async def test_a_call_waits_through_a_restart_and_then_solves_the_issue(tmp_path):
    repo = repository(tmp_path / "repo")
    story = [LOOKS, ASKS, {"content": "It is being solved."}]
    async with product(tmp_path / "home", script(tmp_path, {"#solve": story}, WORK)) as running:
        paused = await Chat(running, running.client).say("work", "#solve add is wrong", repository=str(repo))
        assert "a - b" in paused.only("tool-output-available")["output"]
        call_id = paused.only("tool-approval-request")["toolCallId"]

    run_id = derived_id("chat", call_id)
    story += [{"content": "The run has ended."}, calls(("run_status", {"run_id": run_id})), {"content": "It is solved."}]
    async with product(tmp_path / "home", script(tmp_path, {"#solve": story}, WORK)) as running:
        chat = Chat(running, running.client)
        assert await chat.resumed("work") is None
        (part,) = (p for p in (await chat.messages("work"))[-1]["parts"] if p["type"] == "tool-solve_issue")
        assert (part["state"], part["input"]["body"]) == ("approval-requested", "add(1, 2) is -1.")

        await chat.answer("work", call_id=call_id, approved=True)
        shown = await running.wait(run_id)
        assert shown["status"] == "finished", f"{shown['why']}\n{running.log()}"
        async with asyncio.timeout(60):
            while (await chat.texts("work"))[-1] != "The run has ended.":  # the server's own turn
                await asyncio.sleep(0.05)
        told = await chat.say("work", "how is it?")
        assert shown["commit"]["branch"] in told.only("tool-output-available")["output"]
        assert (await chat.texts("work"))[1::2] == ["It subtracts. May I? It is being solved.", "The run has ended.", "It is solved."]
        assert _file(running, shown) == "def add(a, b):\n    return a + b\n"


def _file(running, shown) -> str:
    found = next((running.home / "artifact").rglob(f"{shown['commit']['repository']}.git"))
    command = ["git", "--git-dir", str(found), "show", f"{shown['commit']['sha']}:adder.py"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
