"""Is the process alive, and can work be done? Neither needs a token."""

import asyncio
from typing import Any

from fastapi import APIRouter, Response

from libs.bus import NoAnswer, Permanent, Refusal, Retryable
from libs.contracts.artifact import ListRepositories
from libs.contracts.envelope import Question
from libs.contracts.inference import DescribeModels
from libs.contracts.sandbox import CheckSandbox
from libs.contracts.session import ListRuns
from services.gateway.context import Gateway, Here
from services.gateway.models import Health, Readiness

router = APIRouter(tags=["health"])
_WORKERS = ("planner", "editor", "verifier", "assistant", "forge", "mailer")


@router.get("/healthz", summary="The process answers")
async def healthz() -> Health:
    """Nothing else is asked."""
    return Health()


@router.get(
    "/readyz",
    responses={503: {"model": Readiness, "description": "Something that is needed does not answer"}},
    summary="Every needed service answers",
)
async def readyz(here: Here, response: Response) -> Readiness:
    """NATS is connected, and each service that the gateway asks gives an answer."""
    checks = {"nats": "ok" if here.bus.connected else "not connected"}
    questions: dict[str, Question[Any]] = {
        "artifact": ListRepositories(limit=1),
        "inference": DescribeModels(),
        "sandbox": CheckSandbox(),
        "session_store": ListRuns(limit=1),
    }
    if here.bus.connected:
        said = await asyncio.gather(*(_check(here, question) for question in questions.values()))
        checks |= dict(zip(questions, said, strict=True))
        workers = await asyncio.gather(*(here.bus.alive(name, here.settings.check_timeout_seconds) for name in _WORKERS))
        checks |= {name: "ok" if alive else "no answer" for name, alive in zip(_WORKERS, workers, strict=True)}
    ready = all(word == "ok" for word in checks.values())
    response.status_code = 200 if ready else 503
    return Readiness(ready=ready, checks=checks)


async def _check(here: Gateway, question: Question[Any]) -> str:
    try:
        answer = await here.bus.ask(question, timeout_seconds=here.settings.check_timeout_seconds)
    except NoAnswer:
        return "no answer"
    except (Refusal, Permanent, Retryable) as error:
        return str(error)
    return (getattr(answer, "advice", "") or "not ok") if getattr(answer, "ok", True) is False else "ok"
