"""Equal prompts share a reply when the asker wants it, and nothing else does."""

from datetime import UTC, datetime, timedelta

import pytest

from libs.bus.errors import NoAnswer
from libs.contracts.envelope import Usage
from libs.contracts.inference import ChatMessage, Complete, Completion, ModelDescription, ToolDefinition
from services.inference.cache import Cache, cache_key
from services.inference.domain import ModelSpec
from services.inference.store import MemoryRecords

SPEC = ModelSpec(description=ModelDescription(name="m"), wire="openai/m", base_url="http://a/v1")
TOOL = ToolDefinition(name="read", description="", parameters={"type": "object"})


class Clock:
    def __init__(self):
        self.now = datetime(2026, 1, 1, tzinfo=UTC)

    def __call__(self):
        return self.now


def question(**more):
    base = {"request_id": "r", "account": "a", "messages": (ChatMessage(role="user", content="go"),), "cache_ttl_seconds": 60}
    return Complete(**base | more)


REPLY = Completion(model="m", content="hello", usage=Usage(input_tokens=5, cost_usd=0.1, calls=1))


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def cache(clock):
    return Cache(MemoryRecords(), clock)


async def test_an_equal_prompt_is_answered_at_no_cost_whoever_asks_and_whatever_for(cache):
    await cache.keep(question(), SPEC, REPLY)
    found = await cache.find(question(request_id="other", account="b", purpose="chat", stream=True), SPEC)
    assert (found.content, found.cached, found.usage) == ("hello", True, Usage())


@pytest.mark.parametrize(
    "other",
    [
        {"messages": (ChatMessage(role="user", content="go "),)},
        {"messages": (ChatMessage(role="system", content="go"),)},
        {"tools": (TOOL,)},
        {"json_schema": {"type": "object"}},
        {"temperature": 0.0},
        {"max_output_tokens": 100},
        {"tenant": "another"},
    ],
)
async def test_what_a_reply_depends_on_is_part_of_the_key(cache, other):
    await cache.keep(question(), SPEC, REPLY)
    assert await cache.find(question(**other), SPEC) is None


def test_another_model_or_server_has_another_key():
    specs = [SPEC, SPEC.model_copy(update={"wire": "openai/n"}), SPEC.model_copy(update={"base_url": "http://b/v1"})]
    assert len({cache_key(question(), spec) for spec in specs}) == 3


async def test_it_is_off_unless_it_is_asked_for(cache):
    await cache.keep(question(cache_ttl_seconds=None), SPEC, REPLY)
    assert await cache.find(question(), SPEC) is None
    await cache.keep(question(), SPEC, REPLY)
    assert await cache.find(question(cache_ttl_seconds=None), SPEC) is None


async def test_a_reply_is_never_older_than_its_asker_allows(cache, clock):
    await cache.keep(question(cache_ttl_seconds=3600), SPEC, REPLY)
    clock.now += timedelta(seconds=61)
    assert await cache.find(question(cache_ttl_seconds=60), SPEC) is None
    assert await cache.find(question(cache_ttl_seconds=62), SPEC) is not None


async def test_a_bypass_takes_nothing_and_replaces_what_is_kept(cache):
    await cache.keep(question(), SPEC, REPLY)
    assert await cache.find(question(bypass_cache=True), SPEC) is None
    await cache.keep(question(bypass_cache=True), SPEC, REPLY.model_copy(update={"content": "new"}))
    assert (await cache.find(question(), SPEC)).content == "new"


@pytest.mark.parametrize("reason", ["length", "content_filter"])
async def test_a_reply_that_was_cut_off_is_not_kept(cache, reason):
    await cache.keep(question(), SPEC, REPLY.model_copy(update={"finish_reason": reason}))
    assert await cache.find(question(), SPEC) is None


async def test_a_cache_that_cannot_be_reached_is_an_empty_one():
    class Down(MemoryRecords):
        async def get(self, key):
            raise NoAnswer("down")

        async def put(self, key, value, expected_revision=None):
            raise NoAnswer("down")

    cache = Cache(Down())
    await cache.keep(question(), SPEC, REPLY)
    assert await cache.find(question(), SPEC) is None
