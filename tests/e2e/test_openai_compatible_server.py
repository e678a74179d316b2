"""A real bug solved with an OpenAI-compatible server behind litellm; what its refusals and its absence look like."""

from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from libs.testkit.cases import Case, assert_solved
from libs.testkit.openai_server import OpenAiServer, error_reply
from libs.testkit.product import Product, product
from tests.e2e.perfect_model import TOKENS_IN, TOKENS_OUT, PerfectModel

KEY = "sk-of-this-suite-0001"
PRICES = {"MODEL_PRICE_IN": "3", "MODEL_PRICE_OUT": "15"}
QUICK = {"MODEL_BACKOFF_SECONDS": "0.05", "AGENT_CODER_BACKOFF_BASE_SECONDS": "0.1", "AGENT_CODER_BACKOFF_CAP_SECONDS": "0.3"}


async def test_a_real_bug_is_solved_through_litellm_and_then_the_server_refuses_and_goes_away(tmp_path, copy_case):
    case = await copy_case("parse-subseconds", tmp_path / "case")
    model = PerfectModel(case, {1: error_reply(429, "slow down", retry_after="0"), 3: error_reply(500, "the server stumbled")})
    server = OpenAiServer(model)
    async with AsyncExitStack() as up:
        await up.enter_async_context(server.running())
        environment = {"MODEL_BASE_URL": server.base_url, "MODEL_API_KEY": KEY, **PRICES, **QUICK}
        async with product(tmp_path / "home", "openai/gpt-4o", environment=environment) as running:
            await _solved_and_paid_once(running, case, server, tmp_path / "clone")

            model.always = error_reply(401, "Incorrect API key provided: this key was revoked.")
            asked = server.calls
            refused = await running.wait(await running.solve("refused", case.request()))
            assert (refused["status"], refused["usage"]["calls"], server.calls) == ("failed", 0, asked + 1)
            assert "401: Incorrect API key provided: this key was revoked." in refused["why"]

            await up.aclose()
            unreachable = await running.wait(await running.solve("gone", case.request()))
            assert unreachable["status"] == "failed"
            assert "the model's server cannot be reached" in unreachable["why"]


async def test_a_real_bug_is_solved_by_a_model_that_calls_no_tools(tmp_path, copy_case):
    case = await copy_case("unidiff-spaces-and-binary", tmp_path / "case")
    server = OpenAiServer(PerfectModel(case, form="unified_diff"))
    async with server.running():
        environment = {"MODEL_BASE_URL": server.base_url, "MODEL_EDIT_FORMAT": "unified_diff", **QUICK}
        async with product(tmp_path / "home", "house-model", environment=environment) as running:
            run_id = await running.solve(case.row["issue"]["id"], case.request())
            await running.wait(run_id)
            await assert_solved(running, case, run_id, tmp_path / "clone")
    assert {request["model"] for request in server.requests} == {"house-model"}
    assert not any("tools" in request for request in server.requests)


async def _solved_and_paid_once(running: Product, case: Case, server: OpenAiServer, place: Path) -> None:
    """Solved with tool calls in streams, through a 429 and a 500; each recorded reply was asked for once, and is counted at its price."""
    run_id = await running.solve(case.row["issue"]["id"], case.request())
    shown = await running.wait(run_id)
    await assert_solved(running, case, run_id, place)
    replies = [event["data"] for event in await running.events(run_id) if event["type"] == "run.model_replied"]
    assert server.calls == len(replies) + 2
    assert all(request["stream"] for request in server.requests)
    assert {reply["model"] for reply in replies} == {"openai/gpt-4o"}
    assert {"edit", "done"} <= {call["name"] for reply in replies for call in reply["tool_calls"]}
    cost = (TOKENS_IN * 3 + TOKENS_OUT * 15) / 1_000_000
    assert [reply["usage"]["cost_usd"] for reply in replies] == [pytest.approx(cost)] * len(replies)
    usage = shown["usage"]
    assert usage["calls"] == len(replies)
    assert (usage["input_tokens"], usage["output_tokens"]) == (TOKENS_IN * len(replies), TOKENS_OUT * len(replies))
    assert usage["cost_usd"] == pytest.approx(cost * len(replies))
    assert set(server.keys) == {KEY}
    assert KEY not in running.log()


async def test_without_a_model_an_issue_is_refused_with_the_variables_to_set(tmp_path):
    async with product(tmp_path / "home", None) as running:
        answer = await running.client.post("/api/issues/1/solve", json={"title": "Anything", "repo": str(tmp_path)})
        assert answer.status_code == 503
        assert answer.headers["content-type"] == "application/problem+json"
        problem = answer.json()
        assert problem["code"] == "no-model"
        assert "MODEL=anthropic/" in problem["next"]
        assert "MODEL_BASE_URL=" in problem["next"]
        assert (await running.client.get("/api/runs")).json()["runs"] == []
