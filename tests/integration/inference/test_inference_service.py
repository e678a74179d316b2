"""The service on a real bus: streams, replays, budgets, fallbacks, refusals; real litellm against a test server."""

import asyncio
import json
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from libs.bus import Refusal, Service
from libs.contracts.inference import ChatMessage, Complete, DescribeModels, ReadAccount, TextDelta
from libs.testkit.broker import broker, until
from libs.testkit.openai_server import OpenAiServer, ServerReply, error_reply
from services.inference.__main__ import build
from services.inference.settings import InferenceSettings

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
async def bus(tmp_path):
    async with broker(tmp_path / "home") as (server, settings):
        yield server, settings


@asynccontextmanager
async def inference(settings, replicas=1, **values):
    """The running service and an editor and a gateway that ask it."""
    async with AsyncExitStack() as stack:
        for _ in range(replicas):
            built = build(InferenceSettings.model_construct(**_values(settings, values)))
            await stack.enter_async_context(built.running(settings))
        editor = await stack.enter_async_context(Service("editor").running(settings))
        gateway = await stack.enter_async_context(Service("gateway").running(settings))
        yield editor.bus, gateway.bus


def _values(settings, values):
    defaults = {name: field.get_default(call_default_factory=True) for name, field in InferenceSettings.model_fields.items()}
    return defaults | {"home": settings.home, "backoff_seconds": 0.01} | values


def complete(request_id="run-1:edit:1", **more):
    messages = (ChatMessage(role="user", content="go"),)
    return Complete(request_id=request_id, account="run-1", purpose="edit", messages=messages, max_output_tokens=400, **more)


def script(home, **content):
    home.mkdir(parents=True, exist_ok=True)
    path = home / "demo.json"
    path.write_text(json.dumps(content))
    return f"scripted:{path}"


async def test_without_a_model_the_answer_says_what_to_set(bus):
    async with inference(bus[1]) as (editor, gateway):
        models = await gateway.ask(DescribeModels())
        assert models.models == ()
        assert "MODEL=" in models.advice
        with pytest.raises(Refusal, match="ANTHROPIC_API_KEY") as caught:
            await editor.ask(complete())
        assert caught.value.code == "no_model"


async def test_the_scripted_model_is_visible_as_such(bus):
    name = script(bus[1].home, rules=[{"replies": [{"content": "hello"}]}])
    async with inference(bus[1], model=name) as (editor, gateway):
        (model,) = (await gateway.ask(DescribeModels())).models
        assert (model.name, model.scripted) == ("scripted:demo", True)
        assert (await editor.ask(complete())).model == "scripted:demo"


async def test_a_reply_is_streamed_counted_and_replayed(bus):
    server = OpenAiServer([ServerReply(content="one two three", usage=(1000, 100))])
    seen = []

    async def on_frame(payload):
        seen.append(TextDelta.model_validate_json(payload).text)

    async with server.running(), inference(bus[1], model="m", base_url=server.base_url, price_in=1.0, price_out=10.0) as (editor, gateway):
        first = await editor.ask(complete(stream=True), on_frame)
        again = await editor.ask(complete(stream=True), on_frame)
        account = await gateway.ask(ReadAccount(account="run-1"))
    assert "".join(seen) == first.content + again.content == "one two threeone two three"
    assert (first.replayed, again.replayed, server.calls) == (False, True, 1)
    assert first.usage.cost_usd == account.spent.cost_usd == pytest.approx(0.002)
    assert (account.spent.calls, account.reserved_usd) == (1, 0.0)


async def test_a_recorded_reply_outlives_the_service(bus):
    server = OpenAiServer([ServerReply(content="paid once")])
    async with server.running():
        async with inference(bus[1], model="m", base_url=server.base_url) as (editor, _):
            await editor.ask(complete())
        async with inference(bus[1], model="m", base_url=server.base_url) as (editor, _):
            assert (await editor.ask(complete())).replayed
    assert server.calls == 1


async def test_the_same_request_at_two_replicas_is_one_call(bus):
    server = OpenAiServer(lambda _: ServerReply(content="x", delay_seconds=0.3))
    async with server.running(), inference(bus[1], replicas=2, model="m", base_url=server.base_url) as (editor, _):
        answers = await asyncio.gather(*(editor.ask(complete()) for _ in range(6)))
    assert server.calls == 1
    assert sorted(a.replayed for a in answers) == [False] + [True] * 5


async def test_a_429_and_a_500_on_the_way_cost_nothing_and_are_not_seen(bus):
    server = OpenAiServer([error_reply(429, "slow", retry_after="0.01"), error_reply(500, "boom"), ServerReply(content="ok")])
    async with server.running(), inference(bus[1], model="m", base_url=server.base_url) as (editor, gateway):
        assert (await editor.ask(complete())).content == "ok"
        assert (await gateway.ask(ReadAccount(account="run-1"))).spent.calls == 1
    assert server.calls == 3


async def test_the_fallback_says_that_it_answered(bus):
    server = OpenAiServer(lambda _: error_reply(503, "down"))
    name = script(bus[1].home, rules=[{"replies": [{"content": "from the script"}]}])
    async with server.running(), inference(bus[1], model="m", base_url=server.base_url, fallbacks=name) as (editor, _):
        answer = await editor.ask(complete())
    assert (answer.model, answer.content, server.calls) == ("scripted:demo", "from the script", 3)


async def test_an_upstream_error_reaches_the_asker_as_it_is(bus):
    server = OpenAiServer([error_reply(401, "Incorrect API key provided")])
    async with server.running(), inference(bus[1], model="m", base_url=server.base_url) as (editor, _):
        with pytest.raises(Refusal, match="m: 401: Incorrect API key provided") as caught:
            await editor.ask(complete())
    assert (caught.value.code, caught.value.retryable) == ("upstream", False)


async def test_a_ceiling_is_kept_over_calls(bus):
    server = OpenAiServer(lambda _: ServerReply(content="x", usage=(100, 400)))
    async with server.running(), inference(bus[1], model="m", base_url=server.base_url, price_in=100.0, price_out=1000.0) as (editor, _):
        await editor.ask(complete("1", ceiling_usd=0.5))
        with pytest.raises(Refusal, match="spent") as caught:
            await editor.ask(complete("2", ceiling_usd=0.5))
    assert caught.value.code == "budget_exceeded"
    assert server.calls == 1


async def test_a_call_whose_asker_goes_away_is_stopped_and_free_to_ask_again(bus):
    replies = [ServerReply(content="late", delay_seconds=60), ServerReply(content="second")]
    server = OpenAiServer(replies)
    async with server.running(), inference(bus[1], model="m", base_url=server.base_url, price_in=1.0, price_out=1.0) as (editor, gateway):
        asking = asyncio.create_task(editor.ask(complete()))
        await until(lambda: server.calls == 1)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        assert (await editor.ask(complete())).content == "second"
        assert (await gateway.ask(ReadAccount(account="run-1"))).spent.calls == 2


async def test_a_restart_of_the_server_of_messages_in_mid_call_loses_no_reply(bus):
    broker_, settings = bus
    server = OpenAiServer(lambda _: ServerReply(content="paid", delay_seconds=1.0))
    async with server.running(), inference(settings, model="m", base_url=server.base_url) as (editor, _):
        asking = asyncio.create_task(editor.ask(complete()))
        await until(lambda: server.calls == 1)
        await broker_.stop()
        await broker_.start_process()
        await asyncio.gather(asking, return_exceptions=True)
        assert (await editor.ask(complete())).content == "paid"
    assert server.calls == 1
