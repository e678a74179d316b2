"""Cuts a webhook's payload down to what is used here (GitHub, "Webhook events and payloads").

Pure, and whatever shape the JSON has, no exception: what is not as it should be counts as absent.
"""

import re
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from libs.contracts.github import GitHubDelivery

DISPATCH = "agent-coder-solve"
_DISPATCH_KEYS = ("issue", "title", "body", "base")
_BODY = 65_536
_INT = 2**63
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff]")
_LINE_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]+")
_SHA = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
Json = Mapping[str, Any]
Fields = dict[str, Any]

USED: dict[str, frozenset[str]] = {
    "issues": frozenset({"opened", "labeled", "assigned"}),
    "issue_comment": frozenset({"created"}),
    "pull_request": frozenset({"closed"}),
    "pull_request_review": frozenset({"submitted", "dismissed"}),
    "pull_request_review_comment": frozenset({"created"}),
    "check_run": frozenset({"completed"}),
    "check_suite": frozenset({"completed"}),
    "workflow_run": frozenset({"completed"}),
    "status": frozenset({""}),
    "repository_dispatch": frozenset({DISPATCH}),
    "installation": frozenset({"created", "deleted", "suspend", "unsuspend", "new_permissions_accepted"}),
    "installation_repositories": frozenset({"added", "removed"}),
    "repository": frozenset({"renamed", "archived", "unarchived", "transferred"}),
}
"""The actions of each event that somebody here acts on."""


def reduce(event: str, delivery: str, payload: Json, received_at: datetime) -> GitHubDelivery | None:
    """What is kept of a payload; None when nobody here acts on it."""
    action = line(payload.get("action"), 100)
    if action not in USED.get(event, ()):
        return None
    fields = _common(payload) | _OF_EVENT.get(event, _nothing)(payload)
    if fields["repository_id"] is None and not event.startswith("installation"):
        return None
    return GitHubDelivery(delivery=delivery, event=event, action=action, received_at=received_at, **fields)


def at(value: Any, path: str) -> Any:
    """What lies at `a.b.c`; None when something on the way is absent or no object."""
    for key in path.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def text(value: Any, limit: int = _BODY) -> str:
    """A text without control characters but tabs and line ends, cut; empty for anything else."""
    return _CONTROL.sub("", value)[:limit] if isinstance(value, str) else ""


def line(value: Any, limit: int) -> str:
    """A text in one line, cut; empty for anything else."""
    return _LINE_CONTROL.sub(" ", value).strip()[:limit] if isinstance(value, str) else ""


