"""Both ways to a server, litellm and the direct one, against one that behaves badly in every way that servers do."""

import asyncio
import json

import pytest
import pytest_asyncio
from pydantic import SecretStr

from libs.contracts.inference import ChatMessage, Complete, ModelDescription, ToolDefinition
from libs.testkit.broker import until
from libs.testkit.openai_server import OpenAiServer, ServerReply, error_reply
from services.inference.domain import Call, ModelSpec, Price, ProviderFailure
from services.inference.litellm_provider import LiteLlmProvider
from services.inference.openai_provider import OpenAiProvider

KEY = "sk-very-secret-key-1234"
READ = ToolDefinition(name="read", description="Read a file", parameters={"type": "object", "properties": {"path": {"type": "string"}}})


def question(**more):
    return Complete(
        **{"request_id": "r", "account": "a", "messages": (ChatMessage(role="user", content="go"),), "max_output_tokens": 500} | more
    )


@pytest_asyncio.fixture(params=[LiteLlmProvider, OpenAiProvider])
async def make(request):
    """A function that makes providers, which are closed in the end."""
    made = []

    def provider(spec):
        made.append(request.param(spec))
        return made[-1]

    yield provider
    for one in made:
        await one.close()


async def ask(make, *replies, stream=False, timeout_seconds=30.0, wire="openai/m", price=None, **more):
    """A reply, the server that gave it and the text that was streamed."""
    server, seen = OpenAiServer(list(replies)), []

    async def on_delta(delta):
        if delta.text:
            seen.append(delta.text)

    async with server.running():
        spec = ModelSpec(
            description=ModelDescription(name="m"), wire=wire, base_url=server.base_url, api_key=SecretStr(KEY), price=price or Price()
        )
        raw = await make(spec).complete(Call(question(**more), 0, timeout_seconds), on_delta if stream else None)
    return raw, server, seen


async def failure(make, *replies, **more):
    with pytest.raises(ProviderFailure) as caught:
        await ask(make, *replies, **more)
    return caught.value


async def test_a_reply_with_its_usage(make):
    raw, server, _ = await ask(make, ServerReply(content="hello", reasoning="hm", usage=(20, 5), cached_tokens=8))
    assert (raw.content, raw.reasoning, raw.finish_reason) == ("hello", "hm", "stop")
    assert (raw.input_tokens, raw.output_tokens, raw.cached_tokens) == (20, 5, 8)
    assert server.keys == [KEY]
    assert server.requests[0]["max_tokens"] == 500


async def test_text_is_streamed_and_counted(make):
    raw, server, seen = await ask(make, ServerReply(content="one two three", usage=(20, 5)), stream=True)
    assert seen == ["one ", "two ", "three"]
    assert (raw.content, raw.finish_reason, raw.input_tokens, raw.output_tokens) == ("one two three", "stop", 20, 5)
    assert server.requests[0]["stream_options"] == {"include_usage": True}


@pytest.mark.parametrize("stream", [False, True])
async def test_tool_calls_come_with_their_arguments_as_written(make, stream):
    calls = ({"id": "a", "name": "read", "arguments": '{"path":"x"}'}, {"id": "b", "name": "read", "arguments": '{"path": "cut'})
    raw, server, _ = await ask(make, ServerReply(tool_calls=calls), stream=stream, tools=(READ,))
    assert [(c.id, c.name, c.arguments) for c in raw.tool_calls] == [("a", "read", '{"path":"x"}'), ("b", "read", '{"path": "cut')]
    assert server.requests[0]["tools"][0]["function"]["name"] == "read"


async def test_odd_deltas_are_put_together(make):
    deltas = (
        {"tool_calls": [{"index": -1, "function": {"name": "read", "arguments": '{"path"'}}]},
        {"tool_calls": [{"index": -1, "function": {"arguments": ':"x"}'}}]},
        {"tool_calls": [{"index": 0, "id": "b", "function": {"name": "read", "arguments": {"path": "y"}}}]},
    )
    raw, _, _ = await ask(make, ServerReply(deltas=deltas, finish_reason="tool_calls"), stream=True, tools=(READ,))
    assert [json.loads(c.arguments)["path"] for c in raw.tool_calls] == ["x", "y"]


