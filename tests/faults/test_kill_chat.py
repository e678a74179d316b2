"""kill -9 of the services of a chat while an answer streams: the client reads on or comes back, and has the text whole and once.

The model's server counts what it is asked: once for every reply that was recorded, and once more where the asking process itself died.
"""

import asyncio
import os
import signal
import sys

import httpx
import pytest
import pytest_asyncio

from libs.testkit.openai_server import OpenAiServer, ServerReply
from libs.testkit.product import FAST, product
from tests.e2e.chat_client import Chat, Reader, calls, script

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(180)]
STORY = "Once upon a time there was a very small model."
CLOCK = ServerReply(content="Let me see. ", tool_calls=({"id": "call_a", "name": "current_time", "arguments": "{}"},))
HELD = ServerReply(content=STORY, holds_after=5)
CALM = {**FAST, "AGENT_CODER_ASSISTANT_MEMORY": "false", "MODEL_BACKOFF_SECONDS": "0.05"}
KILLED = ("assistant", "inference", "session_store", "gateway")
APART = [word for service in KILLED for word in ("--apart", service)]
LOST = (httpx.TransportError, AssertionError)


def reply(request) -> ServerReply:
    return HELD if request["messages"][-1]["role"] == "tool" else CLOCK


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served(tmp_path_factory):
    server = OpenAiServer(reply)
    async with server.running():
        environment = {"MODEL_BASE_URL": server.base_url, **CALM}
        async with product(tmp_path_factory.mktemp("kills") / "home", "fake", *APART, environment=environment) as running:
            yield Chat(running, running.client), server


async def killed(running, service) -> None:
    """Kill a service and wait until another process has taken its place."""
    before = running.processes()[service]
    os.kill(before, signal.SIGKILL)
    async with asyncio.timeout(60):
        while running.processes().get(service, before) == before:
            await asyncio.sleep(0.05)


async def come_back(chat, session) -> Reader | None:
    """Ask for the answer until the server can say it."""
    async with asyncio.timeout(60):
        while True:
            try:
                return await chat.resumed(session)
            except LOST:
                await asyncio.sleep(0.2)


@pytest.mark.parametrize("service", KILLED)
async def test_a_service_killed_in_the_middle_of_an_answer_takes_nothing_from_it(served, service):
    chat, server = served
    server.release.clear()
    server.requests.clear()
    body = {"message": "tell me", "session": service}
    async with chat.client.stream("POST", "/api/chat", json=body, timeout=90) as answer:
        lines, read = answer.aiter_lines(), Reader()
        await read.until_text(lines, "Once upon a")
        await killed(chat.running, service)
        back = asyncio.create_task(come_back(chat, service))
        server.release.set()
        try:
            async for line in lines:
                read.line(line)
        except httpx.TransportError:
            assert service == "gateway"
    again = await back
    whole = again if service == "gateway" else read
    for seen in (whole, again):
        if seen is not None:
            assert (seen.done, seen.text) == (True, "Let me see. " + STORY), f"{seen.chunks}\n{chat.running.log()}"
            assert len([c for c in seen.chunks if c["type"] == "tool-output-available"]) == 1
    assert len(server.requests) == (3 if service == "inference" else 2)
    assert await chat.texts(service) == ["tell me", "Let me see. " + STORY]
    assert (await chat.messages(service))[-1]["metadata"]["usage"]["calls"] == 2


async def test_the_command_reads_on_when_the_gateway_is_killed_in_the_middle_of_an_answer(served):
    chat, server = served
    server.release.clear()
    server.requests.clear()
    own = os.environ | {"AGENT_CODER_HOME": str(chat.running.home), "AGENT_CODER_URL": str(chat.client.base_url), "PYTHONUTF8": "1"}
    command = (sys.executable, "-m", "services.cli", "chat", "tell me", "--session", "command")
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, env=own, stdout=pipe, stderr=pipe)
    said = b""
    async with asyncio.timeout(60):
        while b"Once upon a" not in said:
            piece = await process.stdout.read(4096)
            assert piece, (await process.stderr.read()).decode()
            said += piece
    await killed(chat.running, "gateway")
    server.release.set()
    rest, err = await asyncio.wait_for(process.communicate(), 90)
    assert (process.returncode, (said + rest).decode()) == (0, f"Let me see. \n{STORY}\n"), err.decode()
    assert err.decode().count("current_time") == 1
    assert len(server.requests) == 2


async def test_a_message_that_is_sent_until_it_is_answered_is_answered_once_wherever_a_service_dies(tmp_path):
    places = [
        "gateway:after_append:turn.opened",
        "session_store:after_effect:q.session_store.append",
        "inference:after_effect:q.inference.complete",
        "assistant:after_append:turn.model_replied",
        "assistant:before_append:turn.finished",
    ]
    crash = tmp_path / "reached"
    crash.mkdir()
    model = script(tmp_path, {"hello": [calls(("current_time", {}), content="Let me see. "), {"content": STORY}]})
    environment = {**CALM, "AGENT_CODER_CRASH_AT": ",".join(places), "AGENT_CODER_CRASH_DIR": str(crash)}
    message = {"id": "m-1", "role": "user", "parts": [{"type": "text", "text": "hello"}]}
    async with product(tmp_path / "home", model, *APART, environment=environment) as running:
        chat = Chat(running, running.client)
        async with asyncio.timeout(120):
            while True:
                try:
                    read = await chat.whole(await chat.client.post("/api/chat", json={"id": "once", "messages": [message]}, timeout=90))
                    break
                except LOST:
                    await asyncio.sleep(0.2)
        assert read.text == "Let me see. " + STORY
        assert await chat.texts("once") == ["hello", "Let me see. " + STORY]
        session = (await chat.client.get("/api/sessions/once")).json()
    assert (session["messages"], session["usage"]["calls"]) == (2, 2)
    assert sorted(p.name for p in crash.iterdir()) == sorted(places)
