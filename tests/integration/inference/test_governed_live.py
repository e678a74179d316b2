"""Governing on a real bus: joined streams, budgets over replicas, usage, plans, the cache, and a provider's own words."""

import asyncio
import json
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import accumulate

import pytest

from libs.bus import Refusal, Service
from libs.contracts.inference import ChatMessage, Complete, DebugCompletion, DescribeModels, ReadAccount, ReadUsage, TextDelta
from libs.testkit.broker import broker, until
from libs.testkit.openai_server import OpenAiServer, ServerReply, error_reply
from services.inference.__main__ import build
from services.inference.settings import InferenceSettings

pytestmark = pytest.mark.timeout(120)
KEY = "sk-very-secret-key-1234"
PRICED = {"model": "m", "price_in": 1.0, "price_out": 1.0}


@pytest.fixture
async def bus(tmp_path):
    async with broker(tmp_path / "home") as (server, settings):
        yield server, settings


@asynccontextmanager
async def inference(settings, replicas=1, **values):
    """The running service, and an assistant and a gateway that ask it."""
    fields = {name: field.get_default(call_default_factory=True) for name, field in InferenceSettings.model_fields.items()}
    async with AsyncExitStack() as stack:
        for _ in range(replicas):
            built = build(InferenceSettings.model_construct(**fields | {"home": settings.home, "backoff_seconds": 0.01} | values))
            await stack.enter_async_context(built.running(settings))
        assistant = await stack.enter_async_context(Service("assistant").running(settings))
        gateway = await stack.enter_async_context(Service("gateway").running(settings))
        yield assistant.bus, gateway.bus


def complete(request_id="turn-1:1", **more):
    base = {"account": "turn:1", "messages": (ChatMessage(role="user", content="go"),), "max_output_tokens": 400, "stream": True}
    return Complete(request_id=request_id, **base | more)


class Reader:
    def __init__(self):
        self.frames = []

    async def __call__(self, payload):
        self.frames.append(TextDelta.model_validate_json(payload))

    @property
    def text(self):
        return "".join(frame.text for frame in self.frames)


async def test_a_client_that_comes_back_joins_the_stream_from_its_start_and_pays_once(bus):
    server = OpenAiServer([ServerReply(reasoning="hm", content="one two three", holds_after=3, usage=(1000, 100))])
    one, two = Reader(), Reader()
    async with (
        server.running(),
        inference(bus[1], **PRICED, base_url=server.base_url) as (assistant, gateway),
    ):
        first = asyncio.create_task(assistant.ask(complete(), one))
        await until(lambda: one.text == "one ")
        second = asyncio.create_task(gateway.ask(complete(), two))
        await until(lambda: two.text == "one ")
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        server.release.set()
        answer = await second
        assert (await gateway.ask(ReadAccount(account="turn:1"))).spent.calls == 1
    assert (two.text, answer.content, answer.reasoning, answer.replayed) == ("one two three", "one two three", "hm", True)
    assert [frame.index for frame in two.frames] == list(range(len(two.frames)))
    texts = [frame for frame in two.frames if frame.text]  # the two that came after the pause may have been joined
    assert [frame.offset for frame in texts[:2]] == [0, 4]
    assert [frame.offset for frame in texts] == list(accumulate((len(frame.text) for frame in texts[:-1]), initial=0))
    assert [frame.reasoning for frame in two.frames if frame.reasoning] == ["hm"]
    assert (server.calls, server.hung_up) == (1, 0)


async def test_a_reply_that_is_over_is_told_as_a_stream_by_any_replica(bus):
    server = OpenAiServer([ServerReply(content="one two", tool_calls=({"id": "c", "name": "read", "arguments": '{"path":"x"}'},))])
    async with server.running():
        async with inference(bus[1], model="m", base_url=server.base_url) as (assistant, _):
            await assistant.ask(complete(), Reader())
        async with inference(bus[1], model="m", base_url=server.base_url) as (assistant, _):
            reader = Reader()
            answer = await assistant.ask(complete(), reader)
    assert (answer.replayed, reader.text, server.calls) == (True, "one two", 1)
    last = reader.frames[-1]
    assert (last.tool_call_id, last.tool_name, last.arguments_delta) == ("c", "read", '{"path":"x"}')


