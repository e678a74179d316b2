"""Streams of an OpenAI-compatible server that is held in the middle: coming back, tabs, order of turns, stopping, broken providers."""

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager

import openai
import pytest
import pytest_asyncio

from libs.testkit.openai_server import OpenAiServer, ServerReply, error_reply
from libs.testkit.product import product
from tests.e2e.chat_client import Chat, Reader

pytestmark = pytest.mark.asyncio(loop_scope="module")
CLOCK = {"name": "read_clock", "description": "the clock", "parameters": {"type": "object", "properties": {"zone": {"type": "string"}}}}
STORY = "Once upon a time there was a very small model."
HALF = 5
TRIED = {
    "MODEL_TRIES": "2",
    "MODEL_BACKOFF_SECONDS": "0.05",
    "AGENT_CODER_BACKOFF_BASE_SECONDS": "0.1",
    "AGENT_CODER_BACKOFF_CAP_SECONDS": "0.3",
}
PLAIN = {"AGENT_CODER_ASSISTANT_MEMORY": "false", "AGENT_CODER_ASSISTANT_RETRIES": "1", "AGENT_CODER_FIRST_CHUNK_SECONDS": "0"}
REPLIES = {
    "#held": ServerReply(content=STORY, holds_after=HALF),
    "#call": ServerReply(tool_calls=({"id": "call_a", "name": "read_clock", "arguments": '{"zone": "UTC"}'},)),
    "#short": ServerReply(content="Short."),
    "#html": ServerReply(body="<html>Bad gateway</html>", content_type="text/html"),
    "#cut": ServerReply(content=STORY, cut_after=HALF),
    "#again": ServerReply(deltas=({"content": "ha "},) * 400),
    "#key": error_reply(401, "Incorrect API key provided."),
}


def newest(request) -> str:
    return next(str(m["content"]) for m in reversed(request["messages"]) if m["role"] == "user")


def reply(request) -> ServerReply:
    return next((reply for mark, reply in REPLIES.items() if mark in newest(request)), ServerReply(content="What?"))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served(tmp_path_factory):
    server = OpenAiServer(reply)
    async with server.running():
        environment = {"MODEL_BASE_URL": server.base_url, **TRIED, **PLAIN}
        async with product(tmp_path_factory.mktemp("streams") / "home", "fake", environment=environment) as running:
            yield Chat(running, running.client), server


@pytest.fixture
def chat(served):
    return served[0]


@pytest.fixture
def server(served):
    server = served[1]
    server.release.clear()
    server.requests.clear()
    server.hung_up = 0
    return server


@asynccontextmanager
async def held(chat, session):
    """A turn in the middle of its answer: its stream's lines, what came of them so far, its id."""
    async with chat.client.stream("POST", "/api/chat", json={"message": "#held tell me", "session": session}) as answer:
        lines, read = answer.aiter_lines(), Reader()
        await read.until_text(lines, "Once upon a")
        yield lines, read, answer.headers["x-turn-id"]


async def rest(lines, read):
    async for line in lines:
        read.line(line)
    assert read.done
    return read


@asynccontextmanager
async def asking(chat, session, text, **body):
    """A message that is taken in; the status comes before there is anything to show, so turns arrive in the order of the blocks."""
    async with chat.client.stream("POST", "/api/chat", json={"message": text, "session": session, **body}) as answer:
        yield asyncio.ensure_future(chat.whole(answer))


async def test_every_tab_and_one_that_comes_back_sees_the_same_and_the_model_is_asked_once(chat, server):
    async with held(chat, "tabs") as (lines, read, _), AsyncExitStack() as stack:
        await leave_early(chat, "tabs")
        tabs = [await stack.enter_async_context(chat.client.stream("GET", "/api/chat/tabs/stream")) for _ in range(3)]
        server.release.set()
        whole = await rest(lines, read)
        others = [await chat.whole(tab) for tab in tabs]
    assert whole.text == STORY
    assert [tab.text for tab in others] == [STORY] * 3
    assert others[0].only("start") == whole.only("start")
    assert await chat.resumed("tabs") is None
    assert len(server.requests) == 1


async def leave_early(chat, session):
    async with chat.client.stream("GET", f"/api/chat/{session}/stream") as answer:
        await Reader().until_text(answer.aiter_lines(), "Once")


async def test_an_answer_goes_on_without_a_client(chat, server):
    async with held(chat, "gone"):
        pass
    back = asyncio.create_task(chat.resumed("gone"))
    server.release.set()
    read = await back
    assert read is None or read.text == STORY
    async with asyncio.timeout(30):
        while await chat.texts("gone") != ["#held tell me", STORY]:
            await asyncio.sleep(0.05)
    assert len(server.requests) == 1