async def test_a_history_with_a_lost_result_and_broken_arguments_reaches_the_server_whole(make):
    history = (
        ChatMessage(role="user", content="go"),
        ChatMessage(role="assistant", tool_calls=({"id": "a", "name": "read", "arguments": '{"pa'},)),
        ChatMessage(role="user", content="on"),
    )
    _, server, _ = await ask(make, ServerReply(content="ok"), messages=history, tools=(READ,))
    sent = server.requests[0]["messages"]
    assert [m["role"] for m in sent] == ["user", "assistant", "tool", "user"]
    assert sent[2]["tool_call_id"] == "a"
    json.loads(sent[1]["tool_calls"][0]["function"]["arguments"])


async def test_a_schema_is_asked_for_in_words_where_the_parameter_is_not_known_to_work(make):
    schema = {"type": "object", "properties": {"steps": {"type": "array"}}}
    _, server, _ = await ask(make, ServerReply(content="{}"), json_schema=schema)
    assert '"steps"' in server.requests[0]["messages"][0]["content"]
    assert "response_format" not in server.requests[0]


async def test_a_schema_is_asked_for_with_the_parameter_of_a_model_that_takes_it():
    schema = {"type": "object", "properties": {"steps": {"type": "array"}}}
    _, server, _ = await ask(LiteLlmProvider, ServerReply(content="{}"), json_schema=schema, wire="openai/gpt-4o")
    assert server.requests[0]["response_format"]["json_schema"]["schema"] == schema


async def test_the_cost_is_that_of_the_list_with_cached_tokens_cheaper():
    listed = Price(input_usd=2.5, output_usd=10.0, source="listed")
    raw, _, _ = await ask(
        LiteLlmProvider, ServerReply(content="x", usage=(1000, 100), cached_tokens=500), wire="openai/gpt-4o", price=listed
    )
    assert raw.cost_usd == pytest.approx(0.002875)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_429_is_one_call_that_may_be_tried_after_the_time_said(make, stream):
    no = await failure(make, error_reply(429, "slow down", retry_after="3"), stream=stream)
    assert (no.code, no.retryable, no.retry_after_seconds, no.paid, no.status) == ("rate_limited", True, 3.0, False, 429)
    assert no.detail == "429: slow down"


async def test_a_provider_does_not_retry_by_itself(make):
    server = OpenAiServer(lambda _: error_reply(500, "boom"))
    async with server.running():
        spec = ModelSpec(description=ModelDescription(name="m"), wire="openai/m", base_url=server.base_url)
        with pytest.raises(ProviderFailure):
            await make(spec).complete(Call(question()), None)
    assert server.calls == 1


@pytest.mark.parametrize(
    ("reply", "code", "retryable", "says"),
    [
        (error_reply(500, "boom"), "upstream", True, "500: boom"),
        (error_reply(401, "Incorrect API key provided: " + KEY), "upstream", False, "401: Incorrect API key provided: ***"),
        (error_reply(404, "no such model"), "upstream", False, "404: no such model"),
        (error_reply(400, "bad thing"), "upstream", False, "400: bad thing"),
        (error_reply(429, "quota", "insufficient_quota"), "upstream", False, "429: quota"),
        (
            error_reply(400, "This model's maximum context length is 10 tokens", "context_length_exceeded"),
            "bad_request",
            False,
            "longer than",
        ),
        (ServerReply(status=502, body="<html><b>Bad</b></html>", content_type="text/html"), "upstream", True, "502"),
    ],
)
async def test_errors_reach_the_person_as_the_provider_said_them(make, reply, code, retryable, says):
    no = await failure(make, reply)
    assert (no.code, no.retryable, no.paid) == (code, retryable, False)
    assert says in no.detail
    assert KEY not in no.detail


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "reply",
    [
        pytest.param(ServerReply(body="<html><body>Sign in</body></html>", content_type="text/html"), id="a page in place of a reply"),
        pytest.param(ServerReply(body='{"id":', content_type="application/json"), id="half of a JSON text"),
        pytest.param(ServerReply(body='{"id": "x", "object": "chat.completion", "choices": []}'), id="no choices"),
    ],
)
async def test_a_reply_that_is_none_is_a_failure(make, reply, stream):
    no = await failure(make, reply, stream=stream)
    assert (no.code, no.retryable) == ("upstream", True)
    assert no.detail


