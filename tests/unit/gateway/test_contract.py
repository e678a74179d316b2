"""The OpenAPI description: complete, and true of what is answered to anything that it allows."""

import asyncio
import functools
import json
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest
import schemathesis
from fastapi import FastAPI
from hypothesis import HealthCheck, settings
from jsonschema import Draft202012Validator
from schemathesis.generation.hypothesis.builder import HypothesisTestConfig, HypothesisTestMode, create_test
from schemathesis.specs.openapi.checks import ignored_auth, negative_data_rejection, positive_data_acceptance

from deploy.generate import PROTO
from libs.bus import NoAnswer, Refusal
from libs.contracts.artifact import (
    CreateRepository,
    Diff,
    DiffResult,
    GitToken,
    IssueGitToken,
    ListRepositories,
    Repositories,
    RepositoryDescription,
)
from libs.contracts.inference import DescribeModels
from libs.contracts.sandbox import CheckSandbox, Health
from libs.contracts.session import ReadTrace, Trace
from services.gateway.app import create_app
from services.gateway.settings import GatewaySettings
from tests.unit.gateway import conversation as conversations
from tests.unit.gateway import stories
from tests.unit.gateway.conftest import TOKEN
from tests.unit.gateway.fake_bus import FakeBus


async def test_ready_means_that_every_needed_service_answers(client: httpx.AsyncClient, bus: FakeBus) -> None:
    ready = await client.get("/readyz")
    parts = ("nats", "artifact", "inference", "sandbox", "session_store", "planner", "editor", "verifier", "assistant", "forge", "mailer")
    assert ready.json() == {"ready": True, "checks": dict.fromkeys(parts, "ok")}
    bus.silent = {"editor"}
    assert (await client.get("/readyz")).json()["checks"]["editor"] == "no answer"
    bus.answer(DescribeModels, NoAnswer("x"))
    bus.answer(ListRepositories, Refusal("unavailable", "disk full", retryable=True))
    bus.answer(CheckSandbox, Health(ok=False, backend="process", advice="allow user namespaces"))
    missing = await client.get("/readyz")
    assert missing.status_code == 503
    checks = missing.json()["checks"]
    assert (checks["inference"], checks["artifact"], checks["sandbox"]) == ("no answer", "disk full", "allow user namespaces")
    bus.connected = False
    assert (await client.get("/readyz")).json() == {"ready": False, "checks": {"nats": "not connected"}}


async def test_every_operation_names_its_problems_and_who_may_call_it(client: httpx.AsyncClient) -> None:
    document = (await client.get("/openapi.json")).json()
    assert document["openapi"].startswith("3.1")
    names = [o["operationId"] for path in document["paths"].values() for o in path.values()]
    assert len(names) == len(set(names)) == 65
    for path, operations in document["paths"].items():
        for operation in operations.values():
            assert operation["summary"], path
            assert operation["tags"], path
            if path.startswith(("/healthz", "/readyz", "/webhooks/", "/mail/")):
                assert operation["security"] == []
            if path in ("/healthz", "/readyz"):
                continue
            for status in ("401", "422", "503"):
                media = "application/json" if path.startswith("/v1/") else "application/problem+json"
                assert media in operation["responses"][status]["content"], path


async def test_every_reference_of_the_description_leads_somewhere(client: httpx.AsyncClient) -> None:
    document = (await client.get("/openapi.json")).json()

    def references(node: Any) -> list[str]:
        if isinstance(node, dict):
            own = [node["$ref"]] if isinstance(node.get("$ref"), str) else []
            return own + [r for v in node.values() for r in references(v)]
        return [r for v in node for r in references(v)] if isinstance(node, list) else []

    schemas = document["components"]["schemas"]
    for reference in references(document):
        assert reference.removeprefix("#/components/schemas/") in schemas, reference
    for schema in schemas.values():
        Draft202012Validator.check_schema(schema)


def described() -> FastAPI:
    """An application with a finished, a failed and a waiting run."""
    bus = FakeBus()
    for event in stories.whole("r1"):
        bus.add(event)
    stories.failed(bus, "r2")
    stories.waiting(bus, "r3")
    description = RepositoryDescription(name="team/app")
    bus.answer(CreateRepository, description)
    bus.answer(ListRepositories, Repositories(repositories=(description,)))
    bus.answer(IssueGitToken, GitToken(token="gt", repository="team/app", scope="read", expires_at=datetime.now(UTC)))
    bus.answer(Diff, DiffResult(diff="", changed_files=stories.FILES))
    conversations.everything(bus)
    bus.answer(ReadTrace, Trace(trace_id="a" * 32, spans=()))
    return create_app(bus, GatewaySettings(rate_limit_requests=0, stuck_after_seconds=0, heartbeat_seconds=0.01), TOKEN)


# An unknown query parameter is passed over; what a repository or branch name is, no pattern says; who may call is not described per status.
_TESTED_ELSEWHERE = (negative_data_rejection, positive_data_acceptance, ignored_auth)
OPERATIONS = [
    (method, path)
    for path, operations in json.loads((PROTO / "openapi.json").read_text())["paths"].items()
    for method in operations
    if not path.startswith("/git/") and not path.endswith("/events")
]


@functools.cache
def schema() -> schemathesis.BaseSchema:
    return schemathesis.openapi.from_asgi("/openapi.json", described(), headers={"Authorization": f"Bearer {TOKEN}"})


@settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def answered_as_described(case: schemathesis.Case) -> None:
    answer = case.call(headers={"Authorization": f"Bearer {TOKEN}"})
    case.validate_response(answer, excluded_checks=list(_TESTED_ELSEWHERE))


@pytest.mark.filterwarnings("ignore:Skipped test cases with unsupported payload media types")
@pytest.mark.parametrize(("method", "path"), OPERATIONS)
def test_whatever_the_description_allows_is_answered_as_it_says(method: str, path: str) -> None:
    """Schemathesis' examples, boundary cases and generated ones; made here, as all of them take every worker long."""
    config = HypothesisTestConfig(project=schema().config, modes=list(HypothesisTestMode))
    create_test(operation=schema()[path][method], test_func=answered_as_described, config=config)()


@pytest.mark.parametrize("path", ["/api/runs/r1", "/api/runs/r2", "/api/runs/r3"])
async def test_a_run_of_every_kind_is_as_described(path: str) -> None:
    app = described()
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://server", headers={"Authorization": f"Bearer {TOKEN}"}) as client:
        document = (await client.get("/openapi.json")).json()
        run = (await client.get(path)).json()
    await asyncio.sleep(0)
    Draft202012Validator({"$ref": "#/components/schemas/RunView", **document}).validate(json.loads(json.dumps(run)))