async def test_stopping_ends_the_stream_of_the_provider_and_keeps_what_was_written(chat, server):
    async with held(chat, "stop") as (lines, read, turn):
        stopped = await chat.client.post("/api/chat/stop/cancel", json={"reason": "enough"})
        assert stopped.json() == {"turn": turn}
        await rest(lines, read)
    assert read.chunks[-1]["type"] == "abort"
    async with asyncio.timeout(60):
        while not server.hung_up:
            await asyncio.sleep(0.02)
        while len(messages := await chat.messages("stop")) < 2:
            await asyncio.sleep(0.02)
    assert messages[-1]["metadata"]["aborted"] is True
    assert (await chat.texts("stop"))[-1].startswith("Once upon a")
    again = await chat.client.post("/api/chat/stop/cancel", json={})
    assert again.json() == {"turn": None}
    assert (await chat.say("stop", "#short go on")).text == "Short."


async def test_a_queued_message_is_answered_after_the_one_before_it(chat, server):
    async with held(chat, "queue") as (lines, read, _), asking(chat, "queue", "#short next") as second:
        server.release.set()
        assert (await rest(lines, read)).text == STORY
        assert (await second).text == "Short."
    prompt = [m["content"] for m in server.requests[-1]["messages"] if m["role"] != "system"]
    assert prompt == ["#held tell me", STORY, "#short next"]


async def test_a_dropped_message_is_stored_and_not_answered(chat, server):
    async with held(chat, "drop") as (lines, read, _), asking(chat, "drop", "#short no", concurrency="drop") as dropped:
        assert "is stored and not answered" in (await dropped).only("error")["errorText"]
        server.release.set()
        await rest(lines, read)
    assert set(await chat.texts("drop")) == {"#held tell me", STORY, "#short no"}
    assert len(server.requests) == 1


@pytest.mark.parametrize("policy", ["latest", "merge", "debounce"])
async def test_of_several_waiting_messages_the_last_one_is_answered(chat, server, policy):
    body = {"concurrency": policy, "debounce_milliseconds": 100}
    async with (
        held(chat, policy) as (lines, read, _),
        asking(chat, policy, "#short first", **body) as first,
        asking(chat, policy, "#short last", **body) as last,
    ):
        words = (await first).only("error")["errorText"]
        assert ("together with a later one" if policy == "merge" else "a later message is answered") in words
        server.release.set()
        await rest(lines, read)
        assert (await last).text == "Short."
    asked = [m["content"] for m in server.requests[-1]["messages"] if m["role"] == "user"]
    assert asked[-2:] == ["#short first", "#short last"] if policy == "merge" else asked[-1] == "#short last"
    assert len(server.requests) == 2


@pytest.mark.parametrize(
    ("mark", "words"),
    [("#html", "not understood"), ("#cut", "fake: "), ("#again", "repeating"), ("#key", "Incorrect API key")],
)
async def test_a_provider_that_misbehaves_is_an_error_part_and_the_conversation_stays_usable(chat, server, mark, words):
    session = f"bad-{mark[1:]}"
    read = await chat.say(session, mark)
    assert words in read.only("error")["errorText"]
    assert (await chat.say(session, "#short and this?")).text == "Short."
    assert await chat.resumed(session) is None


@pytest.fixture
async def client(chat):
    token = chat.client.headers["authorization"].removeprefix("Bearer ")
    async with openai.AsyncOpenAI(base_url=f"{chat.client.base_url}/v1", api_key=token, max_retries=0) as client:
        yield client


async def test_a_client_of_openai_gets_streams_with_usage(client):
    assert [model.id async for model in client.models.list()] == ["fake"]
    asked = {"model": "fake", "messages": [{"role": "user", "content": "#short hi"}]}
    whole = await client.chat.completions.create(**asked)
    assert (whole.choices[0].message.content, whole.choices[0].finish_reason) == ("Short.", "stop")
    chunks = [c async for c in await client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True})]
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == "Short."
    assert (chunks[-1].usage.prompt_tokens, chunks[-1].usage.completion_tokens) == (11, 7)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_of_openai_calls_tools_and_gives_their_results(client, server, stream):
    messages = [{"role": "user", "content": "#call how late is it?"}]
    tools = [{"type": "function", "function": CLOCK}]
    if stream:
        async with client.chat.completions.stream(model="fake", messages=messages, tools=tools) as events:
            message = (await events.get_final_completion()).choices[0].message
    else:
        message = (await client.chat.completions.create(model="fake", messages=messages, tools=tools)).choices[0].message
    (call,) = message.tool_calls
    assert (call.function.name, call.function.arguments) == ("read_clock", '{"zone": "UTC"}')
    result = {"role": "tool", "tool_call_id": call.id, "content": "12:00"}
    messages += [message.model_dump(exclude_none=True), result, {"role": "user", "content": "#short so?"}]
    again = await client.chat.completions.create(model="fake", messages=messages, tools=tools)
    assert again.choices[0].message.content == "Short."
    assert [m["role"] for m in server.requests[-1]["messages"]] == ["user", "assistant", "tool", "user"]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_of_openai_is_told_what_is_wrong_as_a_status(client, stream):
    asked = {"model": "fake", "messages": [{"role": "user", "content": "#key"}]}
    with pytest.raises(openai.APIStatusError, match="Incorrect API key") as refused:
        await client.chat.completions.create(**asked, stream=stream)
    assert refused.value.status_code >= 400
