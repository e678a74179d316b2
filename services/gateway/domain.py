"""Pure decisions of the gateway: ids of runs, what a request may say."""

import hashlib
import json
import re
import secrets
from collections.abc import Callable
from datetime import datetime
from typing import get_args

from libs.contracts.envelope import JsonObject
from libs.contracts.fold import Recorded
from libs.contracts.inbound import SolveIssue
from libs.contracts.run import RunApproved, RunEvent, RunOpened, RunRetried
from libs.contracts.sources import may_name
from libs.contracts.work import StepName
from services.gateway.problems import Problem

_CROCKFORD = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
RUN_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_REMOTE = re.compile(r"(?:https?|ssh|git|file)://[^\s]+|[A-Za-z0-9_][\w.-]*@[A-Za-z0-9][\w.-]*:[^\s:][^\s]*")
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]*(?:/[a-z0-9][a-z0-9._-]*){0,3}")
_BAD_BRANCH = re.compile(r"^[-/.]|\.\.|//|@\{|[\s~^:?*\[\\]|[/.]$|\.lock$")
_LINE_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_TEXT_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff]")


def new_run_id(now: datetime) -> str:
    """A random id that sorts by time: 26 characters of Crockford's base 32, 48 bits of milliseconds and 80 of chance (the ULID layout)."""
    value = (int(now.timestamp() * 1000) << 80) | secrets.randbits(80)
    return "".join(_CROCKFORD[(value >> shift) & 31] for shift in range(125, -1, -5))


def digest(command: SolveIssue) -> str:
    """SHA-256 of what is asked for, equal for equal requests whatever the order of their fields."""
    return hashlib.sha256(json.dumps(command.model_dump(mode="json"), sort_keys=True).encode()).hexdigest()


def one_line(text: str) -> str:
    """`text` when it is one line without control characters. Raises ValueError."""
    found = _LINE_CONTROL.search(text)
    if found:
        raise ValueError(f"must be one line without control characters (found U+{ord(found[0]):04X} at character {found.start() + 1})")
    return text


def plain_text(text: str) -> str:
    """`text` when its only control characters are tab and line ends. Raises ValueError."""
    found = _TEXT_CONTROL.search(text)
    if found:
        raise ValueError(f"must not hold control characters (found U+{ord(found[0]):04X} at character {found.start() + 1})")
    return text


def not_blank(text: str) -> str:
    """`text` when somebody can read something in it. Raises ValueError."""
    if not text.strip():
        raise ValueError("must not be empty")
    return text


def repository_source(text: str) -> str:
    """`text` when it looks like a URL, an absolute path or the name of an artifact repository. Raises ValueError."""
    one_line(text)
    if text.startswith("/") or _REMOTE.fullmatch(text) or (_NAME.fullmatch(text) and ".." not in text):
        return text
    raise ValueError(
        "must be a URL (https://…, ssh://…, git@host:path), an absolute path on the server, or the name of an artifact repository"
    )


def branch_name(text: str) -> str:
    """`text` when git would take it as a branch, tag or commit. Raises ValueError."""
    one_line(text)
    if not text or _BAD_BRANCH.search(text):
        raise ValueError("is not the name of a branch, tag or commit")
    return text


def check_command(command: SolveIssue) -> SolveIssue:
    """A command from outside of HTTP, held to the same rules. Raises ValueError; the text names the field."""
    checks: list[tuple[str, str, Callable[[str], str]]] = [
        ("issue.id", command.issue.id, lambda text: one_line(not_blank(text))),
        ("issue.title", command.issue.title, lambda text: one_line(not_blank(text))),
        ("issue.body", command.issue.body, plain_text),
        ("repo", command.repo, repository_source),
    ]
    if command.base is not None:
        checks.append(("base", command.base, branch_name))
    if command.policy.model is not None:
        checks.append(("policy.model", command.policy.model, one_line))
    for name in ("setup_commands", "test_commands"):
        checks.extend((f"policy.{name}", line, plain_text) for line in getattr(command.policy, name) or ())
    for field, text, check in checks:
        try:
            check(text)
        except ValueError as error:
            raise ValueError(f"{field} {error}") from error
    return command


def check_source(repo: str, tenant: str) -> None:
    """Only the installation's own tenant may name its repositories and folders, and use its ssh keys. Raises Problem 403."""
    if not may_name(tenant, repo):
        raise Problem(403, "source-not-allowed", "this repository belongs to the installation itself", "give an http or https URL")


def opening(
    command: SolveIssue, run_id: str, now: datetime, *, by: str, origin: str, tenant: str = "local", user: str = "local"
) -> RunOpened:
    """The event that opens a run."""
    return RunOpened.model_validate(
        {
            "run_id": run_id,
            "issue": command.issue,
            "repo": command.repo,
            "base": command.base,
            "reporter_email": command.reporter_email,
            "policy": command.policy,
            "requested_by": by,
            "tenant": tenant,
            "user": user,
            "origin": origin,
            "opened_at": now,
            "request_digest": digest(command),
        }
    )


def retry_of_letter(run_id: str, consumer: str, died: Recorded | None, by: str) -> RunEvent:
    """What replays a dead letter of a step: the step is sent back to the event that it died on. Raises Problem 409."""
    step = next((s for s in get_args(StepName) if consumer.endswith(f"-{s}")), None)
    event = died.event if died else None
    if step is None or died is None or event is None:
        raise Problem(
            409, "not-replayable", "the event that it died on cannot be read", "POST /api/runs/{id}/retry sends a step to work again"
        )
    of = event.of if isinstance(event, RunApproved | RunRetried) else died.sequence
    return RunRetried(run_id=run_id, step=step, of=of, by=by)


def structured(event: JsonObject) -> bytes:
    """A CloudEvent in structured mode, as it travels on INBOX."""
    return json.dumps(event, ensure_ascii=True, separators=(",", ":")).encode()
