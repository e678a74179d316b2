"""`/v1` with OpenAI's own client, unmodified: whole and streamed answers, tools, usage, errors."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import openai
import pytest
from fastapi import FastAPI
from openai import AsyncOpenAI

from libs.bus import NoAnswer, Refusal
from libs.contracts.envelope import Usage
from libs.contracts.inference import Complete, Completion, TextDelta
from libs.contracts.work import ToolCall
from tests.unit.gateway.conftest import TOKEN
from tests.unit.gateway.fake_bus import FakeBus

USAGE = Usage(input_tokens=7, output_tokens=3)
TOOL = {"type": "function", "function": {"name": "weather", "description": "d", "parameters": {"type": "object", "properties": {}}}}
HI: Any = [{"role": "user", "content": "Hi"}]


@pytest.fixture
async def api(app: FastAPI) -> AsyncIterator[AsyncOpenAI]:
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport) as http:
        yield AsyncOpenAI(base_url="http://server/v1", api_key=TOKEN, http_client=http, max_retries=0)


def streaming(bus: FakeBus, answer: Completion | Exception, *deltas: TextDelta) -> None:
    async def complete(_: Complete, on_frame: Any) -> Completion:
        for delta in deltas:
            await on_frame(delta.model_dump_json().encode())
        if isinstance(answer, Exception):
            raise answer
        return answer

    bus.answer(Complete, complete)


async def test_a_whole_answer(api: AsyncOpenAI, bus: FakeBus) -> None:
    streaming(bus, Completion(model="m", content="Hello", usage=USAGE))
    system: Any = [{"role": "developer", "content": [{"type": "text", "text": "be brief"}]}, *HI]
    answer = await api.chat.completions.create(model="default", messages=system, max_tokens=5, temperature=0, user="somebody")
    assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == ("Hello", "stop")
    assert answer.usage is not None
    assert answer.usage.total_tokens == 10
    asked = bus.asked[-1]
    assert (asked.tenant, asked.user, asked.model, asked.max_output_tokens, asked.stream) == ("local", "local", None, 5, False)
    assert [(m.role, m.content) for m in asked.messages] == [("system", "be brief"), ("user", "Hi")]


async def test_a_stream_holds_each_piece_once_and_the_usage_when_asked(api: AsyncOpenAI, bus: FakeBus) -> None:
    deltas = [TextDelta(text="Hel", offset=0), TextDelta(text="Hel", offset=0), TextDelta(text="lo", offset=3)]
    streaming(bus, Completion(model="m", content="Hello!", usage=USAGE), *deltas)
    stream = await api.chat.completions.create(model="m", messages=HI, stream=True, stream_options={"include_usage": True})
    chunks = [chunk async for chunk in stream]
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == "Hello!"
    assert chunks[-1].usage is not None
    assert (chunks[-1].usage.completion_tokens, chunks[-2].choices[0].finish_reason) == (3, "stop")


@pytest.mark.parametrize("told", [0, 1, 2])
async def test_calls_of_the_clients_tools_are_passed_on(api: AsyncOpenAI, bus: FakeBus, told: int) -> None:
    calls = (ToolCall(id="c1", name="weather", arguments='{"city":"上海"}'), ToolCall(id="c2", name="weather", arguments="{}"))
    deltas = [TextDelta(text="", tool_index=0, tool_call_id="c1", tool_name="weather", arguments_delta='{"city":'),
              TextDelta(text="", tool_index=0, arguments_delta='"上海"}')]  # fmt: skip
    streaming(bus, Completion(model="m", tool_calls=calls, finish_reason="tool_calls"), *deltas[:told])
    stream = await api.chat.completions.create(model="m", messages=HI, tools=[TOOL], stream=True)  # type: ignore[call-overload]  # a dict is taken
    found: dict[int, list[str]] = {}
    async for chunk in stream:
        for call in chunk.choices[0].delta.tool_calls or []:
            kept = found.setdefault(call.index, ["", "", ""])
            kept[0] += call.id or ""
            kept[1] += call.function.name or ""
            kept[2] += call.function.arguments or ""
        last = chunk.choices[0].finish_reason
    assert found == {n: [c.id, c.name, c.arguments] for n, c in enumerate(calls)}
    assert last == "tool_calls"
    assert bus.asked[-1].tools[0].name == "weather"


async def test_a_tools_answer_goes_back(api: AsyncOpenAI, bus: FakeBus) -> None:
    streaming(bus, Completion(model="m", content="sunny"))
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
    messages: Any = [
        *HI,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "sun"},
    ]
    schema: Any = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}
    await api.chat.completions.create(model="m", messages=messages, response_format=schema, tool_choice="none", tools=[TOOL])  # type: ignore[call-overload,list-item]  # dicts are taken
    asked = bus.asked[-1]
    assert (asked.messages[1].tool_calls[0].id, asked.messages[2].tool_call_id) == ("c1", "c1")
    assert (asked.json_schema, asked.tools) == ({"type": "object"}, ())


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("error", "kind", "code"),
    [
        (Refusal("budget_exceeded", "the day's budget is used up"), openai.APIStatusError, "budget_exceeded"),
        (Refusal("rate_limited", "busy", after=3), openai.RateLimitError, "rate_limited"),
        (Refusal("upstream", "HTML came"), openai.InternalServerError, "upstream"),
        (Refusal("bad_request", "no such model"), openai.APIStatusError, "bad_request"),
        (NoAnswer("nobody"), openai.InternalServerError, "unavailable"),
    ],
)
async def test_a_refusal_is_an_error_with_a_status(
    api: AsyncOpenAI, bus: FakeBus, error: Exception, kind: type[openai.APIStatusError], code: str, stream: bool
) -> None:
    streaming(bus, error)
    with pytest.raises(kind) as refused:
        await api.chat.completions.create(model="m", messages=HI, stream=stream)
    assert refused.value.code == code
    assert isinstance(refused.value.body, dict)
    assert refused.value.body["message"]


async def test_a_stream_that_breaks_off_is_an_error_of_the_client(api: AsyncOpenAI, bus: FakeBus) -> None:
    streaming(bus, Refusal("upstream", "the provider went away"), TextDelta(text="Hel", offset=0))
    stream = await api.chat.completions.create(model="m", messages=HI, stream=True)
    with pytest.raises(openai.APIError, match="went away"):
        async for _ in stream:
            pass


async def test_what_is_wrong_with_a_request_is_said_in_openais_shape(api: AsyncOpenAI) -> None:
    image: Any = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]
    with pytest.raises(openai.BadRequestError, match="image_url"):
        await api.chat.completions.create(model="m", messages=image)
    with pytest.raises(openai.UnprocessableEntityError) as refused:
        await api.chat.completions.create(model="m", messages=[])
    assert refused.value.param == "messages"
    with pytest.raises(openai.AuthenticationError) as strange:
        await api.with_options(api_key="wrong").models.list()
    assert strange.value.code == "unauthorized"


async def test_models_are_listed(api: AsyncOpenAI) -> None:
    assert [m.id async for m in api.models.list()] == ["scripted"]
    assert (await api.models.retrieve("scripted")).owned_by == "agent-coder"
    with pytest.raises(openai.NotFoundError):
        await api.models.retrieve("another")


async def test_a_reader_that_goes_ends_the_question(app: FastAPI, bus: FakeBus) -> None:
    gone = asyncio.Event()

    async def complete(_: Complete, on_frame: Any) -> Completion:
        try:
            while True:
                await on_frame(TextDelta(text="x").model_dump_json().encode())
                await asyncio.sleep(0.001)
        finally:
            gone.set()

    bus.answer(Complete, complete)
    from tests.unit.gateway.test_server import served

    async with served(app) as port, httpx.AsyncClient(trust_env=False) as http:
        body = {"model": "m", "messages": HI, "stream": True}
        headers = {"Authorization": f"Bearer {TOKEN}"}
        async with http.stream("POST", f"http://127.0.0.1:{port}/v1/chat/completions", json=body, headers=headers) as answer:
            await anext(answer.aiter_bytes())
        await asyncio.wait_for(gone.wait(), 10)