async def test_the_upstream_stream_stops_when_its_only_asker_goes_and_what_came_is_paid(bus):
    server = OpenAiServer([ServerReply(content="one two three", holds_after=3)])
    reader = Reader()
    async with (
        server.running(),
        inference(bus[1], **PRICED, base_url=server.base_url) as (assistant, gateway),
    ):
        asking = asyncio.create_task(assistant.ask(complete(), reader))
        await until(lambda: reader.text)
        asking.cancel()
        await until(lambda: server.hung_up == 1)
        await asyncio.gather(asking, return_exceptions=True)

        async def settled():
            return (await gateway.ask(ReadAccount(account="turn:1"))).reserved_usd == 0

        async with asyncio.timeout(10):
            while not await settled():
                pass
        spent = (await gateway.ask(ReadAccount(account="turn:1"))).spent
    assert 0 < spent.output_tokens < 20
    assert spent.calls == 1


async def test_a_users_day_holds_over_replicas_runs_and_paths(bus):
    server = OpenAiServer(lambda _: ServerReply(content="x", usage=(100, 400)))
    settings = {"model": "m", "base_url": server.base_url, "price_in": 0.0, "price_out": 1000.0, "user_day_usd": 2.0}
    async with server.running():
        settings["base_url"] = server.base_url
        async with inference(bus[1], replicas=2, **settings) as (assistant, gateway):
            asks = [
                (assistant if n % 2 else gateway).ask(complete(f"r{n}", account=f"run-{n}", tenant="t", user="anna", stream=bool(n % 3)))
                for n in range(12)
            ]
            outcomes = await asyncio.gather(*asks, return_exceptions=True)
            refused = [o for o in outcomes if isinstance(o, Refusal)]
            report = await gateway.ask(ReadUsage(by=("user",)))
            assert (await assistant.ask(complete("other", user="bo", tenant="t"))).content == "x"
    assert {r.code for r in refused} == {"budget_exceeded"}
    assert all("budget of anna for" in r.detail and "resets at" in r.detail and r.after > 0 for r in refused)
    assert server.calls == 5 + 1
    assert [(row.user, row.usage.calls, row.usage.cost_usd) for row in report.rows] == [("anna", 5, pytest.approx(2.0))]


async def test_a_runs_budget_is_set_for_all(bus):
    server = OpenAiServer(lambda _: ServerReply(content="x", usage=(100, 400)))
    async with (
        server.running(),
        inference(bus[1], model="m", base_url=server.base_url, price_in=0.0, price_out=1000.0, run_usd=0.5) as (
            assistant,
            _,
        ),
    ):
        await assistant.ask(complete("1", account="run:7"))
        with pytest.raises(Refusal, match=r"ceiling of \$0\.5000") as caught:
            await assistant.ask(complete("2", account="7", ceiling_usd=90.0))
    assert caught.value.code == "budget_exceeded"


async def test_usage_is_told_by_user_run_model_and_day(bus):
    server = OpenAiServer(lambda _: ServerReply(content="x", usage=(100, 10)))
    async with (
        server.running(),
        inference(bus[1], **PRICED, base_url=server.base_url) as (assistant, gateway),
    ):
        for n, (user, account) in enumerate([("anna", "run-1"), ("anna", "run-2"), ("名字 *", "turn:1")]):
            await assistant.ask(complete(str(n), user=user, tenant="t", account=account))
        report = await gateway.ask(ReadUsage(tenant="t"))
        anna = await gateway.ask(ReadUsage(user="anna", by=("user", "model")))
        nobody = await gateway.ask(ReadUsage(user="anna", tenant="other"))
    assert [(row.user, row.account, row.model, row.usage.input_tokens) for row in report.rows] == [
        ("anna", "run-1", "m", 100),
        ("anna", "run-2", "m", 100),
        ("名字 *", "turn:1", "m", 100),
    ]
    assert (report.total.calls, anna.rows[0].usage.calls, nobody.rows) == (3, 2, ())