@pytest.mark.parametrize("reply", [ServerReply(content="a b c d", cut_after=3), ServerReply(content="a b c", ends_early=True)])
async def test_a_stream_that_ends_in_mid_reply_is_never_a_reply(make, reply):
    no = await failure(make, reply, stream=True)
    assert (no.code, no.retryable, no.paid) == ("upstream", True, True)


async def test_a_whole_reply_that_is_cut_off_is_a_failure_of_unknown_end(make):
    no = await failure(make, ServerReply(content="hello", cut_after=1))
    assert (no.code, no.retryable, no.paid) == ("upstream", True, True)


async def test_silence_ends_at_the_deadline(make):
    no = await failure(make, ServerReply(delay_seconds=60), timeout_seconds=0.3)
    assert (no.code, no.retryable, no.paid) == ("upstream", True, True)


async def test_a_server_that_is_not_there_is_named_and_costs_nothing(make):
    spec = ModelSpec(description=ModelDescription(name="m"), wire="openai/m", base_url="http://127.0.0.1:9/v1")
    with pytest.raises(ProviderFailure, match="cannot be reached") as caught:
        await make(spec).complete(Call(question()), None)
    assert (caught.value.retryable, caught.value.paid) == (True, False)


async def test_many_calls_at_once_are_kept_apart(make):
    server = OpenAiServer(lambda request: ServerReply(content=request["messages"][0]["content"]))
    async with server.running():
        spec = ModelSpec(description=ModelDescription(name="m"), wire="openai/m", base_url=server.base_url)
        provider = make(spec)
        prompts = [question(messages=(ChatMessage(role="user", content=f"prompt {n}"),)) for n in range(20)]
        replies = await asyncio.gather(*(provider.complete(Call(prompt), None) for prompt in prompts))
    assert [r.content for r in replies] == [f"prompt {n}" for n in range(20)]


async def test_a_text_that_is_said_once_more_in_the_last_event_is_said_once(make):
    deltas = ({"content": "one "}, {"content": "two three"})
    repeats = {"index": 0, "delta": {"content": "one two three"}, "finish_reason": "stop"}
    raw, _, seen = await ask(make, ServerReply(deltas=deltas, last_choice=repeats), stream=True)
    assert raw.content == "".join(seen) == "one two three"


async def test_a_refrain_in_the_middle_of_a_text_stays(make):
    deltas = ({"content": "la la "}, {"content": "la la\n"}, {"content": "la la la la\n"}, {"content": "end"})
    raw, _, seen = await ask(make, ServerReply(deltas=deltas), stream=True)
    assert raw.content == "".join(seen) == "la la la la\nla la la la\nend"


async def test_a_model_that_repeats_itself_without_end_is_stopped(make):
    no = await failure(make, ServerReply(deltas=({"content": "again "},) * 2000), stream=True)
    assert (no.code, no.retryable, no.paid) == ("upstream", True, True)
    assert "repeating" in no.detail


@pytest.mark.parametrize(
    "deltas",
    [
        pytest.param(
            ({"tool_calls": [{"index": 0, "id": "a", "function": {"name": "read", "arguments": ""}}]},
             {"tool_calls": [{"index": 0, "function": {"arguments": '{"path":"x"}'}}]}),
            id="arguments in the last event only",
        ),
        pytest.param(
            ({"tool_calls": [{"index": 0, "id": "a", "function": {"name": "read", "arguments": '{"path":"x"}'}}]},) * 2,
            id="the call twice",
        ),
    ],
)  # fmt: skip
async def test_a_call_is_one_call_however_it_comes(make, deltas):
    raw, _, _ = await ask(make, ServerReply(deltas=deltas, finish_reason="tool_calls"), stream=True, tools=(READ,))
    assert [(c.id, c.name, c.arguments) for c in raw.tool_calls] == [("a", "read", '{"path":"x"}')]


async def test_a_stream_that_is_given_up_is_closed_upstream(make):
    server = OpenAiServer([ServerReply(content="one two", holds_after=2)])
    begun = asyncio.Event()

    async def on_delta(_):
        begun.set()

    async with server.running():
        spec = ModelSpec(description=ModelDescription(name="m"), wire="openai/m", base_url=server.base_url)
        asking = asyncio.create_task(make(spec).complete(Call(question()), on_delta))
        await begun.wait()
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        await until(lambda: server.hung_up == 1)
