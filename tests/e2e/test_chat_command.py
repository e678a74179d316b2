"""`agent-coder chat` against a running server: an answer, a conversation shown again, consent, errors."""

import asyncio
import json
import os
import sys

import pytest
import pytest_asyncio

from libs.testkit.product import product
from tests.e2e.chat_client import calls, script

pytestmark = pytest.mark.asyncio(loop_scope="module")
OPEN_RUN = ("solve_issue", {"title": "add subtracts", "repo": "team/none"})
SCENES = {
    "#plain": [{"content": "Hello, 世界!\x07 red"}],
    "#run": [calls(OPEN_RUN), {"content": "Done as you said."}],
    "#broken": [{"error": {"status": 400, "message": "this model is broken"}}],
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def say(tmp_path_factory):
    place = tmp_path_factory.mktemp("chat-command")
    async with product(place / "home", script(place, SCENES)) as running:
        own = os.environ | {"AGENT_CODER_HOME": str(running.home), "AGENT_CODER_URL": str(running.client.base_url), "PYTHONUTF8": "1"}

        async def said(*arguments, given=""):
            command = (sys.executable, "-m", "services.cli", "chat", *arguments)
            pipe = asyncio.subprocess.PIPE
            process = await asyncio.create_subprocess_exec(*command, env=own, stdin=pipe, stdout=pipe, stderr=pipe)
            out, err = await process.communicate(given.encode())
            return process.returncode, out.decode(), err.decode()

        yield said


async def test_the_answer_is_printed_without_terminal_controls_and_shown_again_by_the_name_of_the_conversation(say):
    assert await say("#plain 你好", "--session", "绿茶 tea") == (0, "Hello, 世界! red\n", "")
    _, shown, _ = await say("--session", "绿茶 tea")
    assert shown == "user: #plain 你好\n\nassistant: Hello, 世界! red\n\n"


async def test_a_conversation_without_words_says_so(say):
    code, out, err = await say("--session", "unheard-of")
    assert (code, out, err) == (0, "", "Nothing was said in unheard-of yet.\n")


async def test_a_message_comes_from_standard_input_and_a_new_conversation_tells_its_name(say):
    code, out, err = await say("-", given="#plain and more")
    assert (code, out) == (0, "Hello, 世界! red\n")
    name = err.split("--session ")[1].split()[0]
    assert "user: #plain and more" in (await say("--session", name))[1]


async def test_an_answer_that_waits_says_for_what_and_goes_on_with_consent(say):
    code, _, err = await say("#run", "--session", "later")
    assert code == 1
    assert "solve_issue" in err
    assert "--session later --yes" in err
    _, shown, err = await say("--session", "later")
    assert '· solve_issue {"title": "add subtracts"' in shown
    assert "--session later --yes" in err
    assert (await say("--session", "later", "--yes"))[:2] == (0, "Done as you said.\n")
    code, _, err = await say("--session", "later", "--yes")
    assert (code, "Nothing waits" in err) == (2, True)


async def test_consent_can_be_refused_beforehand(say):
    code, out, _ = await say("#run", "--session", "never", "--no", "--json")
    assert (code, json.loads(out)) == (0, {"session": "never", "text": "Done as you said.\n", "waits": {}, "error": None})


async def test_a_model_that_fails_is_an_error(say):
    code, out, err = await say("#broken")
    assert (code, out) == (1, "")
    assert "this model is broken" in err


async def test_nothing_said_is_a_wrong_call(say):
    assert (await say())[0] == 2