async def test_an_equal_prompt_is_answered_from_the_cache_for_its_tenant_only(bus):
    server = OpenAiServer(lambda _: ServerReply(content="one two"))
    async with server.running(), inference(bus[1], model="m", base_url=server.base_url) as (assistant, _):
        reader = Reader()
        asked = [
            await assistant.ask(complete("1", cache_ttl_seconds=60, tenant="a")),
            await assistant.ask(complete("2", cache_ttl_seconds=60, tenant="a"), reader),
            await assistant.ask(complete("3", cache_ttl_seconds=60, tenant="b")),
            await assistant.ask(complete("4", cache_ttl_seconds=60, tenant="a", bypass_cache=True)),
        ]
    assert [answer.cached for answer in asked] == [False, True, False, False]
    assert (reader.text, server.calls) == ("one two", 3)


async def test_a_plan_chooses_the_models(bus):
    server = OpenAiServer(lambda request: ServerReply(content=request["model"]))
    async with server.running():
        models = [f'[[models]]\nname="{name}"\nbase_url="{server.base_url}"\n' for name in ("big", "small")]
        bus[1].home.mkdir(parents=True, exist_ok=True)
        (bus[1].home / "models.toml").write_text("".join(models) + '[plans]\nfree=["small"]\npro=["big","small"]\n')
        async with inference(bus[1]) as (assistant, gateway):
            answers = [(await assistant.ask(complete(str(plan), plan=plan))).content for plan in (None, "free", "pro")]
            described = await gateway.ask(DescribeModels(plan="free"))
            with pytest.raises(Refusal, match="not in the plan free"):
                await assistant.ask(complete("no", plan="free", model="big"))
    assert answers == ["big", "small", "big"]
    assert [model.name for model in described.models] == ["small"]


@pytest.mark.parametrize(
    ("reply", "outcome", "status", "body"),
    [
        (ServerReply(content="hello"), "ok", 200, '"content": "hello"'),
        (error_reply(404, "no such model"), "error", 404, '{"error": {"message": "no such model"'),
        (error_reply(402, "no balance left for " + KEY), "error", 402, "no balance left for ***"),
        (ServerReply(status=502, body="<html>Bad</html>", content_type="text/html"), "error", 502, "<html>Bad</html>"),
    ],
)
async def test_an_operator_sees_what_the_provider_said_without_secrets(bus, reply, outcome, status, body):
    server = OpenAiServer(lambda _: reply)
    async with server.running():
        (bus[1].home / "models.toml").write_text(f'[[models]]\nname="m"\nbase_url="{server.base_url}"\napi_key_env="DEBUG_TEST_KEY"\n')
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("DEBUG_TEST_KEY", KEY)
            async with inference(bus[1]) as (_, gateway):
                said = await gateway.ask(DebugCompletion(messages=(ChatMessage(role="user", content="ping"),)))
    assert (said.model, said.wire, said.outcome, said.status) == ("m", "openai/m", outcome, status)
    assert body in said.body
    assert KEY not in said.model_dump_json()
    assert server.calls == 1
    assert server.keys == [KEY]


async def test_an_operators_look_is_paid_for(bus):
    server = OpenAiServer(lambda _: ServerReply(content="x", usage=(10, 5)))
    async with server.running(), inference(bus[1], **PRICED, base_url=server.base_url) as (_, gateway):
        said = await gateway.ask(DebugCompletion(messages=(ChatMessage(role="user", content="ping"),), user="operator"))
        report = await gateway.ask(ReadUsage(user="operator"))
    assert said.usage == report.total
    assert report.total.calls == 1


async def test_the_scripted_model_streams_in_small_pieces(bus):
    path = bus[1].home / "demo.json"
    rules = [{"replies": [{"content": "你好，世界", "reasoning": "hm"}]}]
    path.write_text(json.dumps({"chunk_characters": 2, "stream_delay_seconds": 0.001, "rules": rules}))
    async with inference(bus[1], model=f"scripted:{path}") as (assistant, _):
        reader = Reader()
        answer = await assistant.ask(complete(), reader)
    assert [frame.text for frame in reader.frames] == ["", "你好", "，世", "界"]
    assert (answer.content, answer.reasoning) == ("你好，世界", "hm")
