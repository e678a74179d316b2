"""The planner's decisions, pure: what a model's answer says, which commands a run uses, and what an end means to a person."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from libs.bus import Permanent, Refusal
from libs.contracts.envelope import JsonObject
from libs.contracts.inference import Completion
from libs.contracts.run import Plan, Policy, RunOpened, RunRejected
from libs.contracts.team import RunFollowedUp
from libs.repository import Command

PLAN_SCHEMA: JsonObject = {
    "type": "object",
    "additionalProperties": False,
    "required": ["summary", "steps"],
    "properties": {
        "summary": {"type": "string"},
        "steps": {
            "type": "array",
            "minItems": 1,
            "maxItems": 5,
            "items": {
                "type": "object",
                "additionalProperties": False,
                "required": ["title", "detail", "why", "files"],
                "properties": {
                    "title": {"type": "string"},
                    "detail": {"type": "string"},
                    "why": {"type": "string"},
                    "files": {"type": "array", "items": {"type": "string"}},
                },
            },
        },
    },
}
# What to do about a refusal whose own words do not say it.
_ADVICE: Mapping[str, str] = {
    "unknown_base": "Name a branch, tag or commit that exists as `base`, or leave it out for the default branch.",
    "authentication_required": "Make the repository readable for this installation, or push it to the artifact store first.",
    "no_model": "Configure a model, for example MODEL=anthropic/<model> with its key, then retry the run.",
}
_FENCE = re.compile(r"```[\w-]*\n(.*?)```", re.DOTALL)
_MAX_STARTS = 1000
_DRIVE = re.compile(r"^[A-Za-z]:")


class BadPlan(Exception):
    """A model's answer is no usable plan; the text tells the model what is wrong."""


def parse_plan(reply: Completion) -> Plan:
    """The plan in an answer: JSON alone, in a fence, amid prose, or as the arguments of a tool call. Raises BadPlan."""
    texts = [reply.content, *(call.arguments for call in reply.tool_calls)]
    found = [value for text in texts for value in _objects(text)]
    if not found:
        cut = " It was cut off at its length limit; be shorter." if reply.finish_reason == "length" else ""
        raise BadPlan(f"The answer holds no JSON object.{cut}")
    raw = next((value for value in found if isinstance(value, dict) and "steps" in value), found[0])
    try:
        plan = Plan.model_validate(_tidied(raw))
    except ValidationError as error:
        faults = [f"{'.'.join(map(str, fault['loc'])) or 'plan'}: {fault['msg']}" for fault in error.errors(include_url=False)]
        raise BadPlan("; ".join(faults[:8])) from None
    if faults := [fault for step in plan.steps for path in step.files if (fault := _path_fault(path))]:
        raise BadPlan("; ".join(faults[:8]))
    return plan


def _objects(text: str) -> Iterator[Any]:
    """The JSON values of a text, the likeliest first."""
    decoder = json.JSONDecoder(strict=False)
    for candidate in (text, *_FENCE.findall(text)):
        try:
            yield json.loads(candidate, strict=False)
        except (ValueError, RecursionError):
            continue
    position = text.find("{")
    for _ in range(_MAX_STARTS):  # each costs as much as the text before it is long
        if position < 0:
            return
        try:
            value, position = decoder.raw_decode(text, position)
            yield value
        except (ValueError, RecursionError):
            position += 1
        position = text.find("{", position)


def _tidied(raw: Any) -> Any:
    """Forms that models often use for the same thing: a list of steps alone, a plan inside of a `plan` field, one file as a string."""
    if isinstance(raw, list):
        raw = {"steps": raw}
    if not isinstance(raw, dict):
        return raw
    if isinstance(raw.get("plan"), dict) and "steps" not in raw:
        raw = raw["plan"]
    steps = raw.get("steps")
    return raw | {"steps": [_tidied_step(step) for step in steps]} if isinstance(steps, list) else raw


def _tidied_step(step: Any) -> Any:
    if isinstance(step, str):
        return {"title": step[:300], "detail": step}
    if isinstance(step, dict):
        files = step.get("files")
        paths = [files] if isinstance(files, str) else [path.removeprefix("./") if isinstance(path, str) else path for path in files or ()]
        return {key: value for key, value in step.items() if value is not None} | {"files": paths}
    return step


def _path_fault(path: str) -> str:
    """Why a plan may not name `path`, empty when it may."""
    parts = path.replace("\\", "/").split("/")
    if not path.strip() or "\0" in path or len(path) > 4096:
        return f"{path[:80]!r} is no path"
    if path.startswith(("/", "~", "\\")) or _DRIVE.match(path):
        return f"{path[:200]!r} is absolute; name files relative to the root of the repository"
    if ".." in parts:
        return f"{path[:200]!r} leaves the repository; name files inside of it, without '..'"
    return f"{path[:200]!r} belongs to git" if any(part.lower() == ".git" for part in parts) else ""


def next_attempt(event: RunOpened | RunRejected | RunFollowedUp, policy: Policy, round_from: int, retried_from: int = 0) -> int:
    """The number of the attempt that `event` asks for.

    `round_from` attempts were made before the newest follow-up, `retried_from` before a person sent the run to work again after its last.
    Raises Permanent when the policy allows no more since then.
    """
    if not isinstance(event, RunRejected):
        return round_from + 1
    made = event.attempt - max(round_from, retried_from)
    if made < policy.max_attempts:
        return event.attempt + 1
    reasons = "; ".join(event.verdict.reasons) or event.verdict.outcome.replace("_", " ")
    tries = f"{made} attempts" if made > 1 else "1 attempt"
    if round_from and event.verdict.outcome == "no_change":
        raise Permanent(
            f"Nothing more was changed in {tries}, so the branch stays as it was. Say which code is to change, or leave it as it is.",
            kind="attempts",
        )
    raise Permanent(
        f"No change passed after {tries}. The last one: {reasons}. A retry makes as many again: say with it what should be different.",
        kind="attempts",
    )


def for_a_person(refusal: Refusal) -> Exception:
    """A refused question as the run's reason, with what to do about it; one that may work later stays as it is."""
    if refusal.code == "budget_exceeded":
        return Permanent(refusal.detail, kind="limit")
    if refusal.retryable or refusal.code not in _ADVICE:
        return refusal
    return Permanent(f"{refusal.detail.rstrip('.')}. {_ADVICE[refusal.code]}")


def shell_lines(commands: Sequence[Command]) -> tuple[str, ...]:
    """Commands as a plan names them; the failure of an optional one does not count."""
    return tuple(f"(\n{command.run}\n) || true" if command.optional else command.run for command in commands)[:20]