def number(value: Any) -> int | None:
    """A whole number of at most 63 bits; None for anything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _INT else None


def _sha(value: Any) -> str:
    return value if isinstance(value, str) and _SHA.fullmatch(value) else ""


def _common(payload: Json) -> Fields:
    repository = payload.get("repository")
    return {
        "repository": line(at(repository, "full_name"), 300),
        "repository_id": number(at(repository, "id")),
        "default_branch": line(at(repository, "default_branch"), 255),
        "clone_url": line(at(repository, "clone_url"), 2048),
        "private": at(repository, "private") is True,
        "archived": at(repository, "archived") is True,
        "installation_id": number(at(payload, "installation.id")),
        "sender": line(at(payload, "sender.login"), 100),
        "sender_type": line(at(payload, "sender.type"), 40),
    }


def _nothing(_: Json) -> Fields:
    return {}


def _issue(payload: Json) -> Fields:
    issue = payload.get("issue")
    return {
        "number": number(at(issue, "number")),
        "is_pull": isinstance(at(issue, "pull_request"), Mapping),
        "title": line(at(issue, "title"), 1000),
        "body": text(at(issue, "body")),
        "author": line(at(issue, "user.login"), 100),
        "url": line(at(issue, "html_url"), 2048),
        "label": line(at(payload, "label.name"), 200),
        "assignee": line(at(payload, "assignee.login"), 100),
    }


def _comment(payload: Json) -> Fields:
    comment = payload.get("comment")
    return {
        "comment_id": number(at(comment, "id")),
        "comment": text(at(comment, "body")),
        "comment_author": line(at(comment, "user.login"), 100),
        "association": line(at(comment, "author_association"), 40),
        "url": line(at(comment, "html_url"), 2048),
    }


def _issue_comment(payload: Json) -> Fields:
    return _issue(payload) | _comment(payload)


def _pull(payload: Json) -> Fields:
    pull = payload.get("pull_request")
    return {
        "number": number(at(pull, "number")),
        "is_pull": True,
        "title": line(at(pull, "title"), 1000),
        "body": text(at(pull, "body")),
        "author": line(at(pull, "user.login"), 100),
        "url": line(at(pull, "html_url"), 2048),
        "sha": _sha(at(pull, "head.sha")),
        "head_ref": line(at(pull, "head.ref"), 255),
        "head_repository": line(at(pull, "head.repo.full_name"), 300),
        "merged": at(pull, "merged") is True,
        "merge_sha": _sha(at(pull, "merge_commit_sha")),
    }


def _review(payload: Json) -> Fields:
    review = payload.get("review")
    return _pull(payload) | {
        "comment_id": number(at(review, "id")),
        "review_id": number(at(review, "id")),
        "comment": text(at(review, "body")),
        "comment_author": line(at(review, "user.login"), 100),
        "association": line(at(review, "author_association"), 40),
        "url": line(at(review, "html_url"), 2048),
        "review_state": line(at(review, "state"), 40).lower(),
        "sha": _sha(at(review, "commit_id")),
    }


def _review_comment(payload: Json) -> Fields:
    comment = payload.get("comment")
    return (
        _pull(payload)
        | _comment(payload)
        | {
            "review_id": number(at(comment, "pull_request_review_id")),
            "path": line(at(comment, "path"), 4096),
            "line": number(at(comment, "line")) or number(at(comment, "original_line")),
        }
    )


def _check(key: str, name: str) -> Callable[[Json], Fields]:
    def fields(payload: Json) -> Fields:
        check = payload.get(key)
        branch = at(check, "head_branch") or at(check, "check_suite.head_branch")
        return {
            "sha": _sha(at(check, "head_sha")),
            "head_ref": line(branch, 255),
            "conclusion": line(at(check, "conclusion"), 40).lower(),
            "check_name": line(at(check, name), 300),
            "url": line(at(check, "html_url"), 2048),
            "pulls": _numbers(at(check, "pull_requests")),
        }

    return fields


def _numbers(pulls: Any) -> tuple[int, ...]:
    found = (number(at(pull, "number")) for pull in pulls[:20]) if isinstance(pulls, list) else ()
    return tuple(n for n in found if n is not None)


def _status(payload: Json) -> Fields:
    branches = payload.get("branches")
    return {
        "sha": _sha(payload.get("sha")),
        "head_ref": line(at(branches[0], "name"), 255) if isinstance(branches, list) and branches else "",
        "conclusion": line(payload.get("state"), 40).lower(),
        "check_name": line(payload.get("context"), 300),
        "url": line(payload.get("target_url"), 2048),
    }


def _dispatch(payload: Json) -> Fields:
    given = {key: at(payload, f"client_payload.{key}") for key in _DISPATCH_KEYS}
    kept: dict[str, str | int] = {key: text(value) for key, value in given.items() if isinstance(value, str)}
    issue = number(given["issue"])
    if issue is not None:
        kept["issue"] = issue
    return {"payload": kept}


_OF_EVENT: dict[str, Callable[[Json], Fields]] = {
    "issues": _issue,
    "issue_comment": _issue_comment,
    "pull_request": _pull,
    "pull_request_review": _review,
    "pull_request_review_comment": _review_comment,
    "check_run": _check("check_run", "name"),
    "check_suite": _check("check_suite", "app.name"),
    "workflow_run": _check("workflow_run", "name"),
    "status": _status,
    "repository_dispatch": _dispatch,
}
